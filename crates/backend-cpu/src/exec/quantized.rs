//! Products with quantized weights through their hand-written kernel. The epilogue is a generated function over finished blocks of sums.

use ir_core::{DType, SymExpr};
use kernel_ir::runtime::Sizes;
use kernel_ir::{Dequant, Matmul, Program};

use super::template::{Finish, View, flattens, is_constant, trailing_units};
use super::{Buffers, Call, ExecError};
use crate::micro::quantized::{self, Columns, Floats, QuantizedMatmul, QuantizedWeights, Source};
use crate::micro::{BatchDim, Hook, Isa};

/// A product with quantized weights.
pub(super) struct QuantizedOp {
    name: String,
    /// The batch dimensions of A are contiguous with its rows.
    flat: bool,
    floats: Floats,
    a: View,
    b: View,
    signed: bool,
    factor: View,
    zero: Option<View>,
    ranges: Vec<SymExpr>,
    finish: Finish,
    /// The weights are constants that are packed when they are bound.
    packs: bool,
}

/// The numbers of A where there is a kernel for them.
pub(super) fn floats(a: DType) -> Option<Floats> {
    Some(match a {
        DType::F32 => Floats::F32,
        DType::BF16 => Floats::Bf16,
        DType::F16 => Floats::F16,
        _ => return None,
    })
}

impl QuantizedOp {
    pub(super) fn new(
        program: &Program,
        (m, d): (&Matmul, &Dequant),
        floats: Floats,
        finish: Finish,
    ) -> QuantizedOp {
        let all = [&m.b].into_iter().chain(d.operands());
        let fixed = |e: &SymExpr| e.as_const().is_some();
        let rank = m.b.sizes.len();
        let known = m.b.sizes[rank - 2..].iter().chain(&m.b.strides[rank - 2..]).all(fixed)
            && d.operands().flat_map(|o| o.sizes.iter().chain(&o.strides)).all(fixed);
        QuantizedOp {
            name: m.name.clone(),
            flat: flattens(m),
            floats,
            a: View::new(program, &m.a),
            b: View::new(program, &m.b),
            signed: program.buffers[m.b.buf].dtype == DType::I8,
            factor: View::new(program, &d.factor),
            zero: d.zero.as_ref().map(|zero| View::new(program, zero)),
            ranges: m.epilogue.ranges.to_vec(),
            finish,
            packs: known && all.into_iter().all(|o| is_constant(program, o) && fixed(&o.offset)),
        }
    }

    /// Packs weights whose memory is bound.
    pub(super) fn pack(&self, buffers: &Buffers, s: &Sizes) -> Result<Option<QuantizedWeights>, ExecError> {
        if self.packs { self.packed(buffers, s).map(Some) } else { Ok(None) }
    }

    fn packed(&self, buffers: &Buffers, s: &Sizes) -> Result<QuantizedWeights, ExecError> {
        let pair = |list: &[SymExpr]| -> Result<[i64; 2], ExecError> {
            let all = s.extents(&list[list.len() - 2..])?;
            Ok([all[0], all[1]])
        };
        let columns = |view: &View| -> Result<Columns, ExecError> {
            Ok(Columns { ptr: view.ptr(buffers, s)?, strides: pair(&view.strides)?.map(|s| s as isize) })
        };
        let source = Source {
            ptr: self.b.ptr(buffers, s)?,
            signed: self.signed,
            sizes: pair(&self.b.sizes)?.map(|n| n as usize),
            strides: pair(&self.b.strides)?.map(|s| s as isize),
            groups: pair(&self.factor.sizes)?[0] as usize,
            factor: columns(&self.factor)?,
            zero: self.zero.as_ref().map(columns).transpose()?,
        };
        // SAFETY: operands lie inside of their buffers, by the program's promise.
        let packed = unsafe { QuantizedWeights::pack(Isa::best(), &source) };
        packed.map_err(|source| ExecError::Template { kernel: self.name.clone(), source })
    }

    pub(super) fn run(&self, call: &Call<'_>, packed: Option<&QuantizedWeights>) -> Result<(), ExecError> {
        let s = call.sizes;
        if s.extents(&self.ranges)?.contains(&0) {
            return Ok(());
        }
        let fresh = if packed.is_none() { Some(self.packed(call.buffers, s)?) } else { None };
        let Some(weights) = packed.or(fresh.as_ref()) else { return Ok(()) };
        let Finish::Hook(f) = &self.finish else {
            return Err(ExecError::Malformed(format!("`{}` has no function for its epilogue", self.name)));
        };
        let table = self.finish.table(call);
        let context = call.context(&table);
        let hook = Hook::Raw { f: call.code.epilogue(f.number), ctx: (&raw const context).cast() };
        let (sizes, strides) = (s.extents(&self.a.sizes)?, s.extents(&self.a.strides)?);
        let rank = sizes.len();
        let lead = if self.flat { 0 } else { rank - 2 };
        let dim = |d: usize| BatchDim {
            size: sizes[d] as usize,
            a_stride: strides[d] as isize,
            b_stride: 0,
            c_stride: 0,
        };
        let batch: Vec<BatchDim> = (0..lead).map(dim).collect();
        let row = rank - 2 - usize::from(self.flat) * trailing_units(&sizes[..rank - 1]);
        let a = match self.floats {
            Floats::F32 => self.a.ptr::<f32>(call.buffers, s)?.cast(),
            Floats::Bf16 | Floats::F16 => self.a.ptr::<u16>(call.buffers, s)?.cast(),
        };
        let product = QuantizedMatmul {
            m: sizes[lead..rank - 1].iter().product::<i64>() as usize,
            a,
            floats: self.floats,
            strides: [strides[row] as isize, strides[rank - 1] as isize],
            b: weights,
            batch: &batch,
            hook,
        };
        // SAFETY: operands lie inside of their buffers, and the plan gives outputs memory of their own.
        unsafe { quantized::matmul(&product) };
        Ok(())
    }
}
