//! Binding constants: what calls do not read any more is freed, what they read is kept, and results are those of before.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::sync::Arc;

use gpu_emulator::Emulator;
use gpu_runtime::{Compiled, DeviceMemory, Settings};

use crate::checked::{self, Code, available, program};

/// `y = x + 2 w + b`: `w` is doubled when it is bound, by way of a buffer that no call reads; `b` is read by calls.
const FOLDED: &str = r#"kir 1.6
program "folded"
buffer b0 "w" f32[4096]{1}+0 constant 0
buffer b1 "b" f32[4096]{1}+0 constant 1
buffer b2 "half" f32[4096]{1}+0 persistent
buffer b3 "folded" f32[4096]{1}+0 persistent
buffer b4 "x" f32[4096]{1}+0 input 0
buffer b5 "y" f32[4096]{1}+0 output
input "x" b4
constant "w" b0
constant "b" b1
output "y" b5[4096]{1}+0
init:
loop "once" outer [4096]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = store b2[i0], v0
loop "twice" outer [4096]
  stage []
    v0: f32 = load b2[i0]
    v1: f32 = add v0, v0
    v2: f32 = store b3[i0], v1
steps:
loop "sum" outer [4096]
  stage []
    v0: f32 = load b4[i0]
    v1: f32 = load b3[i0]
    v2: f32 = add v0, v1
    v3: f32 = load b1[i0]
    v4: f32 = add v2, v3
    v5: f32 = store b5[i0], v4
plan bytes 0:
"#;

const BYTES: u64 = 4 * 4096;

#[test]
fn what_only_init_steps_read_is_freed() {
    if !available() {
        return;
    }
    let memory = DeviceMemory::new(Arc::new(Emulator::default()));
    let code = Compiled::with(&memory, program(FOLDED), Settings::default()).unwrap();
    let mut code = Code { code, memory: Arc::clone(&memory) };
    let before = memory.usage().used;
    let [w, b, x] = [0.5f32, 1.0, 2.0].map(|k| {
        let values: Vec<f32> = (0..4096).map(|i| k * i as f32).collect();
        tensor::Tensor::from_slice(&values, &[4096]).unwrap()
    });
    for _ in 0..2 {
        checked::with_views(&[w.clone(), b.clone()], |views| {
            let [w, b] = views else { panic!("two constants") };
            code.code.bind(&[("b", *b), ("w", *w)]).unwrap();
        });
        // `folded` and the copy of `b` are left; `w` and `half` never lived beside both of them.
        assert_eq!(memory.usage().used - before, 2 * BYTES);
        assert_eq!(memory.usage().peak - before, 2 * BYTES);
        // Both were copied from the host, whose memory is not read any more.
        assert!(!code.code.reads_constant(0) && !code.code.reads_constant(1));
    }
    let y = code.call(std::slice::from_ref(&x)).unwrap();
    assert!(y[0].iter().enumerate().all(|(i, y)| *y == 4.0 * i as f64), "{:?}", &y[0][..4]);
}
