//! Matrix products, convolutions and attention through the hand-written kernels of `f32`; convolutions also of 16-bit floats, whose input is
//! converted first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ir_core::{DType, SymExpr};
use kernel_ir::{Attention, Conv, Matmul, Operand, Program, Storage};
use smallvec::SmallVec;

use super::chain::Chained;
use super::dropout::DropoutView;
use super::finish::Direct;
use super::jobs::Function;
use super::memory::Block;
use super::operand::{Ready, converted_strides, single};
use super::tall::Tall;
use super::{Buffers, Call, ExecError};
use crate::clif::EpilogueContext;
use crate::micro::{
    self, BatchDim, COut, ConvPlan, ConvShape, ConvWeights, EpilogueBlock, Hook, Isa, MatRef, PackedB,
    Strides5,
};
use kernel_ir::runtime::{Extents, Sizes};

/// Products with fewer rows read the weight unpacked.
pub(super) const PACK_ROWS: i64 = 8;

/// The epilogue of a result.
pub(super) enum Finish {
    /// Applied by the hand-written kernel.
    Direct(Box<Direct>),
    /// Applied by a generated function.
    Hook(Function),
}

impl Finish {
    /// How classes of steps tell finishes apart.
    pub(super) fn class(&self) -> &'static str {
        match self {
            Finish::Direct(_) => "",
            Finish::Hook(_) => ", generated epilogue",
        }
    }

    /// The base pointers of the generated function, where there is one.
    pub(super) fn table(&self, call: &Call<'_>) -> SmallVec<[*mut u8; 8]> {
        match self {
            Finish::Direct(_) => SmallVec::new(),
            Finish::Hook(f) => f.table(call.buffers, call.fault),
        }
    }
}

/// A strided operand.
pub(super) struct View {
    pub(super) root: usize,
    pub(super) offset: SymExpr,
    pub(super) sizes: Vec<SymExpr>,
    pub(super) strides: Vec<SymExpr>,
}

impl View {
    pub(super) fn new(program: &Program, o: &Operand) -> View {
        View {
            root: program.root(o.buf).0 as usize,
            offset: o.offset.clone(),
            sizes: o.sizes.to_vec(),
            strides: o.strides.to_vec(),
        }
    }
    /// Entry `n` of the first dimension.
    pub(super) fn entry(&self, n: usize) -> View {
        View {
            root: self.root,
            offset: &self.offset + &self.strides[0] * n as i64,
            sizes: self.sizes[1..].to_vec(),
            strides: self.strides[1..].to_vec(),
        }
    }
    pub(super) fn ptr<T>(&self, buffers: &Buffers, sizes: &Sizes) -> Result<*const T, ExecError> {
        Ok(buffers.0[self.root].cast::<T>().wrapping_offset(sizes.eval(&self.offset)? as isize).cast_const())
    }
}

/// Whether an operand's memory is known when constants are bound.
pub(super) fn is_constant(program: &Program, o: &Operand) -> bool {
    matches!(program.buffers[program.root(o.buf)].storage, Storage::Constant(_) | Storage::Persistent)
}

/// A matrix product.
pub(super) struct MatmulOp {
    pub(super) name: String,
    a: View,
    b: View,
    pub(super) finish: Finish,
    /// B is one constant matrix for all batch entries: it is packed when bound.
    pub(super) packs: bool,
    /// The batch dimensions of A are contiguous with its rows, and the epilogue was compiled for rows of all of them.
    pub(super) flat: bool,
}

/// Whether `a`'s batch dimensions and rows are one long dimension, and `b` is the same for all.
pub(super) fn flattens(m: &Matmul) -> bool {
    let rank = m.a.sizes.len();
    let batch = 0..rank - 2;
    let shared = batch.clone().all(|d| m.b.strides[d] == SymExpr::ZERO || m.b.sizes[d] == SymExpr::ONE);
    // A dimension of size 1 has no distance to the next: its stride says nothing.
    let mut extent: Option<SymExpr> = None;
    let chained = (0..rank - 1).rev().filter(|d| m.a.sizes[*d] != SymExpr::ONE).all(|d| {
        let next = extent.replace(&m.a.strides[d] * &m.a.sizes[d]);
        next.is_none_or(|distance| m.a.strides[d] == distance)
    });
    shared && chained
}

impl MatmulOp {
    pub(super) fn new(program: &Program, m: &Matmul, finish: Finish) -> MatmulOp {
        let flat = flattens(m);
        let rows = ir_core::numel(&m.a.sizes[..m.a.sizes.len() - 1]);
        let packs = flat && is_constant(program, &m.b) && rows.as_const().is_none_or(|n| n > PACK_ROWS);
        MatmulOp {
            name: m.name.clone(),
            a: View::new(program, &m.a),
            b: View::new(program, &m.b),
            finish,
            packs,
            flat,
        }
    }

    /// What times of a search depend on.
    pub(super) fn class(&self, s: &Sizes) -> Result<String, ExecError> {
        Ok(format!(
            "product f32 {:?} x {:?} strides {:?}{}",
            s.extents(&self.a.sizes)?,
            s.extents(&self.b.sizes)?,
            s.extents(&self.a.strides)?,
            self.finish.class()
        ))
    }

    /// Packs B, whose memory is bound.
    pub(super) fn pack(&self, buffers: &Buffers) -> Result<Option<PackedB>, ExecError> {
        let none = Sizes::default();
        let rank = self.b.sizes.len();
        let known = self.b.sizes[rank - 2..]
            .iter()
            .chain(&self.b.strides[rank - 2..])
            .all(|e| e.as_const().is_some());
        if !self.packs || !known || self.b.offset.as_const().is_none() {
            return Ok(None);
        }
        let (k, n) =
            (none.eval(&self.b.sizes[rank - 2])? as usize, none.eval(&self.b.sizes[rank - 1])? as usize);
        let (ks, ns) =
            (none.eval(&self.b.strides[rank - 2])? as isize, none.eval(&self.b.strides[rank - 1])? as isize);
        let ptr = self.b.ptr::<f32>(buffers, &none)?;
        // SAFETY: the operand lies inside of its constant, by the program's promise.
        let packed = unsafe { PackedB::pack(Isa::best(), ptr, k, n, ks, ns) };
        packed.map(Some).map_err(|source| ExecError::Template { kernel: self.name.clone(), source })
    }

    pub(super) fn run(&self, call: &Call<'_>, packed: Option<&PackedB>) -> Result<(), ExecError> {
        let s = call.sizes;
        let (asz, ast) = (s.extents(&self.a.sizes)?, s.extents(&self.a.strides)?);
        let (bsz, bst) = (s.extents(&self.b.sizes)?, s.extents(&self.b.strides)?);
        let rank = asz.len();
        let (k, n) = (asz[rank - 1] as usize, bsz[rank - 1] as usize);
        let folded = if self.flat { rank - 1 } else { 1 };
        let m = asz[rank - 1 - folded..rank - 1].iter().product::<i64>() as usize;
        let lead = &asz[..rank - 1 - folded];
        if m == 0 || n == 0 || lead.contains(&0) {
            return Ok(());
        }
        let a = MatRef {
            ptr: self.a.ptr(call.buffers, s)?,
            row_stride: ast[rank - 2 - usize::from(self.flat) * trailing_units(&asz[..rank - 1])] as isize,
            col_stride: ast[rank - 1] as isize,
        };
        let table = self.finish.table(call);
        let context = call.context(&table);
        let mut scratch = None;
        let entries = lead.iter().product::<i64>() as usize;
        let (epilogue, out, out_row, out_batch) = match &self.finish {
            Finish::Direct(d) => (
                // SAFETY: columns lie inside of their buffers by the program's promise.
                unsafe { d.epilogue(call.buffers, s, n)? },
                d.out.ptr(call.buffers, s)?,
                s.eval(&d.out.row)? as isize,
                s.extents(&d.out.batch)?,
            ),
            Finish::Hook(f) => {
                let hook = Hook::Raw { f: call.code.epilogue(f.number), ctx: (&raw const context).cast() };
                // More rows are handed over block by block.
                let ptr = if m as i64 > PACK_ROWS {
                    std::ptr::null_mut()
                } else {
                    let block = scratch.insert(Block::new(entries * m * n * size_of::<f32>())?);
                    block.ptr().cast()
                };
                let e = micro::Epilogue { hook: Some(hook), ..micro::Epilogue::default() };
                (e, ptr, n as isize, row_major(lead, (m * n) as i64))
            }
        };
        let done = match packed {
            Some(b) if m as i64 > PACK_ROWS => {
                let c = match self.finish {
                    Finish::Direct(_) => COut::Memory { ptr: out, row_stride: out_row as usize },
                    Finish::Hook(_) => COut::Scratch,
                };
                // SAFETY: operands lie inside of their buffers, and the plan gives the output memory of its own.
                unsafe { micro::matmul_packed(&micro::MatmulPacked { m, a, b, c, epilogue }) }
            }
            _ => {
                let batch: SmallVec<[BatchDim; 2]> = (0..lead.len())
                    .map(|d| BatchDim {
                        size: lead[d] as usize,
                        a_stride: ast[d] as isize,
                        b_stride: bst[d] as isize,
                        c_stride: out_batch[d] as isize,
                    })
                    .collect();
                let b = MatRef {
                    ptr: self.b.ptr(call.buffers, s)?,
                    row_stride: bst[rank - 2] as isize,
                    col_stride: bst[rank - 1] as isize,
                };
                // SAFETY: operands lie inside of their buffers, and the plan gives the output memory of its own.
                unsafe {
                    micro::matmul_strided(&micro::MatmulStrided {
                        isa: Isa::best(),
                        m,
                        n,
                        k,
                        a,
                        b,
                        c: out,
                        c_row_stride: out_row,
                        c_col_stride: 1,
                        batch: &batch,
                        epilogue,
                    })
                }
            }
        };
        done.map_err(|source| ExecError::Template { kernel: self.name.clone(), source })
    }
}

/// Drops trailing dimensions of size 1, but not all: the stride of the row dimension is that of the last one that is left.
pub(super) fn trailing_units(sizes: &[i64]) -> usize {
    sizes.iter().rev().take_while(|n| **n == 1).count().min(sizes.len() - 1)
}

fn row_major(sizes: &[i64], last: i64) -> Extents {
    let mut strides = Extents::from_elem(last, sizes.len());
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d];
    }
    strides
}

/// A convolution.
pub(super) struct ConvOp {
    pub(super) name: String,
    pub(super) conv: Conv,
    pub(super) input: View,
    weight: View,
    /// Of input and weight: what is no `f32` is converted, a constant weight when it is packed.
    pub(super) dtypes: [DType; 2],
    pub(super) finish: Finish,
    /// Set where the lanes of a generated epilogue are pixels.
    pub(super) tall: Option<Tall>,
    pub(super) packs: bool,
    /// Its place in a chain, where it is in one.
    pub(super) chained: Option<Chained>,
    /// Plans by the sizes they were made for.
    plans: Mutex<HashMap<Sizes, Arc<ConvPlan>>>,
}

/// Three spatial numbers; missing leading ones get `fill`.
fn triple<T: Copy>(values: &[T], fill: T) -> [T; 3] {
    let mut out = [fill; 3];
    out[3 - values.len()..].copy_from_slice(values);
    out
}

pub(super) fn strides5(strides: &[i64]) -> Strides5 {
    let [d, h, w] = triple(&strides[2..], 0).map(|x| x as isize);
    Strides5 { n: strides[0] as isize, c: strides[1] as isize, d, h, w }
}

/// The shape of a convolution at known sizes.
pub(super) fn conv_shape(conv: &Conv, input: &[i64], weight: &[i64], out: &[i64]) -> ConvShape {
    let one = |v: &[i64]| triple(v, 1).map(|x| x as usize);
    let zero = |f: &dyn Fn(&(i64, i64)) -> i64| {
        triple(&conv.padding.iter().map(f).collect::<Vec<_>>(), 0).map(|x| x as usize)
    };
    ConvShape {
        batch: input[0] as usize,
        in_channels: input[1] as usize,
        out_channels: out[1] as usize,
        groups: conv.groups as usize,
        input: one(&input[2..]),
        kernel: one(&weight[2..]),
        stride: one(&conv.stride),
        dilation: one(&conv.dilation),
        pad_lo: zero(&|p| p.0),
        pad_hi: zero(&|p| p.1),
    }
}

impl ConvOp {
    pub(super) fn new(program: &Program, conv: &Conv, finish: Finish, tall: Option<Tall>) -> ConvOp {
        ConvOp {
            name: conv.name.clone(),
            input: View::new(program, &conv.input),
            weight: View::new(program, &conv.weight),
            dtypes: [&conv.input, &conv.weight].map(|o| program.buffers[o.buf].dtype),
            packs: is_constant(program, &conv.weight),
            conv: conv.clone(),
            finish,
            tall,
            chained: None,
            plans: Mutex::default(),
        }
    }

    pub(super) fn refused(&self, source: micro::MicroError) -> ExecError {
        ExecError::Template { kernel: self.name.clone(), source }
    }

    pub(super) fn plan(&self, s: &Sizes) -> Result<Arc<ConvPlan>, ExecError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(s) {
            return Ok(plan.clone());
        }
        let (input, weight) = (s.extents(&self.input.sizes)?, s.extents(&self.weight.sizes)?);
        let out = s.extents(&self.conv.epilogue.ranges)?;
        let shape = conv_shape(&self.conv, &input, &weight, &out);
        let spatial = triple(&out[2..], 1).map(|x| x as usize);
        let output = match &self.finish {
            // Rows are flattened pixels: the distance of rows and columns follows from that of pixels.
            Finish::Direct(d) => {
                let w = s.eval(&d.out.row)? as isize;
                let h = w * spatial[2] as isize;
                let n = s.extents(&d.out.batch)?.first().copied().unwrap_or(0) as isize;
                Strides5 { n, c: 1, d: h * spatial[1] as isize, h, w }
            }
            Finish::Hook(_) => Strides5::channels_last(out[1] as usize, spatial),
        };
        let strides = s.extents(&self.input.strides)?;
        let strides =
            if self.dtypes[0] == DType::F32 { strides } else { converted_strides(&input, &strides) };
        let plan =
            ConvPlan::new(Isa::best(), shape, strides5(&strides), output).map_err(|e| self.refused(e))?;
        let plan = Arc::new(plan);
        plans.insert(s.clone(), plan.clone());
        Ok(plan)
    }

    /// An operand in `f32`.
    fn single(&self, operand: usize, buffers: &Buffers, s: &Sizes) -> Result<Ready<'_, f32>, ExecError> {
        let view = [&self.input, &self.weight][operand];
        let layout = (s.extents(&view.sizes)?, s.extents(&view.strides)?);
        single(view, self.dtypes[operand], buffers, s, layout)
    }

    /// What times of a search depend on.
    pub(super) fn class(&self, s: &Sizes) -> Result<String, ExecError> {
        let plan = self.plan(s)?;
        let strides = s.extents(&self.input.strides)?;
        Ok(format!("convolution f32 {}, strides {strides:?}{}", plan.shape, self.finish.class()))
    }

    /// Packs the constant weight in the form that [`ConvOp::pack`] does not choose; `None` where there is one form alone.
    pub(super) fn pack_otherwise(
        &self,
        buffers: &Buffers,
        s: &Sizes,
    ) -> Result<Option<ConvWeights>, ExecError> {
        let (weight, plan) = (self.single(1, buffers, s)?, self.plan(s)?);
        // SAFETY: the weight lies inside of its buffer, by the program's promise, or is a copy.
        Ok(unsafe { plan.pack_otherwise(weight.ptr, weight.five()) })
    }

    /// Packs the constant weight at the given sizes.
    pub(super) fn pack(&self, buffers: &Buffers, s: &Sizes) -> Result<ConvWeights, ExecError> {
        let (weight, plan) = (self.single(1, buffers, s)?, self.plan(s)?);
        // SAFETY: the weight lies inside of its buffer, by the program's promise, or is a copy.
        Ok(unsafe { plan.pack_constant(weight.ptr, weight.five()) })
    }

    /// Runs the convolution alone.
    pub(super) fn run(&self, call: &Call<'_>, packed: Option<&ConvWeights>) -> Result<(), ExecError> {
        let s = call.sizes;
        if s.extents(&self.conv.epilogue.ranges)?.contains(&0) {
            return Ok(());
        }
        let plan = self.plan(s)?;
        let input = self.single(0, call.buffers, s)?;
        self.finish(call, &|output, epilogue| {
            // SAFETY: operands lie inside of their buffers or are copies, and the plan gives the output memory of its own.
            let done = unsafe {
                match packed {
                    Some(weights) => plan.run(input.ptr, weights, output, epilogue),
                    None => {
                        let weight = self.single(1, call.buffers, s)?;
                        plan.run_with(input.ptr, (weight.ptr, weight.five()), output, epilogue)
                    }
                }
            };
            done.map_err(|e| self.refused(e))
        })
    }

    /// Calls `compute` with what the results' blocks are finished by, and where they are stored (null: the epilogue does it).
    pub(super) fn finish(
        &self,
        call: &Call<'_>,
        compute: &dyn Fn(*mut f32, &micro::Epilogue<'_>) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        let s = call.sizes;
        let out = s.extents(&self.conv.epilogue.ranges)?;
        let table = self.finish.table(call);
        let context = call.context(&table);
        let generated = match &self.finish {
            Finish::Direct(d) => {
                // SAFETY: columns lie inside of their buffers by the program's promise.
                let epilogue = unsafe { d.epilogue(call.buffers, s, out[1] as usize)? };
                return compute(d.out.ptr(call.buffers, s)?, &epilogue);
            }
            Finish::Hook(f) => {
                Hook::Raw { f: call.code.epilogue(f.number), ctx: (&raw const context).cast() }
            }
        };
        let Some(tall) = self.tall else {
            let epilogue = micro::Epilogue { hook: Some(generated), ..micro::Epilogue::default() };
            return compute(std::ptr::null_mut(), &epilogue);
        };
        let lines = tall.lines(&out);
        // SAFETY: the kernels hand over blocks of their own; the context's tables outlive the call.
        let turned = |block: &EpilogueBlock| unsafe { lines.call(&generated, block) };
        let (hook, blocks) = (Some(Hook::Closure(&turned)), tall.blocks());
        compute(std::ptr::null_mut(), &micro::Epilogue { hook, blocks, ..micro::Epilogue::default() })
    }
}

/// Fused attention.
pub(super) struct AttentionOp {
    pub(super) name: String,
    q: View,
    k: View,
    v: View,
    mask: Option<(View, DType)>,
    dropout: Option<DropoutView>,
    sums: Option<View>,
    causal: bool,
    scale: f64,
    ranges: Vec<SymExpr>,
    finish: Finish,
}

/// The destination of an attention's log-sum-exp, with its strides.
pub(super) fn sums_place<T>(
    sums: Option<&View>,
    call: &Call<'_>,
) -> Result<Option<(*mut T, [isize; 3])>, ExecError> {
    let Some(view) = sums else { return Ok(None) };
    let s = call.sizes.extents(&view.strides)?;
    let ptr = view.ptr::<T>(call.buffers, call.sizes)?.cast_mut();
    Ok(Some((ptr, [s[0] as isize, s[1] as isize, s[2] as isize])))
}

impl AttentionOp {
    pub(super) fn new(program: &Program, a: &Attention, finish: Finish) -> Result<AttentionOp, ExecError> {
        Ok(AttentionOp {
            name: a.name.clone(),
            q: View::new(program, &a.q),
            k: View::new(program, &a.k),
            v: View::new(program, &a.v),
            mask: a.mask.as_ref().map(|m| (View::new(program, m), program.buffers[m.buf].dtype)),
            dropout: DropoutView::new(program, &a.name, a.dropout.as_ref())?,
            sums: a.sums.as_ref().map(|o| View::new(program, o)),
            causal: a.causal,
            scale: a.scale,
            ranges: a.epilogue.ranges.to_vec(),
            finish,
        })
    }

    pub(super) fn run(&self, call: &Call<'_>) -> Result<(), ExecError> {
        let s = call.sizes;
        let out = s.extents(&self.ranges)?;
        if out.contains(&0) && self.sums.is_none() {
            return Ok(());
        }
        let four = |v: &[SymExpr]| -> Result<[isize; 4], ExecError> {
            let v = s.extents(v)?;
            Ok([v[0] as isize, v[1] as isize, v[2] as isize, v[3] as isize])
        };
        let (q, k) = (s.extents(&self.q.sizes)?, s.extents(&self.k.sizes)?);
        let mask = match &self.mask {
            None => micro::Mask::None,
            Some((m, DType::Bool)) => {
                micro::Mask::Boolean { ptr: m.ptr::<bool>(call.buffers, s)?, strides: four(&m.strides)? }
            }
            Some((m, _)) => {
                micro::Mask::Additive { ptr: m.ptr::<f32>(call.buffers, s)?, strides: four(&m.strides)? }
            }
        };
        let numel = out.iter().product::<i64>() as usize;
        let plain = match &self.finish {
            Finish::Direct(d) if d.is_plain() => Some(d),
            _ => None,
        };
        let mut scratch = None;
        let (o, o_strides) = match plain {
            Some(d) => {
                let b = s.extents(&d.out.batch)?;
                (d.out.ptr(call.buffers, s)?, [b[0] as isize, b[1] as isize, s.eval(&d.out.row)? as isize, 1])
            }
            None => {
                let block = scratch.insert(Block::new(numel * size_of::<f32>())?);
                let [h, l, d] = [out[1], out[2], out[3]].map(|x| x as isize);
                (block.ptr().cast(), [h * l * d, l * d, d, 1])
            }
        };
        let attention = micro::Attention {
            isa: Isa::best(),
            batch: q[0] as usize,
            q_heads: q[1] as usize,
            kv_heads: k[1] as usize,
            q_len: q[2] as usize,
            kv_len: k[2] as usize,
            head_dim: q[3] as usize,
            v_dim: out[3] as usize,
            q: self.q.ptr(call.buffers, s)?,
            q_strides: four(&self.q.strides)?,
            k: self.k.ptr(call.buffers, s)?,
            k_strides: four(&self.k.strides)?,
            v: self.v.ptr(call.buffers, s)?,
            v_strides: four(&self.v.strides)?,
            o,
            o_strides,
            sums: sums_place(self.sums.as_ref(), call)?,
            scale: self.scale as f32,
            mask,
            dropout: self.dropout.as_ref().map(|d| d.ready(call)).transpose()?,
            causal: self.causal.then_some(0),
            empty_row: micro::EmptyRow::Zero,
        };
        // SAFETY: operands lie inside of their buffers, and the output has memory of its own.
        unsafe { micro::attention(&attention) }
            .map_err(|source| ExecError::Template { kernel: self.name.clone(), source })?;
        if let Finish::Hook(f) = &self.finish
            && numel > 0
        {
            self.after(call, f, o, &out);
        }
        Ok(())
    }

    /// Runs the generated epilogue over the finished result, head by head.
    fn after(&self, call: &Call<'_>, f: &Function, o: *mut f32, out: &[i64]) {
        let table = f.table(call.buffers, call.fault);
        let context: EpilogueContext = call.context(&table);
        let (l, d) = (out[2] as usize, out[3] as usize);
        let heads = (out[0] * out[1]) as usize;
        let f = call.code.epilogue(f.number);
        let (o, context) = (o as usize, &context);
        micro::team::par_for(heads, &|h| {
            let ptr = (o as *mut f32).wrapping_add(h * l * d);
            let block = EpilogueBlock { batch: h, row0: 0, row1: l, col0: 0, col1: d, ptr, row_stride: d };
            // SAFETY: the block is this task's part of the scratch; the context's tables outlive the call.
            unsafe { f(&block, std::ptr::from_ref(context).cast()) };
        });
    }
}
