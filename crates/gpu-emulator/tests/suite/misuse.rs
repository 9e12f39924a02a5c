//! The emulator detects kernels that break the rules, and reports the kernel, the place and the violation.
#![allow(clippy::unwrap_used)] // a failing test may panic

use gpu_codegen::Prelude;
use gpu_emulator::{Emulator, EmulatorError};
use gpu_runtime::{Arguments, Driver, Grid, Module};

/// Runs a kernel body over one buffer of 64 floats with 64 threads per block, and returns the buffer or the error; `None`
/// where there is no compiler.
fn run(body: &str, blocks: u32, shared: u32) -> Option<Result<Vec<f32>, EmulatorError>> {
    if let Err(why) = gpu_emulator::available() {
        eprintln!("skipped: {why}");
        return None;
    }
    let device = Emulator::default();
    let kernel = format!("extern \"C\" __global__ void k(float *out, i64 n) {{\n{body}\n}}\n");
    let module = Module::new(&Prelude::new(&device.target()), kernel, vec!["k".into()]);
    let functions = device.compile(&[module]).unwrap();
    let out = device.allocate(64 * 4).unwrap();
    let grid = Grid { blocks: [blocks, 1, 1], threads: 64, shared };
    // SAFETY: the kernel takes an address and a number; accesses beyond the buffer hit its guard zones.
    let ended = unsafe { device.launch_checked(&functions[0][0], grid, Arguments::plain(&[out, 64])) };
    let mut values = vec![0f32; 64];
    // SAFETY: the buffer has 64 floats.
    unsafe { device.download(values.as_mut_ptr().cast(), out, 256).unwrap() };
    device.free(out);
    Some(ended.map(|()| values))
}

#[test]
fn barriers_that_some_threads_never_reach() {
    let Some(ended) = run("if (threadIdx.x < 7) return; __syncthreads(); out[0] = 1;", 1, 0) else { return };
    assert!(matches!(ended, Err(EmulatorError::Diverged { thread: 7, .. })), "{ended:?}");
    let late = "if (threadIdx.x == 60) return; __syncthreads();";
    assert!(matches!(run(late, 1, 0).unwrap(), Err(EmulatorError::Diverged { .. })));
    let two = "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();";
    let ended = run(two, 1, 0).unwrap();
    assert!(ended.unwrap_err().to_string().contains("different barriers"));
}

#[test]
fn collectives_that_lanes_come_to_differently() {
    let half = "if (threadIdx.x & 1) out[0] = __shfl_sync(0xffffffffu, 1.0f, 0);";
    let Some(ended) = run(half, 1, 0) else { return };
    assert!(matches!(ended, Err(EmulatorError::Diverged { .. })), "{ended:?}");
    let mixed = "if (threadIdx.x & 1) __syncwarp(); else out[0] = __shfl_sync(0xffffffffu, 1.0f, 0);";
    assert!(run(mixed, 1, 0).unwrap().unwrap_err().to_string().contains("different collectives"));
    let own = "if (threadIdx.x & 1) __syncwarp(0xaaaaaaaau); out[threadIdx.x] = 1;";
    assert_eq!(run(own, 1, 0).unwrap().unwrap(), vec![1.0; 64]);
    let parts =
        "if (threadIdx.x < 32) { barrier_sync(1, 64); barrier_sync(2, 64); } else barrier_sync(1, 64);";
    assert!(matches!(run(parts, 1, 0).unwrap(), Err(EmulatorError::Deadlock { .. })));
}

#[test]
fn writes_outside_of_a_buffer() {
    let Some(ended) = run("if (threadIdx.x == 0) out[n + 2] = 1;", 1, 0) else { return };
    let expected = EmulatorError::OutOfBounds { kernel: "k".into(), side: "behind", distance: 9, bytes: 256 };
    assert_eq!(ended.unwrap_err(), expected);
    let ended = run("if (threadIdx.x == 0) out[-1] = 1;", 1, 0).unwrap();
    assert!(matches!(ended, Err(EmulatorError::OutOfBounds { side: "before", .. })), "{ended:?}");
}

#[test]
fn uninitialized_memory_is_nan() {
    let shared = "__shared__ float pool[64]; if (threadIdx.x < 32) pool[threadIdx.x] = 2; __syncthreads();\n\
                  out[threadIdx.x] = pool[threadIdx.x];";
    let Some(values) = run(shared, 2, 0) else { return };
    let values = values.unwrap();
    assert!(values[..32].iter().all(|x| *x == 2.0) && values[32..].iter().all(|x| x.is_nan()), "{values:?}");
    let values = run("if (threadIdx.x & 1) out[threadIdx.x] = 3;", 1, 0).unwrap().unwrap();
    assert!(values.iter().enumerate().all(|(i, x)| if i % 2 == 1 { *x == 3.0 } else { x.is_nan() }));
}

#[test]
fn asynchronous_copies_arrive_when_they_are_waited_for() {
    let copy = |wait: &str| {
        format!(
            "DYNAMIC_SHARED(pool); float *s = (float *)pool;\n\
             if (threadIdx.x < 16) {{\n\
             for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = 4 * threadIdx.x + i;\n\
             cp_async_16(s + 4 * threadIdx.x, out + 4 * threadIdx.x, threadIdx.x == 15 ? 4 : 16); }}\n\
             cp_async_commit(); {wait} __syncthreads();\n\
             out[threadIdx.x] = s[threadIdx.x];"
        )
    };
    let Some(values) = run(&copy("cp_async_wait<0>();"), 1, 256) else { return };
    let mut expected: Vec<f32> = (0..64).map(|i| i as f32).collect();
    expected[61..].fill(0.0);
    assert_eq!(values.unwrap(), expected);
    let values = run(&copy("cp_async_wait<1>();"), 1, 256).unwrap().unwrap();
    assert!(values.iter().all(|x| x.is_nan()), "{values:?}");
    let odd = "DYNAMIC_SHARED(pool); cp_async_16(pool, out + 1);";
    assert!(matches!(run(odd, 1, 256).unwrap(), Err(EmulatorError::Illegal { .. })));
}

#[test]
fn launches_that_no_device_takes() {
    let Some(ended) = run("out[threadIdx.x] = 1;", 0, 0) else { return };
    assert!(matches!(ended, Err(EmulatorError::Launch { .. })), "{ended:?}");
}

/// A kernel with a barrier in shared memory that expects one arrival, and a tensor of 64 floats to copy from.
fn with_barrier(body: &str) -> Option<Result<Vec<f32>, EmulatorError>> {
    let head = "__shared__ u64 bar[1]; DYNAMIC_TILES(pool);
if (threadIdx.x == 0) mbarrier_init(bar, 1);
FfxTensor tensor = {(u64)out, {32, 2}, {4, 128}, {32, 8, 1, 1, 1}, 2, 4};
const TensorMap map((u64)&tensor);
__syncthreads();\n";
    run(&format!("{head}{body}"), 1, 1024)
}

#[test]
fn barriers_in_memory_count_exactly() {
    let Some(ended) = with_barrier("if (threadIdx.x == 0) mbarrier_arrive<1>(bar); mbarrier_wait(bar, 0);")
    else {
        return;
    };
    ended.unwrap();
    let ended = with_barrier("if (threadIdx.x == 5) mbarrier_wait(bar, 0);").unwrap();
    assert!(ended.unwrap_err().to_string().contains("1 at barriers in memory"));
    let twice = "if (threadIdx.x == 0) { mbarrier_init(bar, 2); mbarrier_arrive<1>(bar); mbarrier_expect(bar, 8); mbarrier_arrive<1>(bar); }";
    let ended = with_barrier(twice).unwrap();
    assert!(matches!(ended, Err(EmulatorError::Illegal { thread: 0, .. })), "{ended:?}");
}

#[test]
fn boxes_arrive_when_they_are_waited_for() {
    let copy = |wait: &str| {
        format!(
            "out[threadIdx.x] = threadIdx.x; __syncthreads();
if (threadIdx.x == 0) {{ mbarrier_expect(bar, 1024); tma_load<1>(pool, map, bar, {{0, 1}}); {wait} }}
__syncthreads();
// Line 0 is row 1 of the tensor, in its order; line 1 is beyond the end.
out[threadIdx.x] = ((float *)pool)[threadIdx.x];"
        )
    };
    let Some(values) = with_barrier(&copy("mbarrier_wait(bar, 0);")) else { return };
    let expected: Vec<f32> = (0..64).map(|i| if i < 32 { 32.0 + i as f32 } else { 0.0 }).collect();
    assert_eq!(values.unwrap(), expected);
    let ended = with_barrier(&copy("")).unwrap();
    assert!(ended.unwrap_err().to_string().contains("1 boxes"), "a copy that nobody waits for");
}
