//! Tests of the backend without the host: a program in text form, called through the trait. `ferroflux plugin check` does
//! the rest.

use plugin_sdk::kernel_ir::Program;
use plugin_sdk::{Constants, DType, Executable, Stream, TensorView};

use crate::backend::Compiled;

const RELU: &str = r#"kir 1.3
program "relu"
symbol s0 "batch" 1..=64
buffer b0 "x" f32[s0, 2]{2, 1}+0 input 0
buffer b1 "y" f32[s0, 2]{2, 1}+0 output
input "x" b0
output "y" b1[s0, 2]{2, 1}+0
init:
steps:
loop "relu" outer [s0, 2]
  stage []
    v0: f32 = load b0[i0, i1]
    v1: f32 = const 0.0
    v2: f32 = max v0, v1
    v3: f32 = store b1[i0, i1], v2
plan:
"#;

#[test]
fn one_program_serves_many_sizes() {
    let program: Program = RELU.parse().unwrap();
    let compiled = Compiled::new(program).unwrap();
    for rows in [1i64, 3] {
        let x: Vec<f32> = (0..2 * rows).map(|k| k as f32 - 1.5).collect();
        let sizes = [rows, 2];
        let input = TensorView::from_slice(&x, DType::F32, &sizes, &[2, 1]).unwrap();
        let stream = Stream(std::ptr::null_mut());
        let mut out = compiled.execute(&[input], &Constants::NONE, stream).unwrap();
        let expected: Vec<f32> = x.iter().map(|v| v.max(0.0)).collect();
        assert_eq!(out[0].as_mut_slice::<f32>().unwrap(), expected);
    }
}
