//! The sort routine: stable, along one dimension, values and positions.

use std::cmp::Ordering;
use std::sync::atomic::{self, AtomicBool};

use ir_core::{DType, SymExpr};
use kernel_ir::{ExternCall, ExternOp, Operand, Program};

use super::{Buffers, Call, ExecError};
use crate::micro::team;

/// An operand with its dtype.
struct Place {
    root: usize,
    dtype: DType,
    offset: SymExpr,
    sizes: Vec<SymExpr>,
    strides: Vec<SymExpr>,
}

/// A sort step.
pub(super) struct SortOp {
    input: Place,
    values: Place,
    positions: Place,
    dim: usize,
    descending: bool,
}

impl SortOp {
    pub(super) fn new(program: &Program, call: &ExternCall) -> Result<SortOp, ExecError> {
        let ExternOp::Sort { dim, descending } = call.op else {
            return Err(ExecError::Malformed(format!("`{}` is no sort", call.name)));
        };
        let place = |o: &Operand| Place {
            root: program.root(o.buf).0 as usize,
            dtype: program.buffers[o.buf].dtype,
            offset: o.offset.clone(),
            sizes: o.sizes.to_vec(),
            strides: o.strides.to_vec(),
        };
        let ([input], [values, positions]) = (&call.inputs[..], &call.outputs[..]) else {
            return Err(ExecError::Malformed(format!(
                "sort `{}` takes one input and two outputs",
                call.name
            )));
        };
        let op = SortOp {
            input: place(input),
            values: place(values),
            positions: place(positions),
            dim: dim as usize,
            descending,
        };
        let fits = op.positions.dtype == DType::I64
            && op.values.dtype == op.input.dtype
            && !op.input.dtype.is_complex()
            && (op.dim < op.input.sizes.len() || op.input.sizes.is_empty());
        if !fits {
            return Err(ExecError::Malformed(format!(
                "sort `{}` has operands of the wrong dtype or rank",
                call.name
            )));
        }
        Ok(op)
    }

    pub(super) fn run(&self, call: &Call<'_>) -> Result<(), ExecError> {
        let s = call.sizes;
        let sizes = s.extents(&self.input.sizes)?;
        if sizes.contains(&0) {
            return Ok(());
        }
        let n = sizes.get(self.dim).copied().unwrap_or(1);
        let places = [&self.input, &self.values, &self.positions];
        let mut bases = [0isize; 3];
        let mut strides = Vec::new();
        for (i, p) in places.iter().enumerate() {
            bases[i] = s.eval(&p.offset)? as isize;
            strides.push(s.extents(&p.strides)?);
        }
        let rows = sizes.iter().product::<i64>() / n.max(1);
        let short = AtomicBool::new(false);
        let task = |row: usize| {
            let mut at = bases;
            let mut rest = row as i64;
            for d in (0..sizes.len()).rev().filter(|d| *d != self.dim) {
                let i = rest % sizes[d];
                rest /= sizes[d];
                (0..3).for_each(|p| at[p] += (i * strides[p][d]) as isize);
            }
            let along = [0, 1, 2].map(|p| strides[p].get(self.dim).copied().unwrap_or(0) as isize);
            if self.row(call.buffers, n, at, along).is_none() {
                short.store(true, atomic::Ordering::Relaxed);
            }
        };
        team::par_for(rows as usize, &task);
        if short.load(atomic::Ordering::Relaxed) {
            return Err(ExecError::OutOfMemory((n as usize).saturating_mul(size_of::<(Key, i64)>())));
        }
        Ok(())
    }

    /// Sorts one row; `None` where there is no memory for it.
    fn row(&self, buffers: &Buffers, n: i64, at: [isize; 3], along: [isize; 3]) -> Option<()> {
        let size = self.input.dtype.size() as isize;
        let (source, values, positions) =
            (buffers.0[self.input.root], buffers.0[self.values.root], buffers.0[self.positions.root]);
        let mut keys: Vec<(Key, i64)> = Vec::new();
        keys.try_reserve_exact(usize::try_from(n).ok()?).ok()?;
        keys.extend((0..n).map(|i| {
            let p = source.wrapping_offset((at[0] + i as isize * along[0]) * size);
            // SAFETY: element i of this row, inside of the operand by the program's promise.
            (unsafe { Key::read(self.input.dtype, p) }, i)
        }));
        keys.sort_by(|a, b| if self.descending { b.0.order(&a.0) } else { a.0.order(&b.0) });
        for (i, (key, position)) in keys.into_iter().enumerate() {
            let i = i as isize;
            // SAFETY: element i of this row, inside of the operand by the program's promise, for the outputs, which overlap
            // neither each other nor the input.
            unsafe {
                key.write(self.values.dtype, values.wrapping_offset((at[1] + i * along[1]) * size));
                positions.cast::<i64>().wrapping_offset(at[2] + i * along[2]).write_unaligned(position);
            }
        }
        Some(())
    }
}

/// A value in the order of its dtype.
#[derive(Clone, Copy)]
enum Key {
    Int(i64),
    Float(f64),
}

impl Key {
    /// # Safety
    /// `p` points to an element of `dtype`.
    unsafe fn read(dtype: DType, p: *const u8) -> Key {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            match dtype {
                DType::Bool | DType::U8 => Key::Int(i64::from(*p)),
                DType::I8 => Key::Int(i64::from(*p.cast::<i8>())),
                DType::I16 => Key::Int(i64::from(p.cast::<i16>().read_unaligned())),
                DType::I32 => Key::Int(i64::from(p.cast::<i32>().read_unaligned())),
                DType::I64 => Key::Int(p.cast::<i64>().read_unaligned()),
                DType::F16 => Key::Float(p.cast::<half::f16>().read_unaligned().to_f64()),
                DType::BF16 => Key::Float(p.cast::<half::bf16>().read_unaligned().to_f64()),
                DType::F32 => Key::Float(f64::from(p.cast::<f32>().read_unaligned())),
                // Complex operands are refused in `new`, and kernels have no other dtypes.
                _ => Key::Float(p.cast::<f64>().read_unaligned()),
            }
        }
    }

    /// # Safety
    /// `p` points to writable memory of an element of `dtype`.
    unsafe fn write(self, dtype: DType, p: *mut u8) {
        let (i, f) = match self {
            Key::Int(i) => (i, i as f64),
            Key::Float(f) => (f as i64, f),
        };
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            match dtype {
                DType::Bool | DType::U8 | DType::I8 => *p = i as u8,
                DType::I16 => p.cast::<i16>().write_unaligned(i as i16),
                DType::I32 => p.cast::<i32>().write_unaligned(i as i32),
                DType::I64 => p.cast::<i64>().write_unaligned(i),
                DType::F16 => p.cast::<half::f16>().write_unaligned(half::f16::from_f64(f)),
                DType::BF16 => p.cast::<half::bf16>().write_unaligned(half::bf16::from_f64(f)),
                DType::F32 => p.cast::<f32>().write_unaligned(f as f32),
                _ => p.cast::<f64>().write_unaligned(f),
            }
        }
    }

    /// `NaN` counts as largest.
    fn order(&self, other: &Key) -> Ordering {
        match (self, other) {
            (Key::Int(a), Key::Int(b)) => a.cmp(b),
            (Key::Float(a), Key::Float(b)) => a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())),
            // Keys of one row have one dtype.
            _ => Ordering::Equal,
        }
    }
}
