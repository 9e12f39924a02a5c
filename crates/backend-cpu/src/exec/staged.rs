//! Products and attention in dtypes that the hand-written kernels do not read or finish: 16-bit floats and `f64`. Operands of 16 bits
//! are converted to `f32` at each call (constant weights of products once, when they are bound: they are kept in the layout of their
//! kernel), the result goes to temporary memory, and the epilogue is a loop kernel over it.
//!
//! Convolutions are not here: those of 16-bit floats are in `template`, those in `f64` in `fallback`.

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use half::bf16;
use ir_core::{DType, SymExpr};
use kernel_ir::{
    Attention, BufId, Buffer, Epilogue, Groups, Inst, InstKind, LoopKernel, Matmul, Program, Stage, Storage,
};

use super::dropout::DropoutView;
use super::grouped::Grouped;
use super::jobs::Jobs;
use super::loop_op::LoopOp;
use super::memory::Block;
use super::operand::{Ready, single};
use super::packs::Packed;
use super::template::{View, flattens, is_constant, sums_place};
use super::{Buffers, Call, ExecError};
#[cfg(target_arch = "x86_64")]
use crate::micro::narrow;
use crate::micro::{self, BatchDim, COut, Isa, MatRef, PackedB};
use crate::vir::lower_kernel;
use kernel_ir::runtime::{Extents, Sizes};

/// Operands and operation.
enum Kind {
    Matmul {
        flat: bool,
    },
    /// It has its operands itself.
    Grouped(Box<Grouped>),
    Attention {
        causal: bool,
        scale: f64,
        sums: Option<View>,
        dropout: Option<DropoutView>,
    },
}

/// A template that writes its result to memory of the call.
pub(super) struct StagedOp {
    name: String,
    kind: Kind,
    operands: Vec<(View, DType)>,
    /// `f64` rather than `f32`.
    wide: bool,
    ranges: Vec<SymExpr>,
    result: usize,
    finish: LoopOp,
    /// The second operand is a constant that is converted and packed when it is bound.
    packs: bool,
}

/// Whether operands of these dtypes are supported here, for results in `acc`.
pub(super) fn takes(dtypes: &[DType], acc: DType) -> bool {
    let narrow = |d: &DType| matches!(d, DType::BF16 | DType::F16 | DType::F32);
    match acc {
        DType::F64 => dtypes.iter().all(|d| *d == DType::F64),
        DType::F32 => dtypes.iter().all(narrow),
        _ => false,
    }
}

/// Row-major strides of symbolic sizes.
fn row_major(sizes: &[SymExpr]) -> Vec<SymExpr> {
    let mut strides = vec![SymExpr::ONE; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = &strides[d] * &sizes[d];
    }
    strides
}

/// The common parts of all kinds of template.
struct Parts<'a> {
    name: &'a str,
    origins: &'a [String],
    acc: DType,
    epilogue: &'a Epilogue,
    strides: Vec<SymExpr>,
}

impl StagedOp {
    pub(super) fn matmul(program: &mut Program, m: &Matmul, jobs: &mut Jobs) -> Result<Self, ExecError> {
        let operands = [&m.a, &m.b].map(|o| (View::new(program, o), program.buffers[o.buf].dtype));
        let rank = m.b.sizes.len();
        let own = m.b.sizes[rank - 2..].iter().chain(&m.b.strides[rank - 2..]).chain([&m.b.offset]);
        let known = own.into_iter().all(|e| e.as_const().is_some());
        let packs = known && flattens(m) && m.acc == DType::F32 && is_constant(program, &m.b);
        let strides = row_major(&m.epilogue.ranges);
        let parts = Parts { name: &m.name, origins: &m.origins, acc: m.acc, epilogue: &m.epilogue, strides };
        let op = StagedOp::new(program, parts, Kind::Matmul { flat: flattens(m) }, operands.into(), jobs)?;
        Ok(StagedOp { packs, ..op })
    }

    pub(super) fn grouped(
        program: &mut Program,
        m: &Matmul,
        groups: &Groups,
        jobs: &mut Jobs,
    ) -> Result<Self, ExecError> {
        let kind = Kind::Grouped(Box::new(Grouped::new(program, m, groups)));
        let strides = row_major(&m.epilogue.ranges);
        let parts = Parts { name: &m.name, origins: &m.origins, acc: m.acc, epilogue: &m.epilogue, strides };
        StagedOp::new(program, parts, kind, Vec::new(), jobs)
    }

    pub(super) fn attention(
        program: &mut Program,
        a: &Attention,
        jobs: &mut Jobs,
    ) -> Result<Self, ExecError> {
        let all = [&a.q, &a.k, &a.v].into_iter().chain(&a.mask);
        let operands = all.map(|o| (View::new(program, o), program.buffers[o.buf].dtype)).collect();
        let strides = row_major(&a.epilogue.ranges);
        let parts = Parts { name: &a.name, origins: &a.origins, acc: a.acc, epilogue: &a.epilogue, strides };
        let sums = a.sums.as_ref().map(|o| View::new(program, o));
        let dropout = DropoutView::new(program, &a.name, a.dropout.as_ref())?;
        let kind = Kind::Attention { causal: a.causal, scale: a.scale, sums, dropout };
        StagedOp::new(program, parts, kind, operands, jobs)
    }

    fn new(
        program: &mut Program,
        parts: Parts<'_>,
        kind: Kind,
        operands: Vec<(View, DType)>,
        jobs: &mut Jobs,
    ) -> Result<Self, ExecError> {
        let ranges = &parts.epilogue.ranges;
        let buffer = Buffer {
            name: format!("{}_result", parts.name),
            dtype: parts.acc,
            sizes: ranges.clone(),
            strides: parts.strides.into_iter().collect(),
            offset: SymExpr::ZERO,
            storage: Storage::Arena,
        };
        let result: BufId = program.buffers.push(buffer);
        let index: ir_core::Shape = (0..ranges.len() as u32).map(SymExpr::loop_var).collect();
        let read = |inst: &Inst| match inst.kind {
            InstKind::Template => {
                let kind = InstKind::Load { buf: result, index: index.clone(), mask: None };
                Inst { dtype: inst.dtype, kind }
            }
            _ => inst.clone(),
        };
        let insts = parts.epilogue.insts.iter().map(read).collect();
        let kernel = lower_kernel(
            program,
            &LoopKernel {
                name: parts.name.to_owned(),
                origins: parts.origins.to_vec(),
                outer: ranges.clone(),
                accs: Vec::new(),
                stages: vec![Stage { inner: ir_core::Shape::new(), insts }],
            },
        )?;
        let finish = LoopOp::new(vec![kernel], jobs);
        Ok(StagedOp {
            name: parts.name.to_owned(),
            kind,
            operands,
            wide: parts.acc == DType::F64,
            ranges: ranges.to_vec(),
            result: result.0 as usize,
            finish,
            packs: false,
        })
    }

    /// What times of a search depend on; `None` for attention, which packs nothing.
    pub(super) fn class(&self, s: &Sizes) -> Result<Option<String>, ExecError> {
        if !matches!(self.kind, Kind::Matmul { .. }) {
            return Ok(None);
        }
        let [(a, from), (b, to)] = &self.operands[..] else { return Ok(None) };
        let (sizes, strides) = (s.extents(&a.sizes)?, s.extents(&a.strides)?);
        Ok(Some(format!("product {from} {sizes:?} x {to} {:?} strides {strides:?}", s.extents(&b.sizes)?)))
    }

    /// Converts and packs a constant weight; symbols have their hints.
    pub(super) fn pack(&self, buffers: &Buffers, s: &Sizes) -> Result<Option<Packed>, ExecError> {
        if let Kind::Grouped(grouped) = &self.kind {
            return grouped.pack(buffers, s);
        }
        if !self.packs {
            return Ok(None);
        }
        match &self.kind {
            Kind::Matmul { .. } => {
                // One matrix: the batch, which may have no entries yet, is left out.
                let (view, dtype) = &self.operands[1];
                let rank = view.sizes.len();
                let (sizes, strides) =
                    (s.extents(&view.sizes[rank - 2..])?, s.extents(&view.strides[rank - 2..])?);
                let b = single(view, *dtype, buffers, s, (sizes, strides))?;
                let (k, n) = (b.sizes[0] as usize, b.sizes[1] as usize);
                // SAFETY: the operand lies inside of its constant, by the program's promise, or is a copy.
                let packed = unsafe {
                    PackedB::pack(Isa::best(), b.ptr, k, n, b.strides[0] as isize, b.strides[1] as isize)
                };
                packed.map(|p| Some(Packed::Matmul(p))).map_err(self.refused())
            }
            Kind::Attention { .. } | Kind::Grouped(_) => Ok(None),
        }
    }

    pub(super) fn run(&self, call: &Call<'_>, packed: Option<&Packed>) -> Result<(), ExecError> {
        let out = call.sizes.extents(&self.ranges)?;
        let count = out.iter().try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
        let bytes = count.and_then(|n| n.checked_mul(if self.wide { 8 } else { 4 }));
        let block = Block::new(bytes.ok_or(ExecError::OutOfMemory(usize::MAX))?)?;
        let sums = if let Kind::Attention { sums, .. } = &self.kind { sums.as_ref() } else { None };
        if out.contains(&0) && sums.is_none() {
            return Ok(());
        }
        let result = block.ptr();
        match &self.kind {
            Kind::Grouped(grouped) => grouped.run(call, packed, result)?,
            Kind::Matmul { flat } if self.wide => self.matmul_f64(call, *flat, result.cast())?,
            Kind::Matmul { flat } => match packed {
                Some(Packed::Matmul(b)) => self.matmul_packed(call, b, result.cast())?,
                _ => self.matmul_f32(call, *flat, result.cast())?,
            },
            Kind::Attention { causal, scale, sums, dropout } if self.wide => {
                let results = (result.cast(), sums_place(sums.as_ref(), call)?);
                let dropout = dropout.as_ref().map(|d| d.ready(call)).transpose()?;
                self.attention_f64(call, (*causal, *scale, dropout), &out, results)?;
            }
            Kind::Attention { causal, scale, sums, dropout } => {
                let results = (result.cast(), sums_place(sums.as_ref(), call)?);
                let dropout = dropout.as_ref().map(|d| d.ready(call)).transpose()?;
                self.attention_f32(call, (*causal, *scale, dropout), &out, results)?;
            }
        }
        let mut buffers = Buffers(call.buffers.0.clone());
        buffers.0[self.result] = result;
        self.finish.run(&Call { buffers: &buffers, ..*call })
    }

    fn refused(&self) -> impl FnOnce(micro::MicroError) -> ExecError + use<'_> {
        |source| ExecError::Template { kernel: self.name.clone(), source }
    }

    /// An operand in `f32`.
    fn single(&self, buffers: &Buffers, s: &Sizes, n: usize) -> Result<Ready<'_, f32>, ExecError> {
        let (view, dtype) = &self.operands[n];
        single(view, *dtype, buffers, s, (s.extents(&view.sizes)?, s.extents(&view.strides)?))
    }

    /// An operand of another dtype, unconverted.
    fn plain<T>(&self, call: &Call<'_>, n: usize) -> Result<Ready<'_, T>, ExecError> {
        let (view, _) = &self.operands[n];
        let (sizes, strides) = (call.sizes.extents(&view.sizes)?, call.sizes.extents(&view.strides)?);
        let ptr = view.ptr::<T>(call.buffers, call.sizes)?;
        Ok(Ready { ptr, sizes, strides, copy: None, operand: PhantomData })
    }

    fn matmul_f32(&self, call: &Call<'_>, flat: bool, c: *mut f32) -> Result<(), ExecError> {
        #[cfg(target_arch = "x86_64")]
        if self.operands.iter().all(|(_, dtype)| *dtype == DType::BF16) {
            let (a, b) = (self.plain::<bf16>(call, 0)?, self.plain::<bf16>(call, 1)?);
            let g = product(&a, &b, flat);
            let (a, b, batch) = ((a.ptr, g.a), (b.ptr, g.b), &g.batch[..]);
            // SAFETY: operands lie inside of their buffers; the result has memory of its own.
            if unsafe { narrow::Bf16Product { m: g.m, n: g.n, k: g.k, a, b, c, batch }.run() } {
                return Ok(());
            }
        }
        let (a, b) = (self.single(call.buffers, call.sizes, 0)?, self.single(call.buffers, call.sizes, 1)?);
        let g = product(&a, &b, flat);
        // SAFETY: operands lie inside of their buffers or are copies; the result has memory of its own.
        unsafe {
            micro::matmul_strided(&micro::MatmulStrided {
                isa: Isa::best(),
                m: g.m,
                n: g.n,
                k: g.k,
                a: MatRef { ptr: a.ptr, row_stride: g.a[0], col_stride: g.a[1] },
                b: MatRef { ptr: b.ptr, row_stride: g.b[0], col_stride: g.b[1] },
                c,
                c_row_stride: g.n as isize,
                c_col_stride: 1,
                batch: &g.batch,
                epilogue: micro::Epilogue::default(),
            })
        }
        .map_err(self.refused())
    }

    /// A product with one packed matrix B for all batch entries.
    fn matmul_packed(&self, call: &Call<'_>, b: &PackedB, c: *mut f32) -> Result<(), ExecError> {
        let a = self.single(call.buffers, call.sizes, 0)?;
        let sizes = call.sizes.extents(&self.operands[1].0.sizes)?;
        let shape = Ready {
            ptr: a.ptr,
            strides: Extents::from_elem(0, sizes.len()),
            sizes,
            copy: None,
            operand: PhantomData,
        };
        let g = product(&a, &shape, true);
        for entry in 0..g.batch.iter().map(|d| d.size).product() {
            let (mut rest, mut from, mut to) = (entry, 0isize, 0isize);
            for d in g.batch.iter().rev() {
                let at = (rest % d.size) as isize;
                rest /= d.size;
                (from, to) = (from + at * d.a_stride, to + at * d.c_stride);
            }
            let a = MatRef { ptr: a.ptr.wrapping_offset(from), row_stride: g.a[0], col_stride: g.a[1] };
            let c = COut::Memory { ptr: c.wrapping_offset(to), row_stride: g.n };
            let epilogue = micro::Epilogue::default();
            // SAFETY: operands lie inside of their buffers or are copies; the result has memory of its own.
            unsafe { micro::matmul_packed(&micro::MatmulPacked { m: g.m, a, b, c, epilogue }) }
                .map_err(self.refused())?;
        }
        Ok(())
    }

    fn matmul_f64(&self, call: &Call<'_>, flat: bool, c: *mut f64) -> Result<(), ExecError> {
        let (a, b) = (self.plain::<f64>(call, 0)?, self.plain::<f64>(call, 1)?);
        let g = product(&a, &b, flat);
        // SAFETY: operands lie inside of their buffers or are copies; the result has memory of its own.
        unsafe {
            micro::matmul_f64(&micro::MatmulF64 {
                m: g.m,
                n: g.n,
                k: g.k,
                a: a.ptr,
                a_strides: g.a,
                b: b.ptr,
                b_strides: g.b,
                c,
                c_strides: [g.n as isize, 1],
                batch: &g.batch,
            });
        }
        Ok(())
    }

    fn attention_f32(
        &self,
        call: &Call<'_>,
        (causal, scale, dropout): (bool, f64, Option<micro::Dropout>),
        out: &[i64],
        (o, sums): (*mut f32, Option<(*mut f32, [isize; 3])>),
    ) -> Result<(), ExecError> {
        let (mut added, mut seen) = (None, None);
        match self.operands.get(3) {
            Some((_, DType::Bool)) => seen = Some(self.plain::<bool>(call, 3)?),
            Some(_) => added = Some(self.single(call.buffers, call.sizes, 3)?),
            None => {}
        }
        let mask = match (&added, &seen) {
            (Some(m), _) => micro::Mask::Additive { ptr: m.ptr, strides: m.four() },
            (_, Some(m)) => micro::Mask::Boolean { ptr: m.ptr, strides: m.four() },
            _ => micro::Mask::None,
        };
        let rest = Rest { out, o, sums, scale: scale as f32, mask, dropout, causal };
        #[cfg(target_arch = "x86_64")]
        if self.operands[..3].iter().all(|(_, dtype)| *dtype == DType::BF16) {
            let [q, k, v] = [self.plain::<bf16>(call, 0)?, self.plain(call, 1)?, self.plain(call, 2)?];
            // SAFETY: operands lie inside of their buffers; the result has memory of its own.
            if unsafe { micro::attention_bf16(&rest.attention(&q, &k, &v)) }.map_err(self.refused())? {
                return Ok(());
            }
        }
        let single = |n: usize| self.single(call.buffers, call.sizes, n);
        let (q, k, v) = (single(0)?, single(1)?, single(2)?);
        // SAFETY: operands lie inside of their buffers or are copies; the result has memory of its own.
        unsafe { micro::attention(&rest.attention(&q, &k, &v)) }.map_err(self.refused())
    }

    fn attention_f64(
        &self,
        call: &Call<'_>,
        (causal, scale, dropout): (bool, f64, Option<micro::Dropout>),
        out: &[i64],
        (o, sums): (*mut f64, Option<(*mut f64, [isize; 3])>),
    ) -> Result<(), ExecError> {
        let [q, k, v] = [self.plain(call, 0)?, self.plain(call, 1)?, self.plain(call, 2)?];
        let (mut added, mut seen) = (None, None);
        match self.operands.get(3) {
            Some((_, DType::Bool)) => seen = Some(self.plain::<bool>(call, 3)?),
            Some(_) => added = Some(self.plain::<f64>(call, 3)?),
            None => {}
        }
        let mask = match (&added, &seen) {
            (Some(m), _) => micro::MaskF64::Additive(m.ptr, m.four()),
            (_, Some(m)) => micro::MaskF64::Boolean(m.ptr, m.four()),
            _ => micro::MaskF64::None,
        };
        let size = |x: &[i64], d: usize| x[d] as usize;
        let attention = micro::AttentionF64 {
            batch: size(&q.sizes, 0),
            q_heads: size(&q.sizes, 1),
            kv_heads: size(&k.sizes, 1).max(1),
            q_len: size(&q.sizes, 2),
            kv_len: size(&k.sizes, 2),
            head_dim: size(&q.sizes, 3),
            v_dim: size(out, 3),
            q: (q.ptr, q.four()),
            k: (k.ptr, k.four()),
            v: (v.ptr, v.four()),
            o,
            sums,
            scale,
            mask,
            dropout,
            causal,
        };
        // SAFETY: operands lie inside of their buffers or are copies; the result has memory of its own.
        unsafe { micro::attention_f64(&attention) };
        Ok(())
    }
}

/// What attention takes besides Q, K and V.
struct Rest<'a> {
    /// Sizes of the result.
    out: &'a [i64],
    o: *mut f32,
    sums: Option<(*mut f32, [isize; 3])>,
    scale: f32,
    mask: micro::Mask,
    dropout: Option<micro::Dropout>,
    causal: bool,
}

impl Rest<'_> {
    fn attention<T>(&self, q: &Ready<'_, T>, k: &Ready<'_, T>, v: &Ready<'_, T>) -> micro::Attention<T> {
        let [h, l, d] = [self.out[1], self.out[2], self.out[3]].map(|x| x as isize);
        let size = |x: &[i64], d: usize| x[d] as usize;
        micro::Attention {
            isa: Isa::best(),
            batch: size(&q.sizes, 0),
            q_heads: size(&q.sizes, 1),
            kv_heads: size(&k.sizes, 1),
            q_len: size(&q.sizes, 2),
            kv_len: size(&k.sizes, 2),
            head_dim: size(&q.sizes, 3),
            v_dim: size(self.out, 3),
            q: q.ptr,
            q_strides: q.four(),
            k: k.ptr,
            k_strides: k.four(),
            v: v.ptr,
            v_strides: v.four(),
            o: self.o,
            o_strides: [h * l * d, l * d, d, 1],
            sums: self.sums,
            scale: self.scale,
            mask: self.mask,
            dropout: self.dropout,
            causal: self.causal.then_some(0),
            empty_row: micro::EmptyRow::Zero,
        }
    }
}

/// The geometry of a product with a row-major result.
struct Product {
    m: usize,
    n: usize,
    k: usize,
    /// Row and column stride.
    a: [isize; 2],
    b: [isize; 2],
    batch: Vec<BatchDim>,
}

/// `flat`: one matrix B for all batch entries. It is one product where the rows of A follow each other, too.
fn product<T>(a: &Ready<'_, T>, b: &Ready<'_, T>, flat: bool) -> Product {
    let rank = a.sizes.len();
    let (k, n) = (a.sizes[rank - 1], b.sizes[rank - 1]);
    let chained = |d: usize| a.sizes[d] == 1 || a.strides[d] == a.strides[d + 1] * a.sizes[d + 1];
    // The stride of a dimension of size 1 is meaningless: then entries stay separate.
    let flat = flat && a.sizes[1..rank - 1].iter().all(|n| *n > 1) && (0..rank - 2).all(chained);
    let lead = if flat { 0 } else { rank - 2 };
    let m = a.sizes[lead..rank - 1].iter().product::<i64>();
    let mut step = m * n;
    let mut batch = Vec::with_capacity(lead);
    for d in (0..lead).rev() {
        batch.push(BatchDim {
            size: a.sizes[d] as usize,
            a_stride: a.strides[d] as isize,
            b_stride: b.strides[d] as isize,
            c_stride: step as isize,
        });
        step *= a.sizes[d];
    }
    batch.reverse();
    let pair = |s: &[i64]| [s[rank - 2] as isize, s[rank - 1] as isize];
    Product { m: m as usize, n: n as usize, k: k as usize, a: pair(&a.strides), b: pair(&b.strides), batch }
}
