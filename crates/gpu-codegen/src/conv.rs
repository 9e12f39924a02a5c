//! Convolutions directly: a thread computes one output point. Any number of spatial dimensions, groups, dilation,
//! transposed; the epilogue is fused. The kernel that is always there; libraries and tensor cores are the backend's choice.

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::{Conv, Program};

use crate::body::{BodyWriter, Uses};
use crate::template::{assemble, blocks_of, compute_type, element, epilogue, unravel, volume};
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Target, Variant};

/// The ways of computing it, the best by rule first.
pub(crate) fn variants(program: &Program, k: &Conv, _target: &Target) -> Result<Vec<Variant>, GenError> {
    Ok(vec![Variant::single("simple", generate(program, k, ENTRY)?)])
}

/// The kernel that is always there.
fn generate(program: &Program, k: &Conv, entry: &str) -> Result<Kernel, GenError> {
    let ranges = &k.epilogue.ranges;
    let spatial = k.stride.len();
    if ranges.len() != spatial + 2
        || k.input.sizes.len() != spatial + 2
        || k.weight.sizes.len() != spatial + 2
    {
        return Err(GenError::Malformed("operands of a convolution differ in rank".into()));
    }
    let mut uses = Uses::default();
    let writer = BodyWriter { program, extents: ranges, prefix: "", guard: None, store_guard: None };
    let acc = compute_type(k.acc)?;
    let points = volume(ranges);
    let count = writer.expr(&points, &mut uses);
    let mut body = format!(
        "for (idx p = blockIdx.x * (idx)blockDim.x + threadIdx.x; p < {count}; p += (idx)gridDim.x * blockDim.x) {{\n"
    );
    body.push_str(&unravel(&writer, ranges, 0, "p", &mut uses));
    let _ = writeln!(body, "{acc} sum = 0;");
    let groups = SymExpr::from_i64(k.groups);
    // Channels of the input in one group, and those of the output.
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
    let result = crate::types::value_type(k.acc)?;
    let _ = writeln!(body, "const {result} result = to<{result}>(sum);");
    body.push_str(&epilogue(program, &k.epilogue, "result", &mut uses)?);
    body.push_str("}\n");
    let launch = Launch::flat(blocks_of(&points, i64::from(THREADS)), THREADS);
    assemble(program, entry, &uses, launch, &body)
}
