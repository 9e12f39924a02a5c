//! Fractional maximum pooling: windows whose positions the caller's random samples determine.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr, numel};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::shapes::shape::{self, Made};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)",
        |b, c| pool(b, c, 2)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor, Tensor)",
        |b, c| pool(b, c, 3)
    ).autocast(Autocast::FLOAT32_ON_CPU),
];

/// Number of the sample for dimension `d`: two dimensions are counted from the innermost, three from the outermost.
fn sample_of(d: usize, n: usize) -> usize {
    if n == 2 { 1 - d } else { d }
}

fn pool(b: &mut Builder<'_>, c: &Call<'_>, n: usize) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let (kernel, outs) = (c.ints_n("kernel_size", n, 1)?, c.ints_n("output_size", n, 1)?);
    if sizes.len() != n + 1 && sizes.len() != n + 2 {
        return Err(c.invalid(format!("takes {} or {} dimensions", n + 1, n + 2)));
    }
    let lead = sizes.len() - n;
    let rows = numel(&sizes[..lead]);
    let samples = b.reshape(c.value("random_samples")?, &[rows.clone(), (n as i64).into()])?;
    // Flat positions [rows, outs…, kernel…], a dimension at a time.
    let rank = 1 + 2 * n;
    let mut place: Option<ValueId> = None;
    for d in 0..n {
        let from = shape::known(c, &sizes[lead + d], "size of a fractional pool")?;
        let sample = shape::select(b, samples, 1, (sample_of(d, n) as i64).into())?;
        let start = starts(b, sample, from, kernel[d], outs[d])?;
        let mut at: Shape = std::iter::repeat_n(SymExpr::ONE, rank).collect();
        (at[0], at[1 + d]) = (rows.clone(), outs[d].into());
        let start = b.reshape(start, &at)?;
        let step = shape::iota_at(b, &kernel[d].into(), 1 + n + d, rank)?;
        let own = b.add(start, step)?;
        place = Some(match place {
            Some(p) => {
                let p = b.mul(p, from)?;
                b.add(p, own)?
            }
            None => own,
        });
    }
    let place = place.ok_or_else(|| c.invalid("has no dimension"))?;
    let count = |list: &[i64]| {
        let product = list.iter().try_fold(1i64, |n, &k| n.checked_mul(k));
        product.ok_or_else(|| c.invalid("has more windows than memory has addresses"))
    };
    let (windows, taps) = (count(&outs)?, count(&kernel)?);
    let place = b.reshape(place, &[rows.clone(), (windows * taps).into()])?;
    let line = b.reshape(x, &[rows.clone(), numel(&sizes[lead..])])?;
    let values = b.call1("prims.gather", vec![line.into(), 1i64.into(), place.into()])?;
    let split = [rows, windows.into(), taps.into()];
    let (values, place) = (b.reshape(values, &split)?, b.reshape(place, &split)?);
    let best = b.reduce(ReduceOp::ArgMax, values, &[2], false)?;
    let y = b.call1("prims.amax_at", vec![values.into(), best.into(), [2i64][..].into()])?;
    let best = b.unsqueeze(best, 2)?;
    let best = b.call1("prims.gather", vec![place.into(), 2i64.into(), best.into()])?;
    let result: Shape =
        sizes[..lead].iter().cloned().chain(outs.iter().map(|&o| SymExpr::from_i64(o))).collect();
    Ok(smallvec![b.reshape(y, &result)?, b.reshape(best, &result)?])
}

/// Where the windows start, `[rows, outs]`: `trunc((i + u) α) - trunc(u α)` with `α = (from - kernel) / (outs - 1)`,
/// the last one at the end.
fn starts(b: &mut Builder<'_>, u: ValueId, from: i64, kernel: i64, outs: i64) -> Result<ValueId, OpError> {
    let (dtype, rows) = (b.dtype(u)?, b.sizes(u)?[0].clone());
    let last = b.full(&[rows, SymExpr::ONE], from - kernel, DType::I64)?;
    if outs <= 1 {
        return Ok(last);
    }
    let alpha = (from - kernel) as f64 / (outs - 1) as f64;
    let alpha = if dtype == DType::F64 { alpha } else { f64::from(alpha as f32) };
    let u = b.unsqueeze(u, 1)?;
    let i = shape::iota_at(b, &(outs - 1).into(), 1, 2)?;
    let i = b.cast(i, dtype)?;
    let at = b.add(i, u)?;
    let (at, base) = (b.mul(at, alpha)?, b.mul(u, alpha)?);
    let (at, base) = (b.cast(at, DType::I64)?, b.cast(base, DType::I64)?);
    let drawn = b.sub(at, base)?;
    shape::cat(b, &[drawn, last], 1)
}
