//! Control flow and sizes that a step determines: memory that comes and goes with a symbol, loops over slices, conditions, and
//! the errors of numbers out of range.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::exec::{Compiled, ExecError, ExecOptions};
use ir_core::{DType, Scalar};
use kernel_ir::Program;

/// `y = 2 * x[:u]`, its sum over rows while a flag holds, and a row copied by a loop.
const PROGRAM: &str = r#"
kir 1.2
program "control"
symbol s0 "n" 1..=9
symbol s1 "u" 0..=6 unbacked
symbol s2 "i" 0.. unbacked
buffer b0 "x" f32[s0]{1}+0 input 0
buffer b1 "u" i32[]{}+0 input 1
buffer b2 "p" bool[]{}+0 input 2
buffer b3 "t" f32[s1]{1}+0 arena
buffer b4 "y" f32[s1]{1}+0 output
buffer b5 "rows" f32[3, s1]{s1, 1}+0 output
buffer b6 "row" f32[s1]{1}+(s1*s2) view b5
input "x" b0
input "u" b1
input "p" b2
output "y" b4[s1]{1}+0
output "rows" b5[3, s1]{s1, 1}+0
init:
steps:
bind "u" s1 b1[]{}+0
cond "c" b2[]{}+0
then:
loop "double" outer [s1]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = add v0, v0
    v2: f32 = store b3[i0], v1
else:
loop "negate" outer [s1]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = neg v0
    v2: f32 = store b3[i0], v1
end
loop "copy" outer [s1]
  stage []
    v0: f32 = load b3[i0]
    v1: f32 = store b4[i0], v0
for "rows" s2 [3]
do:
loop "row" outer [s1]
  stage []
    v0: f32 = load b3[i0]
    v1: i64 = index s2
    v2: f32 = cast v1
    v3: f32 = mul v0, v2
    v4: f32 = store b6[i0], v3
end
assert "flag" "the flag is set" b2[]{}+0
plan bytes 0:
  b3 dynamic 1..3
"#;

fn compiled() -> Compiled {
    let program: Program = PROGRAM.parse().unwrap();
    Compiled::new(program, ExecOptions { threads: 2, ..ExecOptions::default() }).unwrap()
}

fn run(c: &Compiled, u: i64, flag: bool) -> Result<Vec<Data>, ExecError> {
    let x = Data::floats(DType::F32, &[7], |k| k as f64 + 1.0);
    let u = Data::new(DType::I32, &[], vec![Scalar::Int(u)]);
    execute(c, &[x, u, Data::new(DType::Bool, &[], vec![Scalar::Bool(flag)])])
}

#[test]
fn sizes_follow_the_data() {
    let c = compiled();
    for u in [5usize, 0, 6, 1] {
        let out = run(&c, u as i64, true).unwrap();
        assert_eq!((&out[0].sizes[..], &out[1].sizes[..]), (&[u as i64][..], &[3, u as i64][..]));
        for k in 0..u {
            let doubled = 2.0 * (k as f64 + 1.0);
            assert_eq!(out[0].values[k].as_f64(), doubled);
            (0..3).for_each(|i| assert_eq!(out[1].values[i * u + k].as_f64(), doubled * i as f64));
        }
    }
}

#[test]
fn numbers_out_of_range_and_assertions_are_errors() {
    let c = compiled();
    for (u, flag, expected) in [
        (7, true, "step `u` gives 7, outside of the range 0..=6 of `u`"),
        (-1, true, "step `u` gives -1, outside of the range 0..=6 of `u`"),
        (2, false, "assertion `flag` failed: the flag is set"),
    ] {
        let error = run(&c, u, flag).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(error, expected);
    }
    // A call that failed leaves nothing behind.
    assert_eq!(run(&c, 3, true).unwrap()[0].sizes, [3]);
}
