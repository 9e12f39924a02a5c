//! The inputs of a changed program: the goldens' inputs where they fit, else tensors of the stated sizes, occasionally with
//! a wrong size, index or number. Numbers are tensors without dimensions.

use ferroflux::{InputInfo, InputKind, Program};
use ir_core::{Atom, DType, EntityId, Scalar, SymExpr};
use tensor::Tensor;

use super::rng::Rng;

/// No input larger than this is made.
const MOST_ELEMENTS: usize = 1 << 16;

/// The inputs of a call; `None` where the program wants larger ones than a case may have.
pub(crate) fn inputs(program: &Program, golden: &[Tensor], rng: &mut Rng) -> Option<Vec<Tensor>> {
    let infos = program.inputs();
    let symbols: Vec<i64> = program.graph().symbols.values().map(|s| symbol(s, rng)).collect();
    let mut made = Vec::with_capacity(infos.len());
    let mut tensors = 0;
    for info in infos.iter().filter(|i| !i.is_constant()) {
        let Some(meta) = info.meta() else {
            made.push(number(info, &symbols, rng)?);
            continue;
        };
        tensors += 1;
        let fits = |t: &&Tensor| t.dtype() == meta.dtype && t.rank() == meta.rank();
        if let Some(given) = golden.get(tensors - 1).filter(fits)
            && !rng.one_in(6)
        {
            made.push(disturbed(given, rng));
            continue;
        }
        let mut sizes: Vec<usize> = meta.sizes.iter().map(|e| size(e, &symbols)).collect::<Option<_>>()?;
        if rng.one_in(10) && !sizes.is_empty() {
            let d = rng.below(sizes.len());
            sizes[d] = rng.below(sizes[d].saturating_add(2));
        }
        made.push(tensor(meta.dtype, &sizes, rng)?);
    }
    Some(made)
}

/// A value of a symbol, most often a small one of its range.
fn symbol(symbol: &fx_ir::Symbol, rng: &mut Rng) -> i64 {
    let picks = [symbol.min, symbol.min.saturating_add(1), symbol.hint.unwrap_or(4), 0, 1, 2, 3, 5, 8, 17];
    picks[rng.below(picks.len())]
}

fn value(e: &SymExpr, symbols: &[i64]) -> Option<i64> {
    e.eval(&|a: &Atom| match a {
        Atom::Sym(id) => symbols.get(id.index()).copied(),
        _ => None,
    })
}

fn size(e: &SymExpr, symbols: &[i64]) -> Option<usize> {
    usize::try_from(value(e, symbols)?).ok()
}

/// A number input, most often one that agrees with the sizes.
fn number(info: &InputInfo, symbols: &[i64], rng: &mut Rng) -> Option<Tensor> {
    let (dtype, scalar) = match &info.kind {
        InputKind::Int { .. } if rng.one_in(6) => (DType::I64, Scalar::Int(integer(rng))),
        InputKind::Int { value: e, .. } => (DType::I64, Scalar::Int(value(e, symbols)?)),
        InputKind::Float => (DType::F64, Scalar::Float(rng.unit() * 2.0)),
        InputKind::Bool => (DType::Bool, Scalar::Bool(rng.one_in(2))),
        InputKind::Tensor(_) | InputKind::Constant(_) => return None,
    };
    Tensor::scalar(dtype, scalar).ok()
}

/// The same tensor, occasionally with an element that is an unlikely index.
fn disturbed(given: &Tensor, rng: &mut Rng) -> Tensor {
    if !given.dtype().is_int() || given.numel() == 0 || !rng.one_in(3) {
        return given.clone();
    }
    let mut changed = given.clone();
    let index: Vec<usize> = given.sizes().iter().map(|n| rng.below(*n)).collect();
    let value = integer(rng);
    // Where the tensor's memory is a file's it stays as it is.
    let _ = changed.set(&index, Scalar::Int(value));
    changed
}

fn integer(rng: &mut Rng) -> i64 {
    match rng.below(12) {
        0 => 1_000_000_000,
        1 => -1,
        2 => -7,
        3 => 100,
        _ => rng.below(5) as i64,
    }
}

fn tensor(dtype: DType, sizes: &[usize], rng: &mut Rng) -> Option<Tensor> {
    let count = sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).filter(|n| *n <= MOST_ELEMENTS)?;
    let wild = rng.one_in(4);
    let values: Vec<f64> = (0..count)
        .map(|_| match dtype {
            DType::Bool => rng.below(2) as f64,
            d if d.is_int() && wild => integer(rng) as f64,
            d if d.is_int() => rng.below(3) as f64,
            _ => rng.unit() * 2.0,
        })
        .collect();
    Tensor::from_vec(values, sizes).ok()?.to_dtype(dtype).ok()
}
