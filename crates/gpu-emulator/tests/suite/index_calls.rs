//! What a call tells its caller of an index that is out of bounds: in every mode, where several are found, through control
//! flow, of inputs that are written in place, of calls that nobody waits for, and from many threads.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::checked::{self, Code, MODES, available, expected, floats, ints, program};
use gpu_codegen::Target;
use gpu_emulator::Emulator;
use gpu_runtime::{GpuError, Inputs, Mode, Settings};
use plugin_host::{Arg, CompileArgs, KERNEL_IR, Value};
use tensor::Tensor;

/// Two tables, one after another, by the same kernel: `z = one[first] + two[second]` through a temporary.
const TWO: &str = r#"kir 1.6
program "two"
site "aten.embedding.default" "model.py:12" dim 0
site "aten.embedding.default" "model.py:13" dim 0
buffer b0 "one" f32[5, 8]{8, 1}+0 input 0
buffer b1 "two" f32[5, 8]{8, 1}+0 input 1
buffer b2 "first" i64[6]{1}+0 input 2
buffer b3 "second" i64[6]{1}+0 input 3
buffer b4 "y" f32[6, 8]{8, 1}+0 output
buffer b5 "z" f32[6, 8]{8, 1}+0 output
input "one" b0
input "two" b1
input "first" b2
input "second" b3
output "y" b4[6, 8]{8, 1}+0
output "z" b5[6, 8]{8, 1}+0
init:
steps:
loop "first" outer [6, 8]
  stage []
    v0: i64 = load b2[i0]
    v1: i64 = check v0, [5] at 0
    v2: f32 = load b0[v1, i1]
    v3: f32 = store b4[i0, i1], v2
loop "second" outer [6, 8]
  stage []
    v0: i64 = load b3[i0]
    v1: i64 = check v0, [5] at 1
    v2: f32 = load b1[v1, i1]
    v3: f32 = store b5[i0, i1], v2
plan bytes 0:
"#;

fn two(first: [i64; 6], second: [i64; 6]) -> Vec<Tensor> {
    vec![floats(&[5, 8]), floats(&[5, 8]), ints(&first), ints(&second)]
}

const GOOD: [i64; 6] = [4, 0, 1, 2, 3, 3];

#[test]
fn kernels_that_differ_in_their_sites_are_one() {
    let modules = gpu_runtime::modules(&program(TWO), &Target::HOPPER).unwrap();
    assert_eq!(modules.iter().map(|m| m.entries.len()).sum::<usize>(), 1);
}

#[test]
fn every_mode_names_the_site_and_goes_on() {
    if !available() {
        return;
    }
    let kir = program(TWO);
    let truth = expected(&kir, &two(GOOD, GOOD));
    for mode in MODES {
        let code = Code::of(TWO, mode);
        for round in 0..4 {
            assert_eq!(code.outcome(&kir, &two(GOOD, GOOD)), truth, "{mode:?} {round}");
            let got = code.outcome(&kir, &two(GOOD, [0, 0, -3, 0, 0, 0]));
            assert_eq!(got, Err((1, -3, 5)), "{mode:?} {round}");
            // The first launch that finds one is the one that is named.
            let got = code.outcome(&kir, &two([0, 0, 0, 7, 0, 0], [0, 0, -3, 0, 0, 0]));
            assert_eq!(got, Err((0, 7, 5)), "{mode:?} {round}");
        }
        assert_eq!(code.code.is_recorded(), mode.records(), "{mode:?}");
        assert_eq!(code.outcome(&kir, &two(GOOD, GOOD)), truth, "{mode:?}");
    }
}

/// The search runs on data of its own, of which this program's check says that it is out of bounds.
#[test]
fn what_the_search_runs_is_not_reported() {
    if !available() {
        return;
    }
    let text = r#"kir 1.6
program "searched"
site "aten.index.Tensor" "model.py:1" dim 0
buffer b0 "x" f32[40000]{1}+0 input 0
buffer b1 "index" i64[40000]{1}+0 input 1
buffer b2 "y" f32[2]{1}+0 output
input "x" b0
input "index" b1
output "y" b2[2]{1}+0
init:
steps:
loop "sum" outer [2]
  acc0: f32 sum
  stage [40000]
    v0: i64 = load b1[i1]
    v1: i64 = const 1
    v2: i64 = sub v0, v1
    v3: i64 = check v2, [40000] at 0
    v4: f32 = load b0[v3]
    v5: f32 = reduce acc0, v4
  stage []
    v0: f32 = acc0
    v1: f32 = store b2[i0], v0
plan bytes 0:
"#;
    let kir = program(text);
    assert!(checked::candidates(&kir, &Target::HOPPER).len() > 1, "there is something to search");
    let code = Code::of(text, Mode::MaxAutotune);
    let good: Vec<i64> = (1..=40000).collect();
    let inputs = [floats(&[40000]), ints(&good)];
    for _ in 0..3 {
        assert_eq!(code.outcome(&kir, &inputs), expected(&kir, &inputs));
    }
    assert_eq!(code.outcome(&kir, &[floats(&[40000]), ints(&vec![0; 40000])]), Err((0, -1, 40000)));
}

/// A loop that ends when what stands at an index is 0: of a failed index nothing is decided.
#[test]
fn control_flow_stops_at_a_bad_index() {
    if !available() {
        return;
    }
    let text = r#"kir 1.6
program "walk"
site "aten.index.Tensor" "model.py:1" dim 0
buffer b0 "next" i64[5]{1}+0 input 0
buffer b1 "begin" i64[1]{1}+0 input 1
buffer b2 "at" i64[1]{1}+0 arena
buffer b3 "more" bool[]{}+0 arena
buffer b4 "steps" i64[1]{1}+0 output
input "next" b0
input "begin" b1
output "steps" b4[1]{1}+0
init:
steps:
loop "begin" outer [1]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = store b2[i0], v0
    v2: i64 = const 0
    v3: i64 = store b4[i0], v2
while "walk" b3[]{}+0
test:
loop "test" outer []
  stage []
    v0: i64 = load b2[0]
    v1: i64 = const 4
    v2: bool = ne v0, v1
    v3: bool = store b3[], v2
do:
loop "step" outer [1]
  stage []
    v0: i64 = load b2[i0]
    v1: i64 = check v0, [5] at 0
    v2: i64 = load b0[v1]
    v3: i64 = store b2[i0], v2
    v4: i64 = load b4[i0]
    v5: i64 = const 1
    v6: i64 = add v4, v5
    v7: i64 = store b4[i0], v6
end
plan bytes 128:
  b2 live 0..1 at 0
  b3 live 1..1 at 64
"#;
    let kir = program(text);
    for mode in MODES {
        let code = Code::of(text, mode);
        let walk = |next: [i64; 5]| code.outcome(&kir, &[ints(&next), ints(&[0])]);
        assert_eq!(walk([2, 4, 3, 1, 0]), Ok(vec![vec![4.0]]), "{mode:?}");
        // The kernel hands 0 on, from where the loop would go round for ever.
        assert_eq!(walk([2, 4, 3, 9, 0]), Err((0, 9, 5)), "{mode:?}");
        assert_eq!(walk([4, 4, 4, 4, 4]), Ok(vec![vec![1.0]]), "{mode:?}");
    }
}

/// Adds rows to an input in place.
const ADD: &str = r#"kir 1.6
program "add"
site "aten.index_add_.default" "model.py:9" dim 0
buffer b0 "state" f32[7, 4]{4, 1}+0 input 0
buffer b1 "x" f32[5, 4]{4, 1}+0 input 1
buffer b2 "index" i64[5]{1}+0 input 2
buffer b3 "new" f32[7, 4]{4, 1}+0 view b0
input "state" b0 written
input "x" b1
input "index" b2
init:
steps:
loop "add" outer [5, 4]
  stage []
    v0: f32 = load b1[i0, i1]
    v1: i64 = load b2[i0]
    v2: i64 = check v1, [7] at 0
    v3: f32 = store_add b3[v2, i1], v0
plan bytes 0:
"#;

#[test]
fn what_is_written_in_place_is_told() {
    if !available() {
        return;
    }
    let backend = plugin_host::Registry::from_env().load("gpu-emulator").unwrap();
    let bytes = program(ADD).to_bytes();
    let good = [0, 2, 2, 6, 1];
    for mode in ["default", "reduce-overhead"] {
        let mut code = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes).mode(mode)).unwrap();
        code.bind_constants(&[]).unwrap();
        let device = backend.devices().unwrap()[0].device;
        for on_device in [false, true] {
            for round in 0..3 {
                let state = floats(&[7, 4]);
                let place = |t: &Tensor| match on_device {
                    true => Value::Device(backend.to_device(t, device).unwrap()),
                    false => Value::Host(t.copied().unwrap()),
                };
                let mut state_value = place(&state);
                let run = |state: &mut Value, index: [i64; 5]| {
                    let (x, index) = (place(&floats(&[5, 4])), place(&ints(&index)));
                    code.execute_args(&mut [Arg::Write(state), Arg::Read(&x), Arg::Read(&index)]).map(drop)
                };
                let error = run(&mut state_value, [0, 2, 7, 6, 1]).unwrap_err().to_string();
                let place = format!("{mode} {on_device} {round}: {error}");
                assert!(
                    error.contains("`aten.index_add_.default` (model.py:9): index 7 is out of bounds"),
                    "{place}"
                );
                let told = if on_device { "may be partly written" } else { "as they were before" };
                assert!(error.contains(told), "{place}");
                if !on_device {
                    let Value::Host(after) = &state_value else { panic!("the input moved") };
                    assert_eq!(after.iter_f64().collect::<Vec<_>>(), state.iter_f64().collect::<Vec<_>>());
                }
                let mut state_value = Value::Host(state.copied().unwrap());
                run(&mut state_value, good).unwrap();
                let Value::Host(after) = state_value else { panic!("the input moved") };
                let mut wanted: Vec<f64> = state.iter_f64().collect();
                for (n, x) in floats(&[5, 4]).iter_f64().enumerate() {
                    wanted[good[n / 4] as usize * 4 + n % 4] += x;
                }
                assert_eq!(after.iter_f64().collect::<Vec<_>>(), wanted, "{place}");
            }
        }
    }
}

#[test]
fn calls_that_nobody_waits_for() {
    if !available() {
        return;
    }
    let kir = program(TWO);
    let truth = expected(&kir, &two(GOOD, GOOD));
    let bad = two(GOOD, [0, 0, -3, 0, 0, 0]);
    let found = |error: GpuError| match error {
        GpuError::Index { site, index: -3, size: 5, inputs: Inputs::None, earlier: true } => {
            assert_eq!(site.origin, "model.py:13");
        }
        other => panic!("{other}"),
    };
    let code = Code::of(TWO, Mode::Default);
    // By whoever waits for the device,
    code.start(&bad).unwrap();
    code.start(&two(GOOD, GOOD)).unwrap();
    found(code.memory.synchronize().unwrap_err());
    code.memory.synchronize().unwrap();
    assert_eq!(code.outcome(&kir, &two(GOOD, GOOD)), truth);
    // by the next call,
    code.start(&bad).unwrap();
    found(code.call(&two(GOOD, GOOD)).unwrap_err());
    assert_eq!(code.outcome(&kir, &two(GOOD, GOOD)), truth);
    code.memory.synchronize().unwrap();
    // and when the program is gone.
    code.start(&bad).unwrap();
    let memory = std::sync::Arc::clone(&code.memory);
    drop(code);
    found(memory.synchronize().unwrap_err());
    memory.synchronize().unwrap();
}

/// Each thread hears of its own calls alone.
#[test]
fn threads_hear_of_their_own_calls() {
    if !available() {
        return;
    }
    let kir = program(TWO);
    let truth = expected(&kir, &two(GOOD, GOOD));
    let code = Code::of(TWO, Mode::ReduceOverhead);
    std::thread::scope(|scope| {
        for thread in 0..4i64 {
            let (code, kir, truth) = (&code, &kir, &truth);
            scope.spawn(move || {
                for round in 0..25 {
                    let index = 100 + 10 * thread + round % 10;
                    let bad = (thread + round) % 2 == 0;
                    let got = code.outcome(kir, &two(GOOD, if bad { [0, 0, index, 0, 0, 0] } else { GOOD }));
                    assert_eq!(got, if bad { Err((1, index, 5)) } else { truth.clone() });
                }
            });
        }
    });
}

/// An init step's index is looked at when the constants are bound.
#[test]
fn indices_of_init_steps() {
    if !available() {
        return;
    }
    let text = r#"kir 1.6
program "init"
site "aten.index_select.default" "model.py:2" dim 0
buffer b0 "table" f32[4]{1}+0 constant 0
buffer b1 "index" i64[3]{1}+0 constant 1
buffer b2 "rows" f32[3]{1}+0 persistent
buffer b3 "y" f32[3]{1}+0 output
constant "table" b0
constant "index" b1
output "y" b3[3]{1}+0
init:
loop "rows" outer [3]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = check v0, [4] at 0
    v2: f32 = load b0[v1]
    v3: f32 = store b2[i0], v2
steps:
loop "copy" outer [3]
  stage []
    v0: f32 = load b2[i0]
    v1: f32 = store b3[i0], v0
plan bytes 0:
"#;
    let memory = gpu_runtime::DeviceMemory::new(std::sync::Arc::new(Emulator::default()));
    let mut code = gpu_runtime::Compiled::with(&memory, program(text), Settings::default()).unwrap();
    let mut bind = |index: [i64; 3]| {
        checked::with_views(&[floats(&[4]), ints(&index)], |views| {
            let [table, index] = views else { panic!("two constants") };
            code.bind(&[("table", *table), ("index", *index)])
        })
    };
    bind([3, 0, 1]).unwrap();
    let error = bind([3, 4, 1]).unwrap_err();
    assert!(matches!(error, GpuError::Index { index: 4, size: 4, .. }), "{error}");
    bind([0, 0, 1]).unwrap();
}
