//! Sorting by counting: an element's place is the number of elements that come before it. Work grows with the square of
//! the row, but every comparison is independent and the order is stable.

use std::fmt::Write;

use ir_core::DType;
use kernel_ir::{ExternCall, ExternOp, Program};

use crate::body::{BodyWriter, Uses};
use crate::template::{assemble, blocks_of, element, unravel, volume};
use crate::types::value_type;
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Target, Variant};

/// The ways of computing it, the best by rule first.
pub(crate) fn variants(program: &Program, k: &ExternCall, _target: &Target) -> Result<Vec<Variant>, GenError> {
    Ok(vec![Variant::single("sort", generate(program, k, ENTRY)?)])
}

/// The kernel of a sort; other routines have none.
fn generate(program: &Program, k: &ExternCall, entry: &str) -> Result<Kernel, GenError> {
    let (ExternOp::Sort { dim, descending }, [input], [values, positions]) =
        (&k.op, &k.inputs[..], &k.outputs[..])
    else {
        return Err(GenError::Routine(k.name.clone()));
    };
    let dim = *dim as usize;
    let sizes = &input.sizes;
    let Some(length) = sizes.get(dim) else {
        return Err(GenError::Malformed(format!("sorts along dimension {dim} of {}", sizes.len())));
    };
    let mut uses = Uses::default();
    let writer = BodyWriter { program, extents: sizes, prefix: "", guard: None, store_guard: None };
    let points = volume(sizes);
    let count = writer.expr(&points, &mut uses);
    let length = writer.expr(length, &mut uses);
    let dtype = program.buffers[input.buf].dtype;
    let ty = value_type(dtype)?;
    let at = |along: &str| -> Vec<String> {
        (0..sizes.len()).map(|d| if d == dim { along.to_owned() } else { format!("i{d}") }).collect()
    };
    let read = |along: &str, operand, uses: &mut Uses| {
        let index = at(along);
        element(&writer, operand, &index.iter().map(String::as_str).collect::<Vec<_>>(), uses)
    };
    // 16-bit floats are compared as single precision.
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { "float" } else { ty };
    let mine = read(&format!("i{dim}"), input, &mut uses);
    let other = read("j", input, &mut uses);
    let (out, place) = (read("place", values, &mut uses), read("place", positions, &mut uses));
    for operand in [values, positions] {
        uses.written.insert(program.root(operand.buf));
    }
    // Not a number is largest: last in ascending, first in descending order.
    let ahead = match descending {
        false => "(xn ? (!yn || j < mine_at) : (!yn && (y < x || (y == x && j < mine_at))))",
        true => "(xn ? (yn && j < mine_at) : (yn || y > x || (y == x && j < mine_at)))",
    };
    let mut body = format!(
        "for (idx p = blockIdx.x * (idx)blockDim.x + threadIdx.x; p < {count}; p += (idx)gridDim.x * blockDim.x) {{\n"
    );
    body.push_str(&unravel(&writer, sizes, 0, "p", &mut uses));
    let _ = write!(
        body,
        "const idx mine_at = i{dim};
const {wide} x = to<{wide}>({mine});
const bool xn = x != x;
idx place = 0;
for (idx j = 0; j < {length}; ++j) {{
const {wide} y = to<{wide}>({other});
const bool yn = y != y;
place += {ahead};
}}
{out} = {mine};
{place} = (i64)mine_at;
}}
"
    );
    let launch = Launch::flat(blocks_of(&points, i64::from(THREADS)), THREADS);
    assemble(program, entry, &uses, launch, &body)
}
