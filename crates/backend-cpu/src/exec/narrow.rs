//! Products and convolutions of narrow numbers through their hand-written kernels: 8-bit integers, and `bf16` where the processor
//! has AVX-512. The epilogue is a generated function over finished blocks of sums.
//!
//! Not here: operands of other dtypes, which are converted (`staged`), and forms without a kernel (`fallback`).

use ir_core::{DType, SymExpr};
use kernel_ir::runtime::Sizes;
use kernel_ir::{Conv, Matmul, Operand, Program, is_integer_product};

use super::packs::Packed;
use super::template::{Finish, View, conv_shape, flattens, is_constant, strides5, trailing_units};
use super::{Buffers, Call, ExecError};
use crate::micro::narrow::{self, Narrow, NarrowConv, NarrowMatmul, NarrowWeights};
use crate::micro::{BatchDim, Hook, Isa, MicroError};

/// What is computed.
enum Kind {
    /// A product; the batch dimensions of A are contiguous with its rows where it is flat.
    Matmul { flat: bool },
    /// A convolution.
    Conv(Box<Conv>),
}

/// A product or a convolution.
pub(super) struct NarrowOp {
    name: String,
    kind: Kind,
    numbers: Narrow,
    a: View,
    b: View,
    zero: i32,
    ranges: Vec<SymExpr>,
    finish: Finish,
    /// B is a constant that is packed when it is bound.
    packs: bool,
}

/// The numbers of A where there is a kernel for these operands.
fn numbers(program: &Program, a: &Operand, b: &Operand, integers: bool) -> Option<Narrow> {
    let dtype = |o: &Operand| program.buffers[o.buf].dtype;
    let numbers = match (dtype(a), dtype(b)) {
        (DType::U8, DType::I8) if integers => Narrow::U8,
        (DType::I8, DType::I8) if integers => Narrow::I8,
        // Weights that change are converted at each call: packing them would take as long.
        (DType::BF16, DType::BF16) if is_constant(program, b) => Narrow::Bf16,
        _ => return None,
    };
    numbers.is_fast(Isa::best()).then_some(numbers)
}

/// The numbers of a product that has a kernel: B is one matrix of known sizes.
pub(super) fn of_matmul(program: &Program, m: &Matmul) -> Option<Narrow> {
    let rank = m.b.sizes.len();
    let known = m.b.sizes[rank - 2..].iter().chain(&m.b.strides[rank - 2..]).all(|e| e.as_const().is_some());
    let one = (0..rank - 2).all(|d| m.b.strides[d] == SymExpr::ZERO || m.b.sizes[d] == SymExpr::ONE);
    let step = kernel_ir::Step::Matmul(m.clone());
    let integers = is_integer_product(program, &step);
    let float = m.acc == DType::F32;
    (known && one && (integers || float)).then(|| numbers(program, &m.a, &m.b, integers))?
}

/// The numbers of a convolution that has a kernel; its window is static and not transposed.
pub(super) fn of_conv(program: &Program, c: &Conv) -> Option<Narrow> {
    let integers = is_integer_product(program, &kernel_ir::Step::Conv(c.clone()));
    let found = numbers(program, &c.input, &c.weight, integers)?;
    // Windows of single channels are no products. There is a kernel for images where each channel gives one of the result.
    let single = c.groups > 1 && c.weight.sizes[1] == SymExpr::ONE;
    let depthwise = c.weight.sizes.len() <= 4 && c.weight.sizes[0].as_const() == Some(c.groups);
    // Without instructions that pay, products in `f32` have transformed tiles and convert an image once instead of once for each block of
    // columns. Sums of one channel multiply as fast and read half as much.
    let pays = single || narrow::bf16_pays(Isa::best());
    let fits = found != Narrow::Bf16 || c.acc == DType::F32 && (!single || depthwise) && pays;
    fits.then_some(found)
}

impl NarrowOp {
    pub(super) fn matmul(program: &Program, m: &Matmul, numbers: Narrow, finish: Finish) -> NarrowOp {
        let kind = Kind::Matmul { flat: flattens(m) };
        NarrowOp {
            name: m.name.clone(),
            kind,
            numbers,
            a: View::new(program, &m.a),
            b: View::new(program, &m.b),
            zero: m.zero as i32,
            ranges: m.epilogue.ranges.to_vec(),
            finish,
            packs: is_constant(program, &m.b) && m.b.offset.as_const().is_some(),
        }
    }

    pub(super) fn conv(program: &Program, c: &Conv, numbers: Narrow, finish: Finish) -> NarrowOp {
        NarrowOp {
            name: c.name.clone(),
            kind: Kind::Conv(Box::new(c.clone())),
            numbers,
            a: View::new(program, &c.input),
            b: View::new(program, &c.weight),
            zero: c.zero as i32,
            ranges: c.epilogue.ranges.to_vec(),
            finish,
            packs: is_constant(program, &c.weight) && c.weight.offset.as_const().is_some(),
        }
    }

    fn refused(&self, source: MicroError) -> ExecError {
        ExecError::Template { kernel: self.name.clone(), source }
    }

    /// The first byte of an operand.
    fn ptr(&self, view: &View, buffers: &Buffers, s: &Sizes) -> Result<*const u8, ExecError> {
        match self.numbers.size() {
            1 => view.ptr::<u8>(buffers, s),
            _ => Ok(view.ptr::<u16>(buffers, s)?.cast()),
        }
    }

    /// What times of a search depend on.
    pub(super) fn class(&self, s: &Sizes) -> Result<String, ExecError> {
        let strides = s.extents(&self.a.strides)?;
        let numbers = self.numbers;
        Ok(match &self.kind {
            Kind::Matmul { .. } => {
                let (a, b) = (s.extents(&self.a.sizes)?, s.extents(&self.b.sizes)?);
                format!("product {numbers:?} {a:?} x {b:?} strides {strides:?}")
            }
            Kind::Conv(conv) => {
                format!("convolution {numbers:?} {}, strides {strides:?}", self.plan(conv, s)?.shape())
            }
        })
    }

    /// Packs B, whose memory is bound; symbols have their hints. With invalid hints it is packed at each call.
    pub(super) fn pack(&self, buffers: &Buffers, s: &Sizes) -> Result<Option<Packed>, ExecError> {
        if !self.packs {
            return Ok(None);
        }
        if let Kind::Conv(conv) = &self.kind
            && self.plan(conv, s).is_err()
        {
            return Ok(None);
        }
        self.packed(buffers, s).map(|w| Some(Packed::Narrow(w)))
    }

    fn packed(&self, buffers: &Buffers, s: &Sizes) -> Result<NarrowWeights, ExecError> {
        let (ptr, strides) = (self.ptr(&self.b, buffers, s)?, s.extents(&self.b.strides)?);
        // SAFETY: the operand lies inside of its buffer, by the program's promise.
        unsafe {
            match &self.kind {
                Kind::Matmul { .. } => {
                    let rank = strides.len();
                    let sizes = s.extents(&self.b.sizes[rank - 2..])?;
                    let pair = |v: &[i64], d: usize| v[d] as isize;
                    NarrowWeights::pack(
                        (self.numbers, Isa::best()),
                        ptr,
                        [sizes[0] as usize, sizes[1] as usize],
                        [pair(&strides, rank - 2), pair(&strides, rank - 1)],
                        self.zero,
                    )
                }
                Kind::Conv(conv) => {
                    let w = strides5(&strides);
                    self.plan(conv, s)?.pack(ptr, [w.n, w.c, w.d, w.h, w.w])
                }
            }
        }
        .map_err(|e| self.refused(e))
    }

    fn plan(&self, conv: &Conv, s: &Sizes) -> Result<NarrowConv, ExecError> {
        let (input, weight) = (s.extents(&self.a.sizes)?, s.extents(&self.b.sizes)?);
        let shape = conv_shape(conv, &input, &weight, &s.extents(&self.ranges)?);
        let strides = strides5(&s.extents(&self.a.strides)?);
        NarrowConv::new((Isa::best(), self.numbers), shape, strides, self.zero).map_err(|e| self.refused(e))
    }

    pub(super) fn run(&self, call: &Call<'_>, packed: Option<&NarrowWeights>) -> Result<(), ExecError> {
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
        let a = self.ptr(&self.a, call.buffers, s)?;
        // SAFETY: operands lie inside of their buffers, and the plan gives outputs memory of their own.
        unsafe {
            match &self.kind {
                Kind::Matmul { flat } => self.multiply(*flat, a, weights, hook, s)?,
                Kind::Conv(conv) => self.plan(conv, s)?.run(a, weights, hook).map_err(|e| self.refused(e))?,
            }
        }
        Ok(())
    }

    /// # Safety
    /// A lies inside of its buffer.
    unsafe fn multiply(
        &self,
        flat: bool,
        a: *const u8,
        b: &NarrowWeights,
        hook: Hook<'_>,
        s: &Sizes,
    ) -> Result<(), ExecError> {
        let (sizes, strides) = (s.extents(&self.a.sizes)?, s.extents(&self.a.strides)?);
        let rank = sizes.len();
        let lead = if flat { 0 } else { rank - 2 };
        let batch: Vec<BatchDim> = (0..lead)
            .map(|d| BatchDim {
                size: sizes[d] as usize,
                a_stride: strides[d] as isize,
                b_stride: 0,
                c_stride: 0,
            })
            .collect();
        let row = rank - 2 - usize::from(flat) * trailing_units(&sizes[..rank - 1]);
        let call = NarrowMatmul {
            m: sizes[lead..rank - 1].iter().product::<i64>() as usize,
            a,
            strides: [strides[row] as isize, strides[rank - 1] as isize],
            b,
            batch: &batch,
            hook,
        };
        // SAFETY: the caller's promise.
        unsafe { narrow::matmul(&call) }.map_err(|e| self.refused(e))
    }
}
