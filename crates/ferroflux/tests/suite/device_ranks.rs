//! Programs with exchanges on backends that keep tensors on a device: each rank has an emulated GPU of its own, and the engine
//! exchanges their memory. What the exchanges of real devices add (streams of their library) is not here.

use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use ferroflux::fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ferroflux::ir_core::{DType, SymExpr, TensorMeta};
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::TrainOptions;
use plugin_host::{CompileArgs, DeviceId, HostError, KERNEL_IR, Registry, World, dlpack};
use prims::Builder;
use tensor::Tensor;

const RANKS: usize = 2;

/// Of a graph `(3, 2) -> exchange of it doubled -> plus one`, as bytes.
fn program(exchange: &str, args: &[Arg], transposed: bool) -> Vec<u8> {
    let mut graph = Graph::new(exchange.to_owned());
    let sizes = [3i64, 2].map(SymExpr::from_i64);
    let meta = TensorMeta::contiguous(DType::F32, sizes);
    let x = graph.placeholder(InputKind::User, "x".to_owned(), "x", ValueType::Tensor(meta));
    let mut call = |target: &str, args: Vec<Arg>| -> ValueId {
        let mut b = Builder::new(&mut graph, "v", OriginId(0));
        b.call1(target, args).unwrap_or_else(|e| panic!("{target}: {e}"))
    };
    let operand = match transposed {
        true => call("aten.transpose.int", vec![x.into(), 0i64.into(), 1i64.into()]),
        false => call("aten.mul.Scalar", vec![x.into(), 2.0.into()]),
    };
    let all = [Arg::Value(operand)].into_iter().chain(args.iter().cloned()).chain([Arg::from("dp")]);
    let exchanged = call(exchange, all.collect());
    let y = call("aten.add.Scalar", vec![exchanged.into(), 1.0.into()]);
    graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(y) });
    let graph = prims::decompose(&graph).unwrap();
    inductor::compile(&graph, &inductor::Options::default()).unwrap().to_bytes()
}

/// Devices that no other run uses: a rank holds its device while it waits for the others.
fn own_devices() -> Vec<DeviceId> {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    let first = NEXT.fetch_add(RANKS as i32, Relaxed);
    (first..).take(RANKS).map(|device_id| DeviceId { device_type: dlpack::DL_EXT_DEV, device_id }).collect()
}

/// What each rank gets of a program; rank `r` gives `6r, 6r + 1, …`.
fn on_ranks(name: &str, bytes: &[u8], mode: &str) -> Vec<Vec<f32>> {
    let registry = Registry::from_env();
    let (backend, engine) = (registry.load("gpu-emulator").unwrap(), registry.load("cpu").unwrap());
    let engine = engine.collectives().unwrap().expect("the backend `cpu` has an engine");
    let devices = own_devices();
    let one = |rank: usize| {
        let world = World {
            rank,
            size: RANKS,
            device: devices[rank],
            address: format!("devices {name} {mode}"),
            timeout: None,
        };
        let joined = engine.join(&world).unwrap();
        let own = CompileArgs { device: Some(world.device), ..CompileArgs::new(KERNEL_IR, bytes).mode(mode) };
        let mut executable = backend.compile(&own).unwrap_or_else(|e| panic!("{name}: {e}"));
        executable.attach_groups(&[("dp", &joined)]).unwrap();
        executable.bind_constants(&[]).unwrap();
        let values: Vec<f32> = (0..6).map(|n| (6 * rank + n) as f32).collect();
        let x = Tensor::from_vec(values, &[3, 2]).unwrap();
        // Later calls run what the first has prepared or recorded.
        let runs = [(); 3].map(|()| executable.execute(&[&x]).unwrap_or_else(|e| panic!("{name}: {e}")));
        let [first, second, third] = runs.map(|outputs| outputs[0].to_vec::<f32>().unwrap());
        assert!(first == second && second == third, "{name} {mode}: calls differ");
        first
    };
    std::thread::scope(|scope| {
        let one = &one;
        let ranks: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || one(rank))).collect();
        ranks.into_iter().map(|r| r.join().expect("no rank panics")).collect()
    })
}

fn check(exchange: &str, args: &[Arg], transposed: bool, expected: [&[f32]; RANKS]) {
    if gpu_emulator::available().is_err() {
        eprintln!("skipped: there is no C++ compiler for the emulated GPU");
        return;
    }
    let bytes = program(exchange, args, transposed);
    for mode in ["default", "reduce-overhead", "max-autotune"] {
        assert_eq!(on_ranks(exchange, &bytes, mode), expected, "{exchange} in {mode}");
    }
}

/// Two exchanges stand side by side and run beside products, whose result is added to theirs.
#[test]
fn exchanges_run_beside_other_work_until_they_are_waited_for() {
    if gpu_emulator::available().is_err() {
        eprintln!("skipped: there is no C++ compiler for the emulated GPU");
        return;
    }
    let text = r#"fx 1.0
graph "beside" {
  %x: f32[3, 2] = input "x"
  %a: f32[3, 2] = prims.mul(%x, 2.0)
  %e: f32[3, 2] = prims.all_reduce(%a, "sum", "dp")
  %f: f32[3, 2] = prims.all_reduce(%x, "max", "dp")
  %t: f32[2, 3] = prims.permute(%x, [1, 0])
  %p: f32[2, 2] = prims.matmul(%t, %x)
  %q: f32[3, 2] = prims.matmul(%x, %p)
  %r: f32[3, 2] = prims.matmul(%q, %p)
  %s: f32[3, 2] = prims.add(%e, %f)
  %y: f32[3, 2] = prims.add(%s, %r)
  return %y
}
"#;
    let program = inductor::compile(&text.parse().unwrap(), &inductor::Options::default()).unwrap();
    let started = (0..program.steps.len()).any(|n| kernel_ir::side_by_side(&program.steps[n..]) == 2);
    assert!(started, "{program}");
    let x = |rank: usize| -> Vec<f32> { (0..6).map(|n| (6 * rank + n) as f32).collect() };
    let product = |a: &[f32], b: &[f32]| -> Vec<f32> {
        let one = |n: usize| (0..2).map(|k| a[n / 2 * 2 + k] * b[2 * k + n % 2]).sum();
        (0..a.len()).map(one).collect()
    };
    let expected = |rank: usize| -> Vec<f32> {
        let own = x(rank);
        let p: Vec<f32> =
            (0..4).map(|n| (0..3).map(|k| own[2 * k + n / 2] * own[2 * k + n % 2]).sum()).collect();
        let r = product(&product(&own, &p), &p);
        (0..6).map(|n| 2.0 * (x(0)[n] + x(1)[n]) + x(1)[n] + r[n]).collect()
    };
    for mode in ["default", "reduce-overhead", "max-autotune"] {
        let got = on_ranks("beside", &program.to_bytes(), mode);
        assert_eq!(got, [expected(0), expected(1)], "{mode}");
    }
}

#[test]
fn sums_of_ranks_are_in_the_order_of_the_devices_work() {
    let sum: &[f32] = &[13., 17., 21., 25., 29., 33.];
    check("prims.all_reduce", &["sum".into()], false, [sum, sum]);
}

#[test]
fn blocks_of_all_ranks_stand_in_their_order() {
    let all: &[f32] = &[1., 3., 5., 7., 9., 11., 13., 15., 17., 19., 21., 23.];
    check("prims.all_gather", &[2i64.into()], false, [all, all]);
}

#[test]
fn a_transposed_operand_is_exchanged_in_its_own_order() {
    let all: &[f32] = &[7., 11., 15., 9., 13., 17.];
    check("prims.all_reduce", &["sum".into()], true, [all, all]);
}

#[test]
fn a_shift_without_a_neighbour_gives_zeros() {
    let args = [Arg::from(1i64), Arg::from(false)];
    check("prims.shift", &args, false, [&[1.; 6], &[1., 3., 5., 7., 9., 11.]]);
}

#[test]
fn a_group_that_the_program_was_not_given_is_an_error() {
    if gpu_emulator::available().is_err() {
        return;
    }
    let bytes = program("prims.all_reduce", &["sum".into()], false);
    let backend = Registry::from_env().load("gpu-emulator").unwrap();
    let mut executable = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes)).unwrap();
    executable.bind_constants(&[]).unwrap();
    let x = Tensor::zeros(DType::F32, &[3, 2]).unwrap();
    let error = executable.execute(&[&x]).unwrap_err().to_string();
    assert!(error.contains("ranks of group `dp`, which this call does not have"), "{error}");
}

#[test]
fn an_engine_for_other_memory_is_refused() {
    let registry = Registry::from_env();
    let engine = registry.load("cpu").unwrap().collectives().unwrap().expect("an engine");
    let device = DeviceId { device_type: dlpack::DL_CUDA, device_id: 0 };
    let world = World { rank: 0, size: 1, device, address: "other memory".into(), timeout: None };
    let joined = engine.join(&world).unwrap();
    let bytes = program("prims.all_reduce", &["sum".into()], false);
    let mut executable = registry.load("cpu").unwrap().compile(&CompileArgs::new(KERNEL_IR, &bytes)).unwrap();
    let refused = executable.attach_groups(&[("dp", &joined)]).unwrap_err();
    assert!(matches!(&refused, HostError::OtherMemory { engine, .. } if engine == "cpu"), "{refused}");
}

/// A rank's part of a weight is a view of the whole, cut along columns. On a device it has memory of its own, which the step
/// writes.
#[test]
fn a_part_of_a_tensor_is_trained_on_a_device() {
    if gpu_emulator::available().is_err() {
        return;
    }
    let text = r#"fx 1.0
graph "step" {
  %w: f32[3, 2] = parameter "w"
  %x: f32[4, 2] = input "x"
  %y: f32[4, 3] = aten.linear.default(%x, %w)
  %z: f32[4, 3] = aten.mul.Tensor(%y, %y)
  %loss: f32[] = aten.sum.default(%z)
  return %loss
}
"#;
    let whole = Tensor::from_vec((0..12).map(|n| n as f32 - 5.0).collect::<Vec<f32>>(), &[3, 4]).unwrap();
    let part = whole.narrow(1, 1, 2).unwrap();
    let x = Tensor::from_vec((0..8).map(|n| 0.5 * n as f32).collect::<Vec<f32>>(), &[4, 2]).unwrap();
    let weights = |backend: &str| -> Vec<f32> {
        let given = std::collections::BTreeMap::from([("w".to_owned(), part.clone())]);
        let program = ferroflux::Program::from_graph(text.parse().unwrap(), &given).unwrap();
        let sgd = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
        let options = ferroflux::Options::new().backend(backend).cache(ferroflux::cache::Cache::Off);
        let mut step = program.train_step(&sgd, &options).unwrap();
        for _ in 0..2 {
            step.step(std::slice::from_ref(&x), 1e-3).unwrap();
        }
        step.weights().unwrap()["w"].iter_f64().map(|v| v as f32).collect()
    };
    let (own, wanted) = (weights("gpu-emulator"), weights("oracle"));
    assert!(
        own.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0)),
        "{own:?}, {wanted:?}"
    );
}
