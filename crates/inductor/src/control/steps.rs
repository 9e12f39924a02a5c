//! The steps of each kind of control flow.

use ir_core::{DType, SymExpr, SymId};
use kernel_ir::{Assert, BufId, Cond, For, Step, While};

use super::embed::{Embedder, SubgraphOperand, Target};
use super::{ControlCall, ControlKind, Operand};
use crate::Problem;

type Made = Result<Vec<Step>, Vec<Problem>>;

/// Symbols that a call binds: from a result that is an integer, or from the size of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Binds {
    /// Result and symbol.
    pub(crate) ints: Vec<(usize, SymId)>,
    /// Result, dimension and symbol.
    pub(crate) sizes: Vec<(usize, usize, SymId)>,
}

/// The steps of a call whose results are the definitions `outputs`.
pub(crate) fn make(e: &mut Embedder<'_>, call: &ControlCall, outputs: &[BufId], binds: &Binds) -> Made {
    if !binds.sizes.is_empty() && !matches!(call.kind, ControlKind::Cond { .. }) {
        let what = "gives a tensor whose size its subgraph computes, which compiles for `cond` alone; \
                    run this model with the backend `eager`";
        return Err(vec![Problem::of(e.graph, call.node, what)]);
    }
    let mut steps = match &call.kind {
        ControlKind::Item { symbol, from } => vec![e.bind(*symbol, *from)],
        ControlKind::Assert { pred, message } => assert(e, pred, message),
        ControlKind::Cond { .. } => cond(e, call, outputs, binds)?,
        ControlKind::While { .. } => while_loop(e, call, outputs)?,
        ControlKind::Scan { .. } => scan(e, call, outputs)?,
        ControlKind::Associative { .. } => associative(e, call, outputs)?,
    };
    if !matches!(call.kind, ControlKind::Item { .. }) {
        steps.extend(binds.ints.iter().map(|(n, symbol)| e.bind(*symbol, outputs[*n])));
    }
    Ok(steps)
}

fn given(operands: &[Operand]) -> Vec<SubgraphOperand> {
    let one = |o: &Operand| match o {
        Operand::Tensor(b) => SubgraphOperand::Buffer(*b),
        Operand::Int(e) => SubgraphOperand::Int(e.clone()),
    };
    operands.iter().map(one).collect()
}

/// A truth value in memory.
fn truth(e: &mut Embedder<'_>, pred: &Operand, steps: &mut Vec<Step>) -> BufId {
    match pred {
        Operand::Tensor(b) if e.buffer(*b).dtype == DType::Bool => *b,
        Operand::Tensor(from) => {
            let to = e.temp("pred", DType::Bool, &e.buffer(*from).sizes);
            steps.push(e.copy(*from, to));
            to
        }
        Operand::Int(value) => {
            let to = e.temp("pred", DType::Bool, &[]);
            steps.push(e.fill(to, value));
            to
        }
    }
}

fn assert(e: &mut Embedder<'_>, pred: &Operand, message: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let pred = truth(e, pred, &mut steps);
    steps.push(Step::Assert(Assert { name: "assert".into(), message: message.into(), pred: e.whole(pred) }));
    steps
}

fn cond(e: &mut Embedder<'_>, call: &ControlCall, outputs: &[BufId], binds: &Binds) -> Made {
    let ControlKind::Cond { pred, then, otherwise, operands } = &call.kind else { return Ok(Vec::new()) };
    let mut steps = Vec::new();
    let pred = truth(e, pred, &mut steps);
    // A result whose size is found out here goes through memory of its own, for its buffer has no size before.
    let waits = |e: &Embedder<'_>, buf: BufId| {
        let sizes = e.buffer(buf).sizes;
        binds.sizes.iter().any(|(_, _, symbol)| {
            sizes.iter().any(|s| s.any_leaf(|a| matches!(a, ir_core::Atom::Sym(id) if id == symbol)))
        })
    };
    let targets: Vec<Target> =
        outputs.iter().map(|&b| if waits(e, b) { Target::Temp } else { Target::Into(b) }).collect();
    let branch = |e: &mut Embedder<'_>, branch| -> Result<Vec<Step>, Vec<Problem>> {
        let before = e.loops.len();
        let sub = e.embed(branch, call.node, &given(operands), &targets)?;
        e.loops.truncate(before);
        let mut list = sub.steps;
        for &(n, dim, symbol) in &binds.sizes {
            let size = e.buffer(sub.outputs[n]).sizes[dim].clone();
            // The branch has bound the very symbol: to bind it again would take the memory away.
            if size != SymExpr::sym(symbol) {
                let number = e.temp("size", DType::I64, &[]);
                list.push(e.fill(number, &size));
                list.push(e.bind(symbol, number));
            }
        }
        for ((&to, &from), target) in outputs.iter().zip(&sub.outputs).zip(&targets) {
            if matches!(target, Target::Temp) {
                list.push(e.copy(from, to));
            }
        }
        Ok(list)
    };
    let (then, otherwise) = (branch(e, *then)?, branch(e, *otherwise)?);
    let (name, origins, pred) = (String::new(), Vec::new(), e.whole(pred));
    steps.push(Step::Cond(Cond { name, origins, pred, then, otherwise }));
    Ok(steps)
}

/// The first values of what is carried, into the buffers of the results.
fn start(e: &Embedder<'_>, carried: &[Operand], outputs: &[BufId]) -> Vec<Step> {
    let one = |(operand, &to): (&Operand, &BufId)| match operand {
        Operand::Tensor(from) => e.copy(*from, to),
        Operand::Int(value) => e.fill(to, value),
    };
    carried.iter().zip(outputs).map(one).collect()
}

fn while_loop(e: &mut Embedder<'_>, call: &ControlCall, outputs: &[BufId]) -> Made {
    let ControlKind::While { test, body, carried, fixed } = &call.kind else { return Ok(Vec::new()) };
    let mut steps = start(e, carried, outputs);
    let operands: Vec<SubgraphOperand> =
        outputs.iter().take(carried.len()).map(|b| SubgraphOperand::Buffer(*b)).chain(given(fixed)).collect();
    let before = e.loops.len();
    let condition = e.embed(*test, call.node, &operands, &[Target::Temp])?;
    e.loops.truncate(before);
    let mut cond = condition.steps;
    let pred = truth(e, &Operand::Tensor(condition.outputs[0]), &mut cond);
    let turn = e.embed(*body, call.node, &operands, &vec![Target::Temp; carried.len()])?;
    e.loops.truncate(before);
    let mut body = turn.steps;
    // All new values are there before the first old one is overwritten.
    body.extend(turn.outputs.iter().zip(outputs).take(carried.len()).map(|(&from, &to)| e.copy(from, to)));
    let (name, origins, pred) = (String::new(), Vec::new(), e.whole(pred));
    steps.push(Step::While(While { name, origins, cond, pred, body }));
    Ok(steps)
}

fn scan(e: &mut Embedder<'_>, call: &ControlCall, outputs: &[BufId]) -> Made {
    let ControlKind::Scan { body, carried, xs, fixed } = &call.kind else { return Ok(Vec::new()) };
    let mut steps = start(e, carried, outputs);
    let symbol = e.symbol("i", 0);
    let at = SymExpr::sym(symbol);
    let (carries, ys) = outputs.split_at(carried.len().min(outputs.len()));
    let mut operands: Vec<SubgraphOperand> = carries.iter().map(|b| SubgraphOperand::Buffer(*b)).collect();
    for &x in xs {
        operands.push(SubgraphOperand::Buffer(e.slice(x, &at)));
    }
    operands.extend(given(fixed));
    let mut targets = vec![Target::Temp; carries.len()];
    for &y in ys {
        targets.push(Target::Into(e.slice(y, &at)));
    }
    let before = e.loops.len();
    e.loops.push(symbol);
    let turn = e.embed(*body, call.node, &operands, &targets)?;
    e.loops.truncate(before);
    let mut body = turn.steps;
    body.extend(turn.outputs.iter().zip(carries).map(|(&from, &to)| e.copy(from, to)));
    let count = e.buffer(xs[0]).sizes[0].clone();
    steps.push(Step::For(For { name: String::new(), origins: Vec::new(), symbol, count, body }));
    Ok(steps)
}

fn associative(e: &mut Embedder<'_>, call: &ControlCall, outputs: &[BufId]) -> Made {
    let ControlKind::Associative { body, xs, fixed } = &call.kind else { return Ok(Vec::new()) };
    let length = e.buffer(xs[0]).sizes[0].clone();
    // The first entry is copied, by a loop of one turn at most: there may be none.
    let first = e.symbol("i", 0);
    let at = SymExpr::sym(first);
    let mut copies = Vec::new();
    for (&x, &out) in xs.iter().zip(outputs) {
        let (from, to) = (e.slice(x, &at), e.slice(out, &at));
        copies.push(e.copy(from, to));
    }
    let repeat = |symbol, count, body| {
        Step::For(For { name: String::new(), origins: Vec::new(), symbol, count, body })
    };
    let symbol = e.symbol("i", 0);
    let (left, right) = (SymExpr::sym(symbol), SymExpr::sym(symbol) + 1);
    let mut operands = Vec::new();
    for &out in outputs {
        operands.push(SubgraphOperand::Buffer(e.slice(out, &left)));
    }
    for &x in xs {
        operands.push(SubgraphOperand::Buffer(e.slice(x, &right)));
    }
    operands.extend(given(fixed));
    let mut targets = Vec::new();
    for &out in outputs {
        targets.push(Target::Into(e.slice(out, &right)));
    }
    let before = e.loops.len();
    e.loops.push(symbol);
    let turn = e.embed(*body, call.node, &operands, &targets)?;
    e.loops.truncate(before);
    let head = repeat(first, length.sym_min(&SymExpr::ONE), copies);
    Ok(vec![head, repeat(symbol, length - 1, turn.steps)])
}
