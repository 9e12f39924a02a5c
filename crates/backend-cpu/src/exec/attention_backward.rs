//! The gradients of attention: operands in the dtype of arithmetic, and gradients of 16 bits narrowed after it.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ir_core::DType;
use kernel_ir::{ExternCall, ExternOp, Operand, Program};

use super::dropout::DropoutView;
use super::memory::Block;
use super::operand::{Ready, single};
use super::staged;
use super::template::View;
use super::{Call, ExecError};
use crate::micro::{self, Isa, RowValues, Tensor4, team};
use crate::vir::LowerError;

type Place = (View, DType);

/// The step.
pub(super) struct AttentionBackwardOp {
    name: String,
    /// Cotangent, queries, keys, values, sums, deltas.
    inputs: [Place; 6],
    mask: Option<Place>,
    dropout: Option<DropoutView>,
    outputs: [Place; 3],
    causal: bool,
    scale: f64,
}

impl AttentionBackwardOp {
    pub(super) fn new(
        program: &Program,
        call: &ExternCall,
        causal: bool,
        scale: f64,
    ) -> Result<AttentionBackwardOp, ExecError> {
        let place = |o: &Operand| (View::new(program, o), program.buffers[o.buf].dtype);
        let malformed = || {
            let what = format!("backward of attention `{}` has the wrong number of operands", call.name);
            ExecError::Malformed(what)
        };
        let Some((six, rest)) = call.inputs.split_first_chunk::<6>() else { return Err(malformed()) };
        let Some((three, [])) = call.outputs.split_first_chunk::<3>() else { return Err(malformed()) };
        let (mask, dropout) = call.mask_and_dropout();
        let drops = matches!(call.op, ExternOp::AttentionBackward { dropout: Some(_), .. });
        if rest.len() > 1 + usize::from(drops) || drops != dropout.is_some() {
            return Err(malformed());
        }
        let op = AttentionBackwardOp {
            name: call.name.clone(),
            inputs: six.each_ref().map(place),
            mask: mask.map(place),
            dropout: DropoutView::new(program, &call.name, dropout.as_ref())?,
            outputs: three.each_ref().map(place),
            causal,
            scale,
        };
        let dtype = op.inputs[1].1;
        let added = op.mask.iter().map(|m| m.1).filter(|d| *d != DType::Bool);
        let floats: Vec<DType> = op.inputs[..4].iter().map(|p| p.1).chain(added).collect();
        let rows = op.inputs[4..].iter().all(|p| p.1 == dtype.compute());
        let same = op.outputs.iter().chain(&op.inputs[..4]).all(|p| p.1 == dtype);
        if rows && same && staged::takes(&floats, dtype.compute()) {
            return Ok(op);
        }
        Err(LowerError::DType { kernel: op.name, dtype }.into())
    }

    pub(super) fn run(&self, call: &Call<'_>) -> Result<(), ExecError> {
        // Without heads of keys there are no gradients.
        if call.sizes.extents(&self.inputs[2].0.sizes)?[..2].contains(&0) {
            return Ok(());
        }
        if self.inputs[1].1 == DType::F64 { self.double(call) } else { self.single(call) }
    }

    fn dropout(&self, call: &Call<'_>) -> Result<Option<micro::Dropout>, ExecError> {
        self.dropout.as_ref().map(|d| d.ready(call)).transpose()
    }

    fn single(&self, call: &Call<'_>) -> Result<(), ExecError> {
        let read = |(view, dtype): &Place| -> Result<Ready<'_, f32>, ExecError> {
            let shape = (call.sizes.extents(&view.sizes)?, call.sizes.extents(&view.strides)?);
            single(view, *dtype, call.buffers, call.sizes, shape)
        };
        let [g, q, k, v, sums, deltas] = self.inputs.each_ref();
        let (g, q, k, v, sums, deltas) = (read(g)?, read(q)?, read(k)?, read(v)?, read(sums)?, read(deltas)?);
        let added = match &self.mask {
            Some(m) if m.1 != DType::Bool => Some(read(m)?),
            _ => None,
        };
        let mask = match (&added, &self.mask) {
            (Some(m), _) => micro::Mask::Additive { ptr: m.ptr, strides: m.four() },
            (None, Some((m, _))) => {
                let strides = four(&call.sizes.extents(&m.strides)?);
                micro::Mask::Boolean { ptr: m.ptr::<bool>(call.buffers, call.sizes)?, strides }
            }
            _ => micro::Mask::None,
        };
        let results = [0, 1, 2].map(|n| self.result(call, n));
        let [dq, dk, dv] = results;
        let (dq, dk, dv) = (dq?, dk?, dv?);
        let size = |x: &Ready<'_, f32>, d: usize| x.sizes[d] as usize;
        let tensor = |x: &Ready<'_, f32>| Tensor4 { ptr: x.ptr, strides: x.four() };
        let of_rows = |x: &Ready<'_, f32>| RowValues { ptr: x.ptr, strides: three(&x.strides) };
        let backward = micro::AttentionBackward {
            isa: Isa::best(),
            batch: size(&q, 0),
            q_heads: size(&q, 1),
            kv_heads: size(&k, 1),
            q_len: size(&q, 2),
            kv_len: size(&k, 2),
            head_dim: size(&q, 3),
            v_dim: size(&v, 3),
            g: tensor(&g),
            q: tensor(&q),
            k: tensor(&k),
            v: tensor(&v),
            sums: of_rows(&sums),
            deltas: of_rows(&deltas),
            scale: self.scale as f32,
            mask,
            dropout: self.dropout(call)?,
            causal: self.causal,
            dq: dq.to,
            dk: dk.to,
            dv: dv.to,
        };
        // SAFETY: operands lie inside of their buffers or are copies; results have memory of their own.
        unsafe { micro::attention_backward(&backward) }
            .map_err(|source| ExecError::Template { kernel: self.name.clone(), source })?;
        [dq, dk, dv].iter().zip(&self.outputs).try_for_each(|(result, place)| narrow(call, result, place))
    }

    /// The destination of gradient `n`: its own memory, or `f32` that is narrowed later.
    fn result(&self, call: &Call<'_>, n: usize) -> Result<Wide, ExecError> {
        let (view, dtype) = &self.outputs[n];
        if *dtype == DType::F32 {
            let ptr = view.ptr::<f32>(call.buffers, call.sizes)?.cast_mut();
            return Ok(Wide {
                to: Tensor4 { ptr, strides: four(&call.sizes.extents(&view.strides)?) },
                copy: None,
            });
        }
        let sizes = call.sizes.extents(&view.sizes)?;
        let [_, h, l, d] = [0, 1, 2, 3].map(|n| sizes[n] as isize);
        let copy = Block::new(sizes.iter().product::<i64>() as usize * size_of::<f32>())?;
        let to = Tensor4 { ptr: copy.ptr().cast(), strides: [h * l * d, l * d, d, 1] };
        Ok(Wide { to, copy: Some(copy) })
    }

    fn double(&self, call: &Call<'_>) -> Result<(), ExecError> {
        let s = call.sizes;
        let ptr = |view: &View| view.ptr::<f64>(call.buffers, s);
        let tensor = |(view, _): &Place| -> Result<(*const f64, [isize; 4]), ExecError> {
            Ok((ptr(view)?, four(&s.extents(&view.strides)?)))
        };
        let of_rows = |(view, _): &Place| -> Result<RowValues<*const f64>, ExecError> {
            Ok(RowValues { ptr: ptr(view)?, strides: three(&s.extents(&view.strides)?) })
        };
        let result = |(view, _): &Place| -> Result<Tensor4<*mut f64>, ExecError> {
            Ok(Tensor4 { ptr: ptr(view)?.cast_mut(), strides: four(&s.extents(&view.strides)?) })
        };
        let mask = match &self.mask {
            None => micro::MaskF64::None,
            Some((m, DType::Bool)) => {
                micro::MaskF64::Boolean(m.ptr::<bool>(call.buffers, s)?, four(&s.extents(&m.strides)?))
            }
            Some((m, _)) => micro::MaskF64::Additive(ptr(m)?, four(&s.extents(&m.strides)?)),
        };
        let [g, q, k, v, sums, deltas] = &self.inputs;
        let (q_sizes, k_sizes, width) =
            (s.extents(&q.0.sizes)?, s.extents(&k.0.sizes)?, s.extents(&v.0.sizes)?[3]);
        let attention = micro::AttentionF64 {
            batch: q_sizes[0] as usize,
            q_heads: q_sizes[1] as usize,
            kv_heads: k_sizes[1] as usize,
            q_len: q_sizes[2] as usize,
            kv_len: k_sizes[2] as usize,
            head_dim: q_sizes[3] as usize,
            v_dim: width as usize,
            q: tensor(q)?,
            k: tensor(k)?,
            v: tensor(v)?,
            o: std::ptr::null_mut(),
            sums: None,
            scale: self.scale,
            mask,
            dropout: self.dropout(call)?,
            causal: self.causal,
        };
        let (ptr, strides) = tensor(g)?;
        let [dq, dk, dv] = &self.outputs;
        let backward = micro::AttentionBackwardF64 {
            attention,
            g: Tensor4 { ptr, strides },
            sums: of_rows(sums)?,
            deltas: of_rows(deltas)?,
            dq: result(dq)?,
            dk: result(dk)?,
            dv: result(dv)?,
        };
        // SAFETY: operands and gradients lie inside of their buffers, by the program's promise.
        unsafe { micro::attention_backward_f64(&backward) };
        Ok(())
    }
}

/// A gradient in `f32`, with its memory where that is temporary.
struct Wide {
    to: Tensor4<*mut f32>,
    copy: Option<Block>,
}

fn four(strides: &[i64]) -> [isize; 4] {
    [0, 1, 2, 3].map(|d| strides[d] as isize)
}

fn three(strides: &[i64]) -> [isize; 3] {
    [0, 1, 2].map(|d| strides[d] as isize)
}

/// Stores a gradient of 16 bits.
fn narrow(call: &Call<'_>, result: &Wide, (view, dtype): &Place) -> Result<(), ExecError> {
    if result.copy.is_none() {
        return Ok(());
    }
    let (sizes, strides) = (call.sizes.extents(&view.sizes)?, four(&call.sizes.extents(&view.strides)?));
    match dtype {
        DType::BF16 => rows(result, view.ptr::<bf16>(call.buffers, call.sizes)?, &sizes, strides),
        _ => rows(result, view.ptr::<f16>(call.buffers, call.sizes)?, &sizes, strides),
    }
    Ok(())
}

fn rows<T: Narrow>(result: &Wide, to: *const T, sizes: &[i64], strides: [isize; 4]) {
    let [b, h, l, d] = [0, 1, 2, 3].map(|n| sizes[n] as usize);
    let (from, to) = (result.to.ptr as usize, to as usize);
    team::par_for_work(b * h * l, b * h * l * d, &|row| {
        let (i, head) = (row % l, row / l);
        let at = [head / h, head % h, i].iter().zip(strides).map(|(n, s)| *n as isize * s).sum();
        let to = (to as *mut T).wrapping_offset(at);
        // SAFETY: the row is one of the gradient, dense in its copy, and lies inside of its buffer.
        unsafe { T::narrow((from as *const f32).wrapping_add(row * d), to, strides[3], d) };
    });
}

/// A 16-bit float that is written.
trait Narrow: Copy {
    /// Converts `n` values and stores them `step` apart.
    ///
    /// # Safety
    /// The values must be readable and the places writable.
    unsafe fn narrow(from: *const f32, to: *mut Self, step: isize, n: usize);
}

macro_rules! narrow {
    ($($ty:ident)*) => {$(
        impl Narrow for $ty {
            unsafe fn narrow(from: *const f32, to: *mut $ty, step: isize, n: usize) {
                // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
                let from = unsafe { std::slice::from_raw_parts(from, n) };
                if step == 1 {
                    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
                    unsafe { std::slice::from_raw_parts_mut(to, n) }.convert_from_f32_slice(from);
                    return;
                }
                for (i, x) in from.iter().enumerate() {
                    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
                    unsafe { *to.offset(i as isize * step) = $ty::from_f32(*x) };
                }
            }
        }
    )*};
}

narrow!(bf16 f16);
