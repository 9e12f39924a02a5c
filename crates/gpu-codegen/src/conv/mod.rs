//! Convolutions: by tiles (`tile`) as implicit matrix products whose left operand is the input seen through the window, or
//! directly with one thread per output point. Any number of spatial dimensions, groups, dilation and transposition is
//! supported. A transposed convolution with a stride is split into plain ones. The epilogue is fused in all.

pub(crate) mod depthwise;
pub(crate) mod depthwise_matrix;
pub(crate) mod depthwise_matrix_text;
pub(crate) mod depthwise_text;
pub(crate) mod depthwise_weight;
pub(crate) mod depthwise_weight_text;
pub(crate) mod few_inputs;
pub(crate) mod few_inputs_text;
pub(crate) mod few_outputs;
pub(crate) mod few_outputs_text;
pub(crate) mod patch;

use std::fmt::Write;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{Conv, InstKind, Program, Step};

use crate::address::address;
use crate::product::tile::{Axis, Product, Space, TileOperand, hint};
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, blocks_of, compute_type, element, epilogue, unravel, volume};
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Target, Variant};

/// With fewer input or output channels per group than this a tile is so empty that one thread per point is faster.
const FEW_CHANNELS: i64 = 8;

/// Terms of a sum that fill the inner dimension of a tile, however few channels they are of.
const FULL_SUM: i64 = 128;

/// Terms of a sum that one thread adds in about ten microseconds, and threads per multiprocessor that keep it busy.
const LONG_SUM: i64 = 2048;
const THREADS_EACH: i64 = 512;

/// Maximum number of candidates for a convolution that is split into phases: each has as many kernels as phases.
const MAX_PHASE_CANDIDATES: usize = 4;

/// Returns the candidate implementations, best first by rule.
pub(crate) fn variants(program: &Program, k: &Conv, target: &Target) -> Result<Vec<Variant>, GenError> {
    check(k)?;
    let few = crate::conv::depthwise::variants(program, k, target)?;
    if !few.is_empty() {
        return Ok(few
            .into_iter()
            .chain([Variant::single("direct", generate(program, k, ENTRY)?)])
            .collect());
    }
    let product = product(program, k);
    let mut candidates = match &product {
        Some(product) => crate::product::tile_rule::candidates(product, target)?,
        None => phases(program, k, target)?,
    };
    if candidates.is_empty() || is_direct(program, k, product.as_ref(), target) {
        candidates.truncate(2);
        candidates.insert(0, Variant::single("direct", generate(program, k, ENTRY)?));
    }
    let few = [few_inputs::variants(program, k, target)?, few_outputs::variants(program, k, target)?];
    candidates.splice(0..0, few.concat());
    Ok(candidates)
}

/// The convolution in the form that tiles take; `None` where its first candidates are others.
pub(crate) fn tiled<'a>(program: &'a Program, k: &'a Conv, target: &Target) -> Option<Product<'a>> {
    if check(k).is_err() || has_own_kernels(program, k, target) {
        return None;
    }
    product(program, k).filter(|p| !is_direct(program, k, Some(p), target))
}

/// Whether there are kernels for convolutions of few channels, or of few of each group, which come first.
fn has_own_kernels(program: &Program, k: &Conv, target: &Target) -> bool {
    crate::conv::depthwise::supports(program, k, target)
        || few_inputs::supports(program, k, target)
        || few_outputs::supports(program, k, target)
}

/// Whether one thread per point is faster than tiles, which would be nearly empty.
fn is_direct(program: &Program, k: &Conv, product: Option<&Product<'_>>, target: &Target) -> bool {
    let few = |e: &SymExpr| hint(program, e) < FEW_CHANNELS * k.groups;
    let terms = product.map_or(0, |p| hint(program, &crate::product::tile::count(&p.inner)));
    let narrow = (few(&k.input.sizes[1]) && terms < FULL_SUM) || few(&k.epilogue.ranges[1]);
    // A long sum to each of few results (the gradient to a weight) is split over blocks, which one thread a point cannot be.
    let points = hint(program, &volume(&k.epilogue.ranges));
    let starved = points < THREADS_EACH * i64::from(target.multiprocessors);
    k.groups > 1 && narrow && product.is_some() && !(starved && terms > LONG_SUM)
}

/// Whether no library need be asked: see [`tile_rule::prefers_generated`](crate::product::tile_rule::prefers_generated).
/// Groups of few channels have kernels of their own.
pub(crate) fn prefers_generated(program: &Program, k: &Conv, target: &Target) -> bool {
    let small = |p: Product<'_>| match k.groups {
        1 => crate::product::tile_rule::prefers_generated(&p, target),
        _ => is_foreign_group(program, k) && !is_direct(program, k, Some(&p), target),
    };
    check(k).is_ok() && (has_own_kernels(program, k, target) || product(program, k).is_some_and(small))
}

/// Whether libraries have no good kernel for groups of this size. Measured on an H200 in bf16: with 16 and 32 channels in a group cuDNN
/// takes half the time of tiles for two spatial dimensions, with 24 and 48 three times as long; for one dimension 1.2 (32 channels, a
/// window of 5) to 76 times as long (48 channels, a window of 128).
fn is_foreign_group(program: &Program, k: &Conv) -> bool {
    let narrow = program.buffers[k.input.buf].dtype.size() == 2;
    let each = hint(program, &k.input.sizes[1]) / k.groups.max(1);
    narrow && (k.stride.len() == 1 || !(each as u64).is_power_of_two())
}

/// Multiply-adds from which a library computes a convolution with a window faster than a generated kernel, even where a second
/// kernel has to run the epilogue.
const LARGE_WINDOW: i64 = 3 << 29;

/// Whether a generated convolution with its epilogue is faster than a library's with a separate kernel for the epilogue. Measured
/// on an H200: in bf16 this holds for 24 of 24 shapes of ResNet-152 at batch 1 and for 60 of 70 windows of one point (1×1) of four
/// other networks; of 13 larger windows the library was faster for all, down to 0.4 of the time. In tf32 the library is faster.
pub(crate) fn outruns_library(program: &Program, k: &Conv) -> bool {
    let narrow = program.buffers[k.input.buf].dtype.size() == 2;
    let window = k.weight.sizes[2..].iter().any(|n| *n != SymExpr::ONE);
    let factors = k.epilogue.ranges.iter().chain(&k.weight.sizes[1..]);
    let large = factors.fold(1, |n: i64, e| n.saturating_mul(hint(program, e))) >= LARGE_WINDOW;
    narrow && !(window && large)
}

/// Candidates of a transposed convolution with a stride: its phases, each a plain convolution by tiles. Empty where it
/// cannot be split.
fn phases(program: &Program, k: &Conv, target: &Target) -> Result<Vec<Variant>, GenError> {
    let steps = kernel_ir::plain_steps(k).unwrap_or_default();
    let mut name = None;
    let mut parts: Vec<Vec<Variant>> = Vec::new();
    for step in &steps {
        let mut candidates = match step {
            Step::Conv(c) => {
                let few = crate::conv::depthwise::variants(program, c, target)?;
                match product(program, c) {
                    _ if !few.is_empty() => few,
                    Some(product) => crate::product::tile_rule::candidates(&product, target)?,
                    None => return Ok(Vec::new()),
                }
            }
            other => crate::variants(program, other, target)?,
        };
        candidates.retain(|w| w.scratch.is_empty());
        if let (Step::Conv(_), None) = (step, name) {
            name = Some(parts.len());
        }
        parts.push(candidates);
    }
    let Some(named) = name else { return Ok(Vec::new()) };
    let count = parts.iter().map(Vec::len).min().unwrap_or(0).min(MAX_PHASE_CANDIDATES);
    let candidate = |n: usize| Variant {
        name: format!("phases_{}", parts[named][n].name),
        kernels: parts.iter().flat_map(|candidates| candidates[n].kernels.clone()).collect(),
        scratch: Vec::new(),
    };
    Ok((0..count).map(candidate).collect())
}

fn check(k: &Conv) -> Result<(), GenError> {
    let (rank, spatial) = (k.epilogue.ranges.len(), k.stride.len());
    let ranks =
        [rank, k.input.sizes.len(), k.weight.sizes.len(), k.input.strides.len(), k.weight.strides.len()];
    let lists = [k.padding.len(), k.dilation.len()];
    if ranks.iter().any(|r| *r != spatial + 2) || lists.iter().any(|l| *l != spatial) || k.groups < 1 {
        return Err(GenError::Malformed("operands of a convolution differ in rank".into()));
    }
    if k.stride.iter().chain(&k.dilation).any(|n| *n < 1) {
        return Err(GenError::Malformed("a convolution's stride or dilation is not positive".into()));
    }
    Ok(())
}

/// The convolution as a matrix product: rows are output positions, columns output channels, the inner dimension is the
/// window's points and the input's channels. Returns `None` for what tiles do not support: other dtypes, one channel per
/// group, transposed convolutions with a stride.
fn product<'a>(program: &'a Program, k: &'a Conv) -> Option<Product<'a>> {
    let ranges = &k.epilogue.ranges;
    let dtype = program.buffers[k.input.buf].dtype;
    let spread = k.transposed && k.stride.iter().any(|s| *s != 1);
    if program.buffers[k.weight.buf].dtype != dtype || k.acc != DType::F32 || spread {
        return None;
    }
    let groups = SymExpr::from_i64(k.groups);
    let (inputs, outputs) = (k.input.sizes[1].floor_div(&groups), ranges[1].floor_div(&groups));
    if k.groups > 1 && inputs == SymExpr::ONE {
        return None;
    }
    let (x, w) = (&k.input.strides, &k.weight.strides);
    // The weight's dimensions of output and of input channels.
    let (to, from) = if k.transposed { (1, 0) } else { (0, 1) };
    // The groups are consecutive in the weight's first dimension.
    let group_steps = [&x[1] * &inputs, &w[0] * if k.transposed { &inputs } else { &outputs }];
    let axis = |extent: &SymExpr, steps: [SymExpr; 2], result: Option<(usize, SymExpr)>| Axis {
        extent: extent.clone(),
        steps,
        space: None,
        result,
    };
    let zero = || SymExpr::ZERO;
    let mut product = Product {
        program,
        epilogue: &k.epilogue,
        dtype,
        is_convolution: true,
        operands: [
            TileOperand { buf: k.input.buf, offset: k.input.offset.clone() },
            TileOperand { buf: k.weight.buf, offset: k.weight.offset.clone() },
        ],
        batch: vec![axis(&groups, group_steps, Some((1, outputs.clone())))],
        rows: vec![axis(&ranges[0], [x[0].clone(), zero()], Some((0, SymExpr::ONE)))],
        cols: vec![axis(&outputs, [zero(), w[to].clone()], Some((1, SymExpr::ONE)))],
        inner: vec![axis(&inputs, [x[1].clone(), w[from].clone()], None)],
        spaces: Vec::new(),
        groups: None,
    };
    for d in 0..k.stride.len() {
        spatial(k, d, &mut product);
    }
    product.arrange();
    Some(product)
}

/// Adds a spatial dimension: the position `o` and the window's point `w` meet the input at `o * stride - before + w *
/// dilation`; transposed, with stride 1, at `o + before - w * dilation`.
fn spatial(k: &Conv, d: usize, product: &mut Product<'_>) {
    let (before, after) = k.padding[d];
    let (start, along) = if k.transposed { (before, -k.dilation[d]) } else { (-before, k.dilation[d]) };
    let step = &k.input.strides[d + 2];
    let times = |n: i64| step * &SymExpr::from_i64(n);
    product.operands[0].offset = &product.operands[0].offset + &times(start);
    // Without padding every window lies within the input.
    let space = (k.transposed || before > 0 || after > 0).then(|| {
        product.spaces.push(Space { start, size: k.input.sizes[d + 2].clone() });
        product.spaces.len() - 1
    });
    product.rows.push(Axis {
        extent: k.epilogue.ranges[d + 2].clone(),
        steps: [times(k.stride[d]), SymExpr::ZERO],
        space: space.map(|s| (s, k.stride[d])),
        result: Some((d + 2, SymExpr::ONE)),
    });
    product.inner.push(Axis {
        extent: k.weight.sizes[d + 2].clone(),
        steps: [times(along), k.weight.strides[d + 2].clone()],
        space: space.map(|s| (s, along)),
        result: None,
    });
}

/// The dimensions of the output in the order in which adjacent threads take their points: contiguous ones last.
fn order(program: &Program, k: &Conv) -> Vec<usize> {
    let rank = k.epilogue.ranges.len();
    let mut order: Vec<usize> = (0..rank).collect();
    let store = k.epilogue.insts.iter().find_map(|i| match &i.kind {
        InstKind::Store { buf, index, .. } => Some(address(program, *buf, index, &k.epilogue.ranges)),
        _ => None,
    });
    let unit = |d: usize| {
        let coef = store.as_ref().and_then(|a| a.affine_in(&Atom::Loop(d as u32))).map(|(coef, _)| coef);
        coef == Some(SymExpr::ONE) && k.epilogue.ranges[d] != SymExpr::ONE
    };
    if let Some(last) = (0..rank).rev().find(|&d| unit(d)) {
        order.retain(|&d| d != last);
        order.push(last);
    }
    order
}

/// The fallback kernel: one thread per output point, for every dtype and stride.
fn generate(program: &Program, k: &Conv, entry: &str) -> Result<Kernel, GenError> {
    let ranges = &k.epilogue.ranges;
    let spatial = k.stride.len();
    let mut uses = Uses::default();
    let writer = BodyWriter { program, extents: ranges, prefix: "", guard: None, store_guard: None };
    let acc = compute_type(k.acc)?;
    let points = volume(ranges);
    let count = writer.expr(&points, &mut uses);
    let mut body = format!(
        "for (idx p = blockIdx.x * (idx)blockDim.x + threadIdx.x; p < {count}; p += (idx)gridDim.x * blockDim.x) {{\n"
    );
    let order = order(program, k);
    let extents: Vec<SymExpr> = order.iter().map(|&d| ranges[d].clone()).collect();
    // The positions are numbered after the loop variables of the dimensions.
    body.push_str(&unravel(&writer, &extents, ranges.len(), "p", &mut uses));
    for (place, d) in order.iter().enumerate() {
        let _ = writeln!(body, "const idx i{d} = i{};", ranges.len() + place);
    }
    let _ = writeln!(body, "{acc} sum = 0;");
    let groups = SymExpr::from_i64(k.groups);
    // Input and output channels per group.
    let inputs = writer.expr(&k.input.sizes[1].floor_div(&groups), &mut uses);
    let outputs = writer.expr(&ranges[1].floor_div(&groups), &mut uses);
    let _ = writeln!(body, "const idx group = i1 / {outputs};");
    let mut loops = 1;
    let _ =
        writeln!(body, "for (idx c = 0; c < {inputs}; ++c) {{\nconst idx channel = group * {inputs} + c;");
    for d in 0..spatial {
        let window = writer.expr(&k.weight.sizes[d + 2], &mut uses);
        let size = writer.expr(&k.input.sizes[d + 2], &mut uses);
        let (stride, dilation, (before, _)) = (k.stride[d], k.dilation[d], k.padding[d]);
        let i = d + 2;
        loops += 1;
        let _ = writeln!(body, "for (idx w{d} = 0; w{d} < {window}; ++w{d}) {{");
        if k.transposed {
            // The output point `o` is reached from input `x` where o = x * stride - before + w * dilation.
            let _ = writeln!(
                body,
                "const idx t{d} = i{i} + {before} - w{d} * {dilation};\n\
                 const idx x{d} = t{d} / {stride};\n\
                 if (t{d} < 0 || t{d} % {stride} != 0 || x{d} >= {size}) continue;"
            );
        } else {
            let _ = writeln!(
                body,
                "const idx x{d} = i{i} * {stride} - {before} + w{d} * {dilation};\n\
                 if (x{d} < 0 || x{d} >= {size}) continue;"
            );
        }
    }
    let names = |prefix: &str| -> Vec<String> { (0..spatial).map(|d| format!("{prefix}{d}")).collect() };
    let (xs, ws) = (names("x"), names("w"));
    let list = |lead: [&'static str; 2], rest: &'_ [String]| -> Vec<String> {
        lead.iter().map(|s| (*s).to_owned()).chain(rest.iter().cloned()).collect()
    };
    let within = format!("i1 % {outputs}");
    let weight_index = if k.transposed {
        let mut index = list(["channel", "0"], &ws);
        index[1] = within;
        index
    } else {
        list(["i1", "c"], &ws)
    };
    let refs = |v: &[String]| -> Vec<String> { v.to_vec() };
    let x = {
        let index = refs(&list(["i0", "channel"], &xs));
        element(&writer, &k.input, &index.iter().map(String::as_str).collect::<Vec<_>>(), &mut uses)
    };
    let w =
        element(&writer, &k.weight, &weight_index.iter().map(String::as_str).collect::<Vec<_>>(), &mut uses);
    let _ = writeln!(body, "sum += to<{acc}>({x}) * to<{acc}>({w});");
    body.push_str(&"}\n".repeat(loops));
    let result = crate::text::types::value_type(k.acc)?;
    let _ = writeln!(body, "const {result} result = to<{result}>(sum);");
    body.push_str(&epilogue(program, &k.epilogue, "result", &mut uses)?);
    body.push_str("}\n");
    let launch = Launch::flat(blocks_of(&points, i64::from(THREADS)), THREADS);
    assemble(program, entry, &uses, launch, &body)
}
