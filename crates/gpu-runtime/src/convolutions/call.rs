//! Convolutions of programs as calls of a library: operands in the layouts that its kernels prefer, and epilogues that it
//! fuses or that a kernel applies afterwards.

use std::sync::{Arc, OnceLock};

use gpu_codegen::{
    Blocks, Kernel, Packed, StridedView, Target, VendorEpilogue, epilogue, fold, in_place, relayout,
    store_order, vendor_epilogue,
};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{BufId, Conv, Operand, Program, Step};

use super::fold::Folded;
use super::layout::{self, Format, Problem, Role, Tensor, dims, pick};
use super::transposed::as_transposed;
use super::{Convolutions, Fused, Uid, takes};
use crate::sizes::{at_capture, perturbed};
use crate::{Candidate, GpuError, LibraryCall, Part, Work};

/// The alignment of tensor addresses in bytes.
const ALIGNMENT: i64 = 16;

/// The location of a tensor.
#[derive(Clone)]
enum Source {
    /// A buffer, at this element.
    Buffer(BufId, SymExpr),
    /// The scratch buffer of this number.
    Scratch(usize),
}

/// A convolution of a program as the library computes it.
struct Spec {
    conv: Conv,
    role: Role,
    format: Format,
    /// The space-to-depth layout of its operands, where that is used.
    folded: Option<Folded>,
    dtype: DType,
    tf32: bool,
    deterministic: bool,
    input: Source,
    weight: Source,
    result: Source,
    bias: Option<Source>,
    residual: Option<Source>,
    relu: bool,
}

/// Whether libraries support convolutions of these dtypes.
pub fn wants(program: &Program, k: &Conv) -> bool {
    let (x, w) = (program.buffers[k.input.buf].dtype, program.buffers[k.weight.buf].dtype);
    let rank = k.epilogue.ranges.len();
    x == w
        && takes(x)
        && k.acc == DType::F32
        && (3..=5).contains(&rank)
        && [&k.input, &k.weight].into_iter().all(|o| o.sizes.len() == rank && o.strides.len() == rank)
        && [k.stride.len(), k.padding.len(), k.dilation.len()] == [rank - 2; 3]
        && !is_grouped_gradient(program, k)
}

/// Whether it is the gradient to the weight of a grouped convolution, with a window larger than its result. Libraries
/// support groups only in plain convolutions, where this takes a hundred times as long as the generated kernel (cuDNN on an
/// H200).
fn is_grouped_gradient(program: &Program, k: &Conv) -> bool {
    let eval = at_capture(program);
    let points = |sizes: &[SymExpr]| sizes[2..].iter().map(&eval).product::<Option<i64>>();
    k.groups > 1 && !k.transposed && points(&k.weight.sizes) > points(&k.epilogue.ranges)
}

type Eval<'a> = &'a dyn Fn(&SymExpr) -> Result<i64, GpuError>;

fn numbers(k: &Conv, eval: Eval<'_>) -> Result<layout::Conv, GpuError> {
    let all = |of: &[SymExpr]| of.iter().map(eval).collect::<Result<Vec<i64>, GpuError>>();
    let tensor = |o: &Operand| Ok::<_, GpuError>(Tensor { sizes: all(&o.sizes)?, strides: all(&o.strides)? });
    Ok(layout::Conv {
        input: tensor(&k.input)?,
        weight: tensor(&k.weight)?,
        output: all(&k.epilogue.ranges)?,
        stride: k.stride.clone(),
        padding: k.padding.clone(),
        dilation: k.dilation.clone(),
        groups: k.groups,
        transposed: k.transposed,
    })
}

/// A step, analysed with the sizes of capture and with others.
struct StepAnalysis<'a> {
    program: &'a Program,
    k: &'a Conv,
    role: Role,
    format: Format,
    /// Whether tensor cores compute it.
    narrow: bool,
    seen: [layout::Conv; 2],
}

impl<'a> StepAnalysis<'a> {
    fn new(program: &'a Program, k: &'a Conv, tf32: bool) -> Option<StepAnalysis<'a>> {
        let (at_capture, perturbed) = (at_capture(program), perturbed(program));
        let known = |e: &SymExpr, value: Option<i64>| {
            value.ok_or_else(|| GpuError::Malformed(format!("the size {e} has no value")))
        };
        let seen =
            [numbers(k, &|e| known(e, at_capture(e))).ok()?, numbers(k, &|e| known(e, perturbed(e))).ok()?];
        let role = seen[0].role();
        let narrow = program.buffers[k.input.buf].dtype != DType::F32 || tf32;
        // Tensor cores read channels-last. In single precision channels-first is as good where all tensors have it
        // already.
        let permuted = dims(role, seen[0].output.len());
        let first = Format::ChannelsFirst.holds(&pick(&seen[0].input, &permuted))
            && Format::ChannelsFirst.holds(&pick(&seen[0].weight, &permuted))
            && in_order(&store_order(program, &k.epilogue), Format::ChannelsFirst, &permuted);
        let format = if first && !narrow { Format::ChannelsFirst } else { Format::ChannelsLast };
        Some(StepAnalysis { program, k, role, format, narrow, seen })
    }

    /// The analysis of the step, or of its transposed form where the weight has the preferred layout only in that.
    fn best(
        program: &'a Program,
        k: &'a Conv,
        as_transposed: Option<&'a Conv>,
        tf32: bool,
    ) -> Option<StepAnalysis<'a>> {
        let analysis = StepAnalysis::new(program, k, tf32)?;
        let in_place = |analysis: &StepAnalysis<'_>| analysis.holds(&analysis.k.weight, |c| &c.weight);
        if in_place(&analysis) {
            return Some(analysis);
        }
        let other = as_transposed.and_then(|k| StepAnalysis::new(program, k, tf32)).filter(in_place);
        Some(other.unwrap_or(analysis))
    }

    /// The dtype of the operands.
    fn dtype(&self) -> DType {
        self.program.buffers[self.k.input.buf].dtype
    }

    /// The space-to-depth layout, where tensor cores compute the convolution faster with it.
    fn folded(&self) -> Option<Folded> {
        let wanted = self.narrow && self.format == Format::ChannelsLast;
        Folded::of(self.k, self.role).filter(|_| wanted)
    }

    /// The dimensions of the step in the format's memory order.
    fn order(&self) -> Vec<usize> {
        let rank = self.k.epilogue.ranges.len();
        let dims = dims(self.role, rank);
        self.format.order(rank).into_iter().map(|d| dims[d]).collect()
    }

    /// Whether an operand has the layout that the library prefers.
    fn holds(&self, operand: &Operand, of: fn(&layout::Conv) -> &Tensor) -> bool {
        let dims = dims(self.role, operand.sizes.len());
        self.seen.iter().all(|c| self.format.holds(&pick(of(c), &dims)))
            && self.aligned(operand.buf, &operand.offset)
    }

    fn aligned(&self, buf: BufId, offset: &SymExpr) -> bool {
        let size = self.program.buffers[buf].dtype.size() as i64;
        let (terms, constant) = offset.terms();
        constant * size % ALIGNMENT == 0 && terms.iter().all(|(coef, _)| coef * size % ALIGNMENT == 0)
    }

    /// Whether a view of the result is dense in the format.
    fn dense(&self, place: &StridedView) -> bool {
        let permuted = dims(self.role, place.strides.len());
        let at = |eval: &dyn Fn(&SymExpr) -> Option<i64>, sizes: &[i64]| {
            let strides: Option<Vec<i64>> = place.strides.iter().map(eval).collect();
            strides.is_some_and(|strides| {
                self.format.holds(&pick(&Tensor { sizes: sizes.to_vec(), strides }, &permuted))
            })
        };
        self.aligned(place.buf, &place.offset)
            && at(&at_capture(self.program), &self.seen[0].output)
            && at(&perturbed(self.program), &self.seen[1].output)
    }
}

fn in_order(order: &[usize], format: Format, dims: &[usize]) -> bool {
    format.order(order.len()).into_iter().map(|d| dims[d]).eq(order.iter().copied())
}

/// Returns the library's candidates for the convolution, best first by rule; none where it is missing.
pub fn candidates<C: Convolutions>(
    library: Option<&Arc<C>>,
    program: &Program,
    step: &Step,
    k: &Conv,
    target: &Target,
) -> Vec<Candidate> {
    let Some(library) = library else { return Vec::new() };
    let as_transposed = as_transposed(k);
    let Some(analysis) =
        StepAnalysis::best(program, k, as_transposed.as_ref(), target.tf32.of_convolutions())
    else {
        return Vec::new();
    };
    let as_it_is = with_folding(library, &analysis, step, target, None);
    let folded = analysis.folded().filter(|_| C::FOLDS);
    let folded = folded.map(|f| with_folding(library, &analysis, step, target, Some(f))).unwrap_or_default();
    // Measured with cuDNN on an H200 for the first convolutions of networks (3 channels): 0.08 ms with space-to-depth and 0.12 ms without
    // for a ResNet in tf32, 0.063 and 0.166 in bf16 on larger images, 0.078 and 0.69 with three spatial dimensions; but 0.27 and 0.16 ms
    // for the gradient to the ResNet's weight.
    let [first, last] = match analysis.role {
        Role::Forward => [folded, as_it_is],
        _ => [as_it_is, folded],
    };
    first.into_iter().chain(last).collect()
}

/// The candidates with operands as they are, or in space-to-depth layout.
fn with_folding<C: Convolutions>(
    library: &Arc<C>,
    analysis: &StepAnalysis<'_>,
    step: &Step,
    target: &Target,
    folded: Option<Folded>,
) -> Vec<Candidate> {
    let (program, k, dtype) = (analysis.program, analysis.k, analysis.dtype());
    let mut out = Vec::new();
    let order = analysis.order();
    let bytes = |elements: SymExpr| elements * dtype.size() as i64;
    // Scratch buffer 0 belongs to the result even where it is unused, since epilogues read it.
    let mut scratch = vec![SymExpr::ZERO];
    let mut before = Vec::new();
    let mut placed = |operand: &Operand,
                      blocks: Option<&Blocks>,
                      of: fn(&layout::Conv) -> &Tensor|
     -> Option<Source> {
        if blocks.is_none() && analysis.holds(operand, of) {
            return Some(Source::Buffer(operand.buf, operand.offset.clone()));
        }
        let number = scratch.len();
        let (kernel, elements) = match blocks {
            Some(blocks) => (fold(program, operand, blocks, number as u32), blocks.elements(&operand.sizes)),
            None => (relayout(program, operand, &order, number as u32), product(&operand.sizes)),
        };
        before.push(kernel.ok()?);
        scratch.push(bytes(elements));
        Some(Source::Scratch(number))
    };
    let of_weight = folded.as_ref().filter(|_| analysis.role == Role::Forward).map(|f| &f.w);
    let of_result = folded.as_ref().filter(|_| analysis.role == Role::Filter).map(|f| &f.w);
    let input = placed(&k.input, folded.as_ref().map(|f| &f.x), |c| &c.input);
    let (Some(input), Some(weight)) = (input, placed(&k.weight, of_weight, |c| &c.weight)) else {
        return Vec::new();
    };
    let bare = Spec {
        conv: k.clone(),
        role: analysis.role,
        format: analysis.format,
        folded: folded.clone(),
        dtype,
        tf32: target.tf32.of_convolutions(),
        deterministic: target.deterministic,
        input,
        weight,
        result: Source::Scratch(0),
        bias: None,
        residual: None,
        relu: false,
    };
    let suffix = if folded.is_some() { "_folded" } else { "" };
    let whole = vendor_epilogue(program, &k.epilogue).filter(|_| of_result.is_none());
    let whole = whole.and_then(|t| fused::<C>(analysis, &bare, t));
    if let Some(spec) = whole.filter(|s| s.is_ready(&**library, analysis)) {
        offer(&mut out, library, spec, &format!("{}{suffix}", C::NAME), &before, (None, None), &scratch);
        return out;
    }
    // The library rounds the result of 16-bit operands to their dtype, whatever the epilogue does with it.
    let packed = of_result.map_or(Packed::Dense(&order), Packed::Folded);
    let Ok(kernel) = epilogue(program, step, dtype, packed) else { return out };
    if bare.is_ready(&**library, analysis) {
        let ranges = &k.epilogue.ranges;
        let dense = of_result.is_none().then_some(&order);
        let place = dense.and_then(|order| in_place(program, step, dtype, order));
        scratch[0] = bytes(of_result.map_or_else(|| product(ranges), |blocks| blocks.elements(ranges)));
        offer(
            &mut out,
            library,
            bare,
            &format!("{}{suffix}+epilogue", C::NAME),
            &before,
            (Some(kernel), place),
            &scratch,
        );
    }
    out
}

fn product(sizes: &[SymExpr]) -> SymExpr {
    sizes.iter().fold(SymExpr::ONE, |n, e| n * e)
}

fn offer<C: Convolutions>(
    out: &mut Vec<Candidate>,
    library: &Arc<C>,
    spec: Spec,
    name: &str,
    before: &[Kernel],
    (after, in_place): (Option<Kernel>, Option<BufId>),
    scratch: &[SymExpr],
) {
    let spec = Arc::new(spec);
    for number in 0..C::ALGORITHMS {
        let call =
            Call { library: Arc::clone(library), spec: Arc::clone(&spec), number, fixed: OnceLock::new() };
        let mut parts: Vec<Part> = before.iter().cloned().map(Part::Kernel).collect();
        parts.push(Part::Library(Box::new(call)));
        parts.extend(after.clone().map(Part::Kernel));
        out.push(Candidate { name: format!("{name}_{number}"), parts, scratch: scratch.to_vec(), in_place });
    }
}

/// The convolution with its whole epilogue fused by the library; `None` where that is not possible.
fn fused<C: Convolutions>(analysis: &StepAnalysis<'_>, bare: &Spec, t: VendorEpilogue) -> Option<Spec> {
    let program = analysis.program;
    let same = |buf: BufId| program.buffers[buf].dtype == bare.dtype;
    if t.alpha != 1.0 || !same(t.out.buf) || !analysis.dense(&t.out) {
        return None;
    }
    let alone = bare.role == Role::Filter || !C::EPILOGUES;
    if alone && (t.bias.is_some() || t.residual.is_some() || t.relu) {
        return None;
    }
    if t.bias.as_ref().is_some_and(|b| b.dim != 1 || !same(b.buf) || !analysis.aligned(b.buf, &b.offset)) {
        return None;
    }
    let apart =
        |r: &StridedView| program.root(r.buf) != program.root(t.out.buf) && same(r.buf) && analysis.dense(r);
    if !t.residual.iter().all(apart) {
        return None;
    }
    Some(Spec {
        conv: bare.conv.clone(),
        folded: bare.folded.clone(),
        input: bare.input.clone(),
        weight: bare.weight.clone(),
        result: Source::Buffer(t.out.buf, t.out.offset),
        bias: t.bias.map(|b| Source::Buffer(b.buf, b.offset)),
        residual: t.residual.map(|r| Source::Buffer(r.buf, r.offset)),
        relu: t.relu,
        ..*bare
    })
}

impl Spec {
    /// The library's problem at some sizes; `None` where it does not support it.
    fn problem(&self, conv: &layout::Conv) -> Option<Problem> {
        let problem = conv.problem(self.role, self.format)?;
        Some(match &self.folded {
            Some(folded) => folded.problem(problem),
            None => problem,
        })
    }

    fn fused(&self, problem: Problem) -> Fused {
        Fused {
            problem,
            dtype: self.dtype,
            tf32: self.tf32,
            deterministic: self.deterministic,
            bias: self.bias.is_some(),
            residual: self.residual.is_some(),
            relu: self.relu,
        }
    }

    /// Whether the library has a kernel for it at the sizes of capture.
    fn is_ready<C: Convolutions>(&self, library: &C, analysis: &StepAnalysis<'_>) -> bool {
        let [at_capture, elsewhere] = &analysis.seen;
        match (self.problem(at_capture), self.problem(elsewhere)) {
            (Some(problem), Some(_)) => library.is_ready(&self.fused(problem)),
            _ => false,
        }
    }

    fn is_fixed(&self) -> bool {
        let c = &self.conv;
        let all: [&Shape; 5] =
            [&c.input.sizes, &c.input.strides, &c.weight.sizes, &c.weight.strides, &c.epilogue.ranges];
        all.into_iter().flatten().all(|e| e.as_const().is_some())
    }
}

struct Call<C: Convolutions> {
    library: Arc<C>,
    spec: Arc<Spec>,
    number: usize,
    /// The plan where no size is symbolic; `None` inside where there is nothing to compute.
    fixed: OnceLock<Option<Arc<C::Plan>>>,
}

impl<C: Convolutions> Call<C> {
    fn plan(&self, eval: Eval<'_>) -> Result<Option<Arc<C::Plan>>, GpuError> {
        let spec = &self.spec;
        let numbers = numbers(&spec.conv, eval)?;
        if numbers.output.contains(&0) {
            return Ok(None);
        }
        let refused = || GpuError::Unsupported {
            kernel: spec.conv.name.clone(),
            reason: format!("{} has no such convolution at these sizes", C::NAME),
        };
        let problem = spec.problem(&numbers).ok_or_else(refused)?;
        self.library.plan(&spec.fused(problem), self.number).map(Some)
    }

    fn address(&self, source: &Source, work: &Work<'_>) -> Result<u64, GpuError> {
        match source {
            Source::Buffer(buf, offset) => {
                Ok((work.address)(*buf) + (work.size)(offset)? as u64 * self.spec.dtype.size() as u64)
            }
            Source::Scratch(n) => work
                .scratch
                .get(*n)
                .copied()
                .ok_or_else(|| GpuError::Malformed("a library call without its scratch memory".into())),
        }
    }
}

impl<C: Convolutions> LibraryCall for Call<C> {
    unsafe fn run(&self, work: &Work<'_>) -> Result<(), GpuError> {
        let plan = match self.fixed.get() {
            Some(plan) => plan.clone(),
            None => {
                let plan = self.plan(&|e| (work.size)(e))?;
                if self.spec.is_fixed() {
                    self.fixed.get_or_init(|| plan.clone());
                }
                plan
            }
        };
        let Some(plan) = plan else { return Ok(()) };
        let spec = &self.spec;
        // The result takes the place of the unknown tensor.
        let (x, w, y) = match spec.role {
            Role::Forward => (&spec.input, &spec.weight, &spec.result),
            Role::Data => (&spec.result, &spec.weight, &spec.input),
            Role::Filter => (&spec.input, &spec.result, &spec.weight),
        };
        let mut tensors = vec![
            (Uid::X, self.address(x, work)?),
            (Uid::W, self.address(w, work)?),
            (Uid::Y, self.address(y, work)?),
        ];
        for (uid, source) in [(Uid::Bias, &spec.bias), (Uid::Residual, &spec.residual)] {
            if let Some(source) = source {
                tensors.push((uid, self.address(source, work)?));
            }
        }
        // SAFETY: the caller guarantees the buffers; `StepAnalysis` checked that every tensor is dense in its buffer or
        // scratch.
        unsafe { self.library.launch(&plan, &tensors) }
    }
}
