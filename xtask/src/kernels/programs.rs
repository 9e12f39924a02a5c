//! The programs whose kernels `xtask rocm-kernels` shows: products and attention of sizes that language models have.

use anyhow::{Context as _, Result};
use kernel_ir::Program;

/// A program of one step, and what the table calls it.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) program: Program,
}

/// Rows, columns and inner points of the products; heads, rows of the attention.
const SIZE: i64 = 4096;
const HEADS: i64 = 16;

/// All of them.
///
/// # Errors
/// None but a mistake in the texts here.
pub(crate) fn samples() -> Result<Vec<Sample>> {
    let mut all = Vec::new();
    for dtype in ["bf16", "f16", "f32"] {
        all.push(sample(format!("product, {dtype}, by columns"), &product(dtype, false))?);
    }
    all.push(sample("product, bf16, by rows".into(), &product("bf16", true))?);
    for depth in [64, 128] {
        all.push(sample(format!("attention, bf16, {depth}"), &attention(depth, false))?);
        all.push(sample(format!("attention, bf16, {depth}, causal"), &attention(depth, true))?);
        all.push(sample(format!("attention gradients, bf16, {depth}"), &gradients(depth))?);
    }
    Ok(all)
}

fn sample(name: String, text: &str) -> Result<Sample> {
    let program = text.parse().with_context(|| name.clone())?;
    Ok(Sample { name, program })
}

/// `[m, k] x [k, n]`, the right factor's columns or rows together in memory.
fn product(dtype: &str, by_rows: bool) -> String {
    let n = SIZE;
    let strides = if by_rows { format!("{n}, 1") } else { format!("1, {n}") };
    let store = match dtype {
        "f32" => "v1: f32 = store b2[i0, i1], v0".to_owned(),
        _ => format!("v1: {dtype} = cast v0\n    v2: {dtype} = store b2[i0, i1], v1"),
    };
    format!(
        "kir 1.0
program \"product\"
buffer b0 \"a\" {dtype}[{n}, {n}]{{{n}, 1}}+0 input 0
buffer b1 \"b\" {dtype}[{n}, {n}]{{{n}, 1}}+0 input 1
buffer b2 \"c\" {dtype}[{n}, {n}]{{{n}, 1}}+0 output
input \"a\" b0
input \"b\" b1
output \"c\" b2[{n}, {n}]{{{n}, 1}}+0
init:
steps:
matmul \"product\" acc f32
  a b0[{n}, {n}]{{{n}, 1}}+0
  b b1[{n}, {n}]{{{strides}}}+0
  epilogue [{n}, {n}]
    v0: f32 = template
    {store}
plan:
"
    )
}

/// Buffers of `[1, heads, rows, depth]` and one of `[1, heads, rows]` for what attention leaves to its gradient.
fn buffers(names: &[(&str, &str, bool)], depth: i64) -> (String, String) {
    let (rows, wide) = (SIZE, SIZE * depth);
    let whole = format!("[1, {HEADS}, {rows}, {depth}]{{{}, {wide}, {depth}, 1}}+0", HEADS * wide);
    let numbers = format!("[1, {HEADS}, {rows}]{{{}, {rows}, 1}}+0", HEADS * rows);
    let (mut declared, mut ports) = (String::new(), String::new());
    let mut inputs = 0;
    for (n, (name, dtype, output)) in names.iter().enumerate() {
        let shape = if *dtype == "f32" { &numbers } else { &whole };
        let how = if *output { "output".to_owned() } else { format!("input {inputs}") };
        declared += &format!("buffer b{n} \"{name}\" {dtype}{shape} {how}\n");
        if *output {
            ports += &format!("output \"{name}\" b{n}{shape}\n");
        } else {
            ports += &format!("input \"{name}\" b{n}\n");
            inputs += 1;
        }
    }
    (declared + &ports, whole)
}

fn scale(depth: i64) -> &'static str {
    if depth == 64 { "0.125" } else { "0.0883883461356163" }
}

fn attention(depth: i64, causal: bool) -> String {
    let names = [("q", "bf16", false), ("k", "bf16", false), ("v", "bf16", false), ("o", "bf16", true)];
    let (declared, whole) = buffers(&names, depth);
    let (scale, causal) = (scale(depth), if causal { " causal" } else { "" });
    format!(
        "kir 1.0
program \"attention\"
{declared}init:
steps:
attention \"attention\" acc f32 scale {scale}{causal}
  q b0{whole}
  k b1{whole}
  v b2{whole}
  epilogue [1, {HEADS}, {SIZE}, {depth}]
    v0: f32 = template
    v1: bf16 = cast v0
    v2: bf16 = store b3[i0, i1, i2, i3], v1
plan:
"
    )
}

fn gradients(depth: i64) -> String {
    let names = [
        ("g", "bf16", false),
        ("q", "bf16", false),
        ("k", "bf16", false),
        ("v", "bf16", false),
        ("sums", "f32", false),
        ("deltas", "f32", false),
        ("dq", "bf16", true),
        ("dk", "bf16", true),
        ("dv", "bf16", true),
    ];
    let (declared, whole) = buffers(&names, depth);
    let numbers = format!("[1, {HEADS}, {SIZE}]{{{}, {SIZE}, 1}}+0", HEADS * SIZE);
    let operands: String = names
        .iter()
        .enumerate()
        .map(|(n, (_, dtype, output))| {
            let shape = if *dtype == "f32" { &numbers } else { &whole };
            format!("  {} b{n}{shape}\n", if *output { "out" } else { "in" })
        })
        .collect();
    format!(
        "kir 1.6
program \"gradients\"
{declared}init:
steps:
extern \"gradients\" attention_backward scale {}
{operands}plan:
",
        scale(depth)
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn texts_are_programs() {
        assert!(super::samples().is_ok_and(|all| all.len() == 10));
    }
}
