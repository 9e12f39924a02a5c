//! One step: a loop kernel, a template with its epilogue, or a routine.

use ir_core::DType;
use ir_core::SymId;
use kernel_ir::{
    Along, Attention, Bind, Conv, Dequant, ExternCall, ExternOp, Fourier, Groups, Matmul, Operand, Program,
    Step,
};
use tensor::{Tensor, TensorError, linalg};

use super::memory::Memory;
use super::{KernelError, loops, size, sizes};
use crate::{Bindings, Conflict};

/// Runs a step; steps that bind symbols change `bindings`.
pub(super) fn run(
    program: &Program,
    step: &Step,
    bindings: &mut Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    match step {
        Step::Loop(kernel) => loops::run(program, kernel, bindings, memory),
        Step::Matmul(kernel) => matmul(program, kernel, bindings, memory),
        Step::Conv(kernel) => conv(program, kernel, bindings, memory),
        Step::Attention(kernel) => attention(program, kernel, bindings, memory),
        Step::Extern(call) => routine(call, bindings, memory),
        Step::Bind(b) => bind(program, b, bindings, memory),
        Step::Assert(a) if truth(&a.name, &a.pred, bindings, memory)? => Ok(()),
        Step::Assert(a) => Err(KernelError::Assertion { step: a.name.clone(), message: a.message.clone() }),
        Step::Together(t) => all(program, &t.steps, bindings, memory),
        Step::Cond(c) => {
            let taken = if truth(&c.name, &c.pred, bindings, memory)? { &c.then } else { &c.otherwise };
            all(program, taken, bindings, memory)
        }
        Step::For(f) => {
            for n in 0..size(&f.count, bindings)? {
                set(program, f.symbol, n, bindings, memory)?;
                all(program, &f.body, bindings, memory)?;
            }
            Ok(())
        }
        Step::While(w) => loop {
            all(program, &w.cond, bindings, memory)?;
            if !truth(&w.name, &w.pred, bindings, memory)? {
                return Ok(());
            }
            all(program, &w.body, bindings, memory)?;
        },
    }
}

/// Runs steps in order.
pub(super) fn all(
    program: &Program,
    steps: &[Step],
    bindings: &mut Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    steps.iter().try_for_each(|step| run(program, step, bindings, memory))
}

/// The one number of an operand.
fn number(
    name: &str,
    operand: &Operand,
    bindings: &Bindings,
    memory: &Memory,
) -> Result<ir_core::Scalar, KernelError> {
    let tensor = memory.operand(name, operand, bindings)?;
    let number = tensor.iter().next();
    number.ok_or_else(|| KernelError::malformed(name, "it reads a number where there is none"))
}

fn truth(name: &str, operand: &Operand, bindings: &Bindings, memory: &Memory) -> Result<bool, KernelError> {
    number(name, operand, bindings, memory).map(|s| s.as_bool())
}

fn bind(
    program: &Program,
    b: &Bind,
    bindings: &mut Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let value = number(&b.name, &b.from, bindings, memory)?.as_i64();
    let symbol = &program.symbols[b.symbol];
    if value < symbol.min || symbol.max.is_some_and(|max| value > max) {
        let (min, max) = (symbol.min, symbol.max);
        let conflict = Conflict::Range { symbol: symbol.name.clone(), value, min, max };
        return Err(KernelError::Range { step: b.name.clone(), conflict });
    }
    set(program, b.symbol, value, bindings, memory)
}

/// Binds a symbol, and gives new memory to the buffers whose size mentions it.
fn set(
    program: &Program,
    symbol: SymId,
    value: i64,
    bindings: &mut Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    bindings.set(symbol, value);
    memory.rebound(program, symbol, bindings)
}

fn refused(name: &str) -> impl FnOnce(TensorError) -> KernelError + use<> {
    let what = name.to_owned();
    move |error| KernelError::Tensor { what, error }
}

fn matmul(
    program: &Program,
    k: &Matmul,
    bindings: &Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let (a, b) = (memory.operand(&k.name, &k.a, bindings)?, memory.operand(&k.name, &k.b, bindings)?);
    let a = shifted(&k.name, a, k.zero)?;
    let b = match &k.dequant {
        Some(d) => dequantized(&k.name, &b, d, bindings, memory)?,
        None => b,
    };
    let product = match &k.groups {
        Some(g) => by_groups(&k.name, (&a, &b), g, k.acc, bindings, memory)?,
        None => linalg::matmul(&a, &b, k.acc).map_err(refused(&k.name))?,
    };
    drop((a, b));
    loops::run_epilogue(program, &k.name, &k.epilogue, &product, bindings, memory)
}

/// The product of each group's rows, or of each group's part of the depth.
fn by_groups(
    name: &str,
    (a, b): (&Tensor, &Tensor),
    groups: &Groups,
    acc: DType,
    bindings: &Bindings,
    memory: &Memory,
) -> Result<Tensor, KernelError> {
    let ends = memory.operand(name, &groups.ends, bindings)?;
    let ranges = |places: usize| Groups::ranges(ends.iter().map(|e| e.as_i64()), places);
    let done = match groups.along {
        Along::Rows => linalg::grouped_matmul(a, b, &ranges(a.sizes()[0]), acc),
        Along::Depth => linalg::grouped_sums(a, b, &ranges(b.sizes()[0]), acc),
    };
    done.map_err(refused(name))
}

/// Quantized weights `[…, k, n]` as numbers of double precision.
fn dequantized(
    name: &str,
    b: &Tensor,
    d: &Dequant,
    bindings: &Bindings,
    memory: &Memory,
) -> Result<Tensor, KernelError> {
    let numbers = |o: &Operand| -> Result<Vec<f64>, KernelError> {
        Ok(memory.operand(name, o, bindings)?.iter_f64().collect())
    };
    let (factor, zero) = (numbers(&d.factor)?, d.zero.as_ref().map(numbers).transpose()?);
    let sizes = b.sizes();
    let (k, n) = (sizes[sizes.len() - 2], sizes[sizes.len() - 1]);
    // An empty matrix has no group that is read.
    let length = (k * n / factor.len().max(1)).max(1);
    let value = |(i, x): (usize, f64)| {
        let at = i / n % k / length * n + i % n;
        (x - zero.as_ref().map_or(0.0, |z| z[at])) * factor[at]
    };
    let values: Vec<f64> = b.iter_f64().enumerate().map(value).collect();
    Tensor::from_vec(values, sizes).map_err(refused(name))
}

/// The operand less a zero point.
fn shifted(name: &str, operand: Tensor, zero: i64) -> Result<Tensor, KernelError> {
    if zero == 0 {
        return Ok(operand);
    }
    let moved: Vec<i64> = operand.iter().map(|x| x.as_i64() - zero).collect();
    Tensor::from_vec(moved, operand.sizes()).map_err(refused(name))
}

fn conv(program: &Program, k: &Conv, bindings: &Bindings, memory: &mut Memory) -> Result<(), KernelError> {
    let input = shifted(&k.name, memory.operand(&k.name, &k.input, bindings)?, k.zero)?;
    let weight = memory.operand(&k.name, &k.weight, bindings)?;
    let positive = |list: &[i64]| -> Result<Vec<usize>, KernelError> {
        let wrong = |_| KernelError::malformed(&k.name, "a stride or dilation is negative");
        list.iter().map(|&x| usize::try_from(x).map_err(wrong)).collect()
    };
    let output = sizes(&k.epilogue.ranges, bindings)?;
    let padding: Vec<isize> = k.padding.iter().map(|&(before, _)| before as isize).collect();
    let geometry = linalg::ConvGeometry {
        stride: &positive(&k.stride)?,
        padding: &padding,
        dilation: &positive(&k.dilation)?,
        output: output.get(2..).unwrap_or(&[]),
        groups: usize::try_from(k.groups)
            .map_err(|_| KernelError::malformed(&k.name, "its number of groups is negative"))?,
        transposed: k.transposed,
    };
    let result = linalg::conv(&input, &weight, &geometry, k.acc).map_err(refused(&k.name))?;
    drop((input, weight));
    loops::run_epilogue(program, &k.name, &k.epilogue, &result, bindings, memory)
}

fn attention(
    program: &Program,
    k: &Attention,
    bindings: &Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let operand = |o| memory.operand(&k.name, o, bindings);
    let (q, key, v) = (operand(&k.q)?, operand(&k.k)?, operand(&k.v)?);
    let mask = k.mask.as_ref().map(operand).transpose()?;
    let words = k.dropout.as_ref().map(|d| operand(&d.kept)).transpose()?;
    let kept = words.as_ref().zip(k.dropout.as_ref()).map(|(words, d)| (words, d.factor));
    let result = linalg::attention((&q, &key, &v), (mask.as_ref(), kept), k.causal, k.scale, k.acc);
    let (result, sums) = result.map_err(refused(&k.name))?;
    drop((q, key, v, mask, words));
    if let Some(operand) = &k.sums {
        memory.store_operand(&k.name, operand, &sums, bindings)?;
    }
    loops::run_epilogue(program, &k.name, &k.epilogue, &result, bindings, memory)
}

fn attention_backward(
    call: &ExternCall,
    causal: bool,
    scale: f64,
    bindings: &Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let read = |o| memory.operand(&call.name, o, bindings);
    let inputs = call.inputs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let ([cotangent, q, k, v, sums, deltas, ..], [dq, dk, dv]) = (&inputs[..], &call.outputs[..]) else {
        return Err(KernelError::malformed(&call.name, "a routine with the wrong number of operands"));
    };
    let dtype = q.dtype();
    let (mask, dropout) = call.mask_and_dropout();
    let mask = mask.and(inputs.get(6));
    let kept = inputs.last().zip(dropout).map(|(words, d)| (words, d.factor));
    let given = linalg::AttentionCotangent { cotangent, sums, deltas };
    let grads = linalg::attention_backward(&given, (q, k, v), (mask, kept), causal, scale, dtype);
    let grads = grads.map_err(refused(&call.name))?;
    drop(inputs);
    [dq, dk, dv]
        .into_iter()
        .zip(&grads)
        .try_for_each(|(operand, grad)| memory.store_operand(&call.name, operand, grad, bindings))
}

fn routine(call: &ExternCall, bindings: &Bindings, memory: &mut Memory) -> Result<(), KernelError> {
    match (&call.op, &call.inputs[..], &call.outputs[..]) {
        (ExternOp::Sort { dim, descending }, [input], [values, positions]) => {
            let input = memory.operand(&call.name, input, bindings)?;
            let (sorted, order) = sort(&input, *dim as usize, *descending).map_err(refused(&call.name))?;
            drop(input);
            memory.store_operand(&call.name, values, &sorted, bindings)?;
            memory.store_operand(&call.name, positions, &order, bindings)
        }
        (ExternOp::AttentionBackward { causal, scale, .. }, ..) => {
            attention_backward(call, *causal, *scale, bindings, memory)
        }
        (ExternOp::Fourier { .. }, ..) => fourier(call, bindings, memory),
        (ExternOp::Linalg { op, complex }, ..) => super::linalg::run(call, *op, *complex, bindings, memory),
        _ => Err(KernelError::malformed(&call.name, "a routine with the wrong number of operands")),
    }
}

fn fourier(call: &ExternCall, bindings: &Bindings, memory: &mut Memory) -> Result<(), KernelError> {
    let wrong = || KernelError::malformed(&call.name, "its operands are not those of a Fourier transform");
    let lines = Fourier::of(call).ok_or_else(wrong)?;
    let read = |o: &Operand| memory.operand(&call.name, o, bindings);
    let (re, im) = (read(lines.from.0)?, lines.from.1.map(read).transpose()?);
    let length = usize::try_from(lines.length).map_err(|_| wrong())?;
    let (forward, scale) = (lines.forward, lines.scale);
    let results = prims::ops::run_fourier(lines.form, length, lines.dim, forward, scale, (&re, im.as_ref()))
        .map_err(refused(&call.name))?;
    drop((re, im));
    call.outputs
        .iter()
        .zip(&results)
        .try_for_each(|(operand, result)| memory.store_operand(&call.name, operand, result, bindings))
}

/// Stable sort along `dim`; `NaN` counts as largest. Values and positions (`i64`), row-major.
fn sort(input: &Tensor, dim: usize, descending: bool) -> Result<(Tensor, Tensor), TensorError> {
    if input.rank() == 0 {
        return Ok((input.copied()?, Tensor::zeros(DType::I64, &[])?));
    }
    // Rows along the sorted dimension side by side.
    let mut dims: Vec<usize> = (0..input.rank()).filter(|&d| d != dim).collect();
    dims.push(dim);
    let moved = input.permute(&dims)?;
    let length = moved.sizes().last().copied().unwrap_or(1);
    let scalars: Vec<_> = moved.iter().collect();
    let (mut values, mut order) = (Vec::with_capacity(scalars.len()), Vec::with_capacity(scalars.len()));
    for row in scalars.chunks(length.max(1)) {
        let mut positions: Vec<usize> = (0..row.len()).collect();
        positions.sort_by(|&a, &b| {
            let ascending = compare(row[a], row[b], input.dtype());
            if descending { ascending.reverse() } else { ascending }
        });
        values.extend(positions.iter().map(|&i| row[i]));
        order.extend(positions.iter().map(|&i| i as i64));
    }
    let mut back = vec![0; dims.len()];
    dims.iter().enumerate().for_each(|(to, &from)| back[from] = to);
    let values = tensor::with_element!(input.dtype(), T => {
        let typed = values.into_iter().map(<T as tensor::Element>::from_scalar).collect();
        Tensor::from_vec::<T>(typed, moved.sizes())
    })?;
    let order = Tensor::from_vec(order, moved.sizes())?;
    Ok((values.permute(&back)?, order.permute(&back)?))
}

fn compare(a: ir_core::Scalar, b: ir_core::Scalar, dtype: DType) -> std::cmp::Ordering {
    if dtype.is_integral() {
        return a.as_i64().cmp(&b.as_i64());
    }
    let (a, b) = (a.as_f64(), b.as_f64());
    // Numbers before NaN; NaNs are equal.
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
