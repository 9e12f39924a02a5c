//! Matrix products of programs as calls of a library: which epilogues the library does itself, and which wait for a kernel.

use std::sync::{Arc, OnceLock};

use gpu_codegen::{
    Packed, StridedView, Target, VendorEpilogue, epilogue, in_place, result_dtype, store_order,
    vendor_epilogue,
};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{BufId, Matmul, Operand, Program, Step};

use super::layout::{Calls, Loop, Product, Strides, calls};
use super::{Addresses, Kind, ProductLibrary, Products, takes};
use crate::sizes::{at_capture, dense, perturbed};
use crate::{Candidate, GpuError, LibraryCall, Part, Work};

/// Maximum number of rows of 16-bit products that are bound by reading the matrix once; generated kernels do that at full
/// bandwidth.
const SKINNY: i64 = 8;

/// Where a call stores its result.
#[derive(Clone)]
enum Goal {
    Buffer(StridedView),
    /// Scratch buffer 0, with these strides.
    Scratch(Shape),
}

/// A product of a program as the library computes it.
struct Spec {
    batch: Shape,
    m: SymExpr,
    n: SymExpr,
    k: SymExpr,
    a: Operand,
    b: Operand,
    out: Goal,
    addend: Option<StridedView>,
    bias: Option<(BufId, SymExpr)>,
    alpha: f64,
    kind: Kind,
}

/// Whether libraries have products of these dtypes, and no generated kernel is better by rule.
pub fn wants(program: &Program, k: &Matmul) -> bool {
    let (a, b) = (program.buffers[k.a.buf].dtype, program.buffers[k.b.buf].dtype);
    let rank = k.epilogue.ranges.len();
    if a != b || !takes(a, k.acc) || rank < 2 || k.a.sizes.len() != rank || k.b.sizes.len() != rank {
        return false;
    }
    // An empty sum is zero; the library is not asked for it.
    let sums = k.a.sizes[rank - 1].range(&program.bounds()).0.is_some_and(|least| least >= 1);
    sums && !is_skinny(program, k, a)
}

/// Whether it is a 16-bit product of a few rows, whose time is that of reading the matrix.
fn is_skinny(program: &Program, k: &Matmul, dtype: DType) -> bool {
    let rank = k.epilogue.ranges.len();
    let at = at_capture(program);
    let value = |e: &SymExpr| at(e).unwrap_or(i64::MAX);
    // Batch dimensions in which the matrix is the same count as rows.
    let rows = (0..rank - 2)
        .filter(|&d| k.b.strides[d] == SymExpr::ZERO)
        .fold(value(&k.epilogue.ranges[rank - 2]), |n, d| n.saturating_mul(value(&k.epilogue.ranges[d])));
    matches!(dtype, DType::F16 | DType::BF16) && rows <= SKINNY
}

/// The ways in which the library computes the product, the best by rule first; none where it is missing.
pub fn candidates<P: Products>(
    blas: Option<&Arc<ProductLibrary<P>>>,
    program: &Program,
    step: &Step,
    k: &Matmul,
    target: &Target,
) -> Vec<Candidate> {
    let Some(blas) = blas else { return Vec::new() };
    let whole = vendor_epilogue(program, &k.epilogue)
        .and_then(|t| fused(program, k, t, target))
        .filter(|s| works(blas, program, s));
    if let Some(spec) = whole {
        let spec = Arc::new(spec);
        return algorithms(blas, &spec, P::NAME)
            .map(|(name, call)| Candidate {
                name,
                parts: vec![Part::Library(call)],
                scratch: Vec::new(),
                in_place: None,
            })
            .collect();
    }
    let dtype = result_dtype(program, &k.epilogue, program.buffers[k.a.buf].dtype, k.acc);
    let order = store_order(program, &k.epilogue);
    let Some(spec) = waiting(program, k, dtype, &order, target).filter(|s| works(blas, program, s)) else {
        return Vec::new();
    };
    let Ok(kernel) = epilogue(program, step, dtype, Packed::Dense(&order)) else { return Vec::new() };
    let bytes = k.epilogue.ranges.iter().fold(SymExpr::from_i64(dtype.size() as i64), |n, e| n * e);
    let spec = Arc::new(spec);
    let in_place = in_place(program, step, dtype, &order);
    algorithms(blas, &spec, &format!("{}+epilogue", P::NAME))
        .map(|(name, call)| Candidate {
            name,
            parts: vec![Part::Library(call), Part::Kernel(kernel.clone())],
            scratch: vec![bytes.clone()],
            in_place,
        })
        .collect()
}

/// A call for each algorithm that the library may be asked for, with its name in tables.
fn algorithms<'a, P: Products>(
    blas: &'a Arc<ProductLibrary<P>>,
    spec: &'a Arc<Spec>,
    name: &'a str,
) -> impl Iterator<Item = (String, Box<dyn LibraryCall>)> + 'a {
    (0..P::ALGORITHMS).map(move |algorithm| {
        let call = Call { blas: Arc::clone(blas), spec: Arc::clone(spec), algorithm, fixed: OnceLock::new() };
        (format!("{name}_{algorithm}"), Box::new(call) as Box<dyn LibraryCall>)
    })
}

/// The product with its whole epilogue fused by the library; `None` where that is not possible.
fn fused(program: &Program, k: &Matmul, t: VendorEpilogue, target: &Target) -> Option<Spec> {
    let out = program.buffers[t.out.buf].dtype;
    let operands = program.buffers[k.a.buf].dtype;
    let same = |buf: BufId| program.buffers[buf].dtype == out;
    if !takes(operands, out) || !t.residual.iter().all(|r| same(r.buf)) || !t.bias.iter().all(|b| same(b.buf))
    {
        return None;
    }
    // Biases run along the columns of the product. An addend at another address than the result must not overlap it.
    let rank = k.epilogue.ranges.len();
    if t.bias.as_ref().is_some_and(|b| b.dim + 1 != rank) {
        return None;
    }
    let apart = |r: &StridedView| {
        program.root(r.buf) != program.root(t.out.buf)
            || (r.strides == t.out.strides && r.offset == t.out.offset)
    };
    if !t.residual.iter().all(apart) {
        return None;
    }
    let kind = Kind { operands, out, tf32: target.tf32.of_products(), bias: t.bias.is_some(), relu: t.relu };
    Some(Spec {
        addend: t.residual,
        bias: t.bias.map(|b| (b.buf, b.offset)),
        alpha: t.alpha,
        ..bare(k, kind, Goal::Buffer(t.out))
    })
}

/// The product alone, stored in scratch memory.
fn waiting(program: &Program, k: &Matmul, dtype: DType, order: &[usize], target: &Target) -> Option<Spec> {
    let operands = program.buffers[k.a.buf].dtype;
    let kind = Kind { operands, out: dtype, tf32: target.tf32.of_products(), bias: false, relu: false };
    takes(operands, dtype).then(|| bare(k, kind, Goal::Scratch(dense(&k.epilogue.ranges, order))))
}

fn bare(k: &Matmul, kind: Kind, out: Goal) -> Spec {
    let ranges = &k.epilogue.ranges;
    let split = ranges.len() - 2;
    Spec {
        batch: ranges[..split].iter().cloned().collect(),
        m: ranges[split].clone(),
        n: ranges[split + 1].clone(),
        k: k.a.sizes[split + 1].clone(),
        a: k.a.clone(),
        b: k.b.clone(),
        out,
        addend: None,
        bias: None,
        alpha: 1.0,
        kind,
    }
}

/// Whether the library takes the product at the sizes of capture and at others, and has an algorithm for it.
fn works<P: Products>(blas: &ProductLibrary<P>, program: &Program, spec: &Spec) -> bool {
    let at_capture = spec.calls(&|e| at_capture(program)(e).ok_or_else(|| unknown(e)));
    let elsewhere = spec.calls(&|e| perturbed(program)(e).ok_or_else(|| unknown(e)));
    let (Ok(Some(calls)), Ok(Some(_))) = (at_capture, elsewhere) else { return false };
    match blas.prepare(&calls.gemm, &spec.kind, &Addresses { bias: 256, ..Addresses::default() }, 0) {
        Ok(()) => true,
        Err(e) => {
            tracing::debug!(target: "kernel", "{}: {e}", P::NAME);
            false
        }
    }
}

fn unknown(e: &SymExpr) -> GpuError {
    GpuError::Malformed(format!("the size {e} has no value"))
}

type Eval<'a> = &'a dyn Fn(&SymExpr) -> Result<i64, GpuError>;

impl Spec {
    fn strides(&self, all: &[SymExpr], eval: Eval<'_>) -> Result<Strides, GpuError> {
        let numbers: Vec<i64> = all.iter().map(eval).collect::<Result<_, GpuError>>()?;
        match numbers[..] {
            [ref batch @ .., row, col] => Ok(Strides { batch: batch.to_vec(), row, col }),
            _ => Err(GpuError::Malformed("a matrix of less than two dimensions".into())),
        }
    }

    /// The library's calls; `None` where it does not support the matrices.
    fn calls(&self, eval: Eval<'_>) -> Result<Option<Calls>, GpuError> {
        let out = match &self.out {
            Goal::Buffer(place) => &place.strides,
            Goal::Scratch(strides) => strides,
        };
        let n = eval(&self.n)?;
        let product = Product {
            batch: self.batch.iter().map(eval).collect::<Result<_, GpuError>>()?,
            m: eval(&self.m)?,
            n,
            k: eval(&self.k)?,
            a: self.strides(&self.a.strides, eval)?,
            b: self.strides(&self.b.strides, eval)?,
            d: self.strides(out, eval)?,
            c: self.addend.as_ref().map(|c| self.strides(&c.strides, eval)).transpose()?,
        };
        // The library adds one bias per row of the column-major result.
        let fits = |c: &Calls| self.bias.is_none() || (c.gemm.swapped && c.gemm.rows == n);
        Ok(calls(&product).filter(fits))
    }

    fn is_fixed(&self) -> bool {
        let out = match &self.out {
            Goal::Buffer(place) => &place.strides,
            Goal::Scratch(strides) => strides,
        };
        let sizes = self.batch.iter().chain([&self.m, &self.n, &self.k]);
        let addend = self.addend.iter().flat_map(|c| &c.strides);
        let strides = self.a.strides.iter().chain(&self.b.strides).chain(out).chain(addend);
        sizes.chain(strides).all(|e| e.as_const().is_some())
    }
}

struct Call<P: Products> {
    blas: Arc<ProductLibrary<P>>,
    spec: Arc<Spec>,
    algorithm: usize,
    /// The calls where no size is symbolic.
    fixed: OnceLock<Calls>,
}

impl<P: Products> Call<P> {
    /// Addresses of the first matrices.
    fn addresses(&self, work: &Work<'_>, swapped: bool) -> Result<Addresses, GpuError> {
        let spec = &self.spec;
        let at = |buf: BufId, offset: &SymExpr, size: usize| -> Result<u64, GpuError> {
            Ok((work.address)(buf) + (work.size)(offset)? as u64 * size as u64)
        };
        let (narrow, wide) = (spec.kind.operands.size(), spec.kind.out.size());
        let a = at(spec.a.buf, &spec.a.offset, narrow)?;
        let b = at(spec.b.buf, &spec.b.offset, narrow)?;
        let out = match &spec.out {
            Goal::Buffer(place) => at(place.buf, &place.offset, wide)?,
            Goal::Scratch(_) => *work.scratch.first().ok_or_else(no_scratch)?,
        };
        let addend = spec.addend.as_ref().map_or(Ok(0), |c| at(c.buf, &c.offset, wide))?;
        let bias = spec.bias.as_ref().map_or(Ok(0), |(buf, offset)| at(*buf, offset, wide))?;
        let (first, second) = if swapped { (b, a) } else { (a, b) };
        Ok(Addresses { first, second, addend, out, bias })
    }

    /// # Safety
    /// The conditions of [`LibraryCall::run`].
    unsafe fn each(&self, calls: &Calls, loops: &[Loop], at: Addresses) -> Result<(), GpuError> {
        let Some((outer, rest)) = loops.split_first() else {
            // SAFETY: the caller guarantees the buffers, and the layout's matrices are within them.
            return unsafe {
                self.blas.launch(&calls.gemm, &self.spec.kind, self.spec.alpha, &at, self.algorithm)
            };
        };
        let (narrow, wide) = (self.spec.kind.operands.size() as i64, self.spec.kind.out.size() as i64);
        let (first, second) = if calls.gemm.swapped { (outer.b, outer.a) } else { (outer.a, outer.b) };
        for i in 0..outer.count {
            let moved = |address: u64, step: i64, size: i64| address.wrapping_add_signed(i * step * size);
            let here = Addresses {
                first: moved(at.first, first, narrow),
                second: moved(at.second, second, narrow),
                addend: moved(at.addend, outer.c, wide),
                out: moved(at.out, outer.d, wide),
                bias: at.bias,
            };
            // SAFETY: the caller guarantees the buffers, and the layout's loops stay within them.
            unsafe { self.each(calls, rest, here)? };
        }
        Ok(())
    }
}

fn no_scratch() -> GpuError {
    GpuError::Malformed("a library call without its scratch memory".into())
}

impl<P: Products> LibraryCall for Call<P> {
    unsafe fn run(&self, work: &Work<'_>) -> Result<(), GpuError> {
        let made;
        let calls = match self.fixed.get() {
            Some(calls) => calls,
            None => {
                let refused = || GpuError::Unsupported {
                    kernel: "matmul".into(),
                    reason: format!("{} cannot read the matrices at these sizes", P::NAME),
                };
                let calls = self.spec.calls(&|e| (work.size)(e))?.ok_or_else(refused)?;
                if self.spec.is_fixed() {
                    self.fixed.get_or_init(|| calls)
                } else {
                    made = calls;
                    &made
                }
            }
        };
        let g = &calls.gemm;
        if g.rows == 0 || g.cols == 0 || g.batch == 0 {
            return Ok(());
        }
        let at = self.addresses(work, g.swapped)?;
        self.blas.library().enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.each(calls, &calls.loops, at) }
    }
}
