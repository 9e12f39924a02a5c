//! The plugin's trait: a program as bytes in, tensors out; malformed and unsupported programs are errors.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::CpuBackend;
use ir_core::{DType, SymExpr};
use kernel_ir::{
    AccId, BodyBuilder, IR_MAJOR, IR_MINOR, InstKind, Program, ScalarOp, Stage, Step, StoreMode,
};
use plugin_sdk::dlpack::DL_CPU;
use plugin_sdk::{
    Backend, CompileRequest, Constants, DeviceId, Host, IrVersion, Options, ProgramBytes, Stream, TensorView,
};

fn doubled() -> Program {
    let mut b = Build::default();
    let s = b.symbol("n", 1, 1000);
    let size = || [s.clone()].into_iter().collect();
    let (x, y) = (b.input(DType::F32, size()), b.output(DType::F32, size()));
    let at = || [i(0)].into_iter().collect();
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, at());
    let v = body.op(ScalarOp::Add, &[v, v]);
    body.store(y, at(), v, StoreMode::Write);
    b.kernel(size(), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    b.finish()
}

fn with<R>(p: &Program, f: impl FnOnce(&CpuBackend, &CompileRequest<'_>) -> R) -> R {
    let backend = CpuBackend::open(Host::NONE).unwrap();
    let bytes = p.to_bytes();
    let options = Options::resolve(&backend.describe().options, &[("threads", "2")]).unwrap();
    let program = ProgramBytes { ir: IrVersion::kernel_ir(IR_MAJOR, IR_MINOR), bytes: &bytes };
    let device = DeviceId { device_type: DL_CPU, device_id: 0 };
    f(&backend, &CompileRequest { program, device, mode: "default", options })
}

fn refusal(p: &Program) -> String {
    with(p, |b, r| b.compile(r).err().map(|e| e.to_string()).unwrap_or_default())
}

#[test]
fn bytes_in_tensors_out() {
    let compiled = with(&doubled(), |b, r| b.compile(r)).unwrap();
    assert_eq!((compiled.signature().inputs, compiled.signature().outputs), (1, 1));
    for n in [1usize, 7, 1000] {
        let x: Vec<f32> = (0..n).map(|k| k as f32).collect();
        let sizes = [n as i64];
        let view = TensorView::from_slice(&x, DType::F32, &sizes, &[1]).unwrap();
        let mut y = compiled.execute(&[view], &Constants::NONE, Stream(std::ptr::null_mut())).unwrap();
        let got = read(&mut y[0]);
        assert!(got.values.iter().zip(&x).all(|(g, w)| g.as_f64() == f64::from(2.0 * w)));
    }
}

/// Changes the only kernel's only stage.
fn broken(f: impl FnOnce(&mut Vec<kernel_ir::Inst>)) -> Program {
    let mut p = doubled();
    let Step::Loop(k) = &mut p.steps[0] else { panic!("a loop") };
    f(&mut k.stages[0].insts);
    p
}

#[test]
fn malformed_programs_are_refused_by_name() {
    let uses_later = broken(|insts| insts.swap(0, 1));
    assert!(
        refusal(&uses_later).contains("kernel `k0`, stage 0, v0: it uses a value"),
        "{}",
        refusal(&uses_later)
    );
    let dtype = broken(|insts| insts[1].dtype = DType::F64);
    assert!(refusal(&dtype).contains("`add` does not take"), "{}", refusal(&dtype));
    let acc = broken(|insts| insts[0].kind = InstKind::Acc(AccId(3)));
    assert!(refusal(&acc).contains("accumulator does not exist"), "{}", refusal(&acc));
    let variable = broken(|insts| {
        if let InstKind::Load { index, .. } = &mut insts[0].kind {
            index[0] = SymExpr::loop_var(5);
        }
    });
    assert!(refusal(&variable).contains("unknown loop variable"), "{}", refusal(&variable));
    let rank = broken(|insts| {
        if let InstKind::Load { index, .. } = &mut insts[0].kind {
            index.push(SymExpr::ZERO);
        }
    });
    assert!(refusal(&rank).contains("another rank"), "{}", refusal(&rank));
    let input = broken(|insts| {
        if let InstKind::Store { buf, .. } = &mut insts[2].kind {
            *buf = kernel_ir::BufId(0);
        }
    });
    assert!(refusal(&input).contains("writes an input"), "{}", refusal(&input));
}

#[test]
fn complex_kernels_are_refused_with_a_reason() {
    let mut p = doubled();
    p.buffers.iter_mut().for_each(|(_, b)| b.dtype = DType::C64);
    let Step::Loop(k) = &mut p.steps[0] else { panic!("a loop") };
    k.stages[0].insts.iter_mut().for_each(|i| i.dtype = DType::C64);
    let refused = with(&p, |b, r| b.query_support(r)).unwrap();
    assert_eq!(refused.len(), 1);
    assert!(refused[0].node == "k0" && refused[0].reason.contains("c64"), "{refused:?}");
}

#[test]
fn programs_of_many_kernels_run() {
    // 64 different bodies of some operators each. The times are told and not judged: the machine is shared.
    let mut b = Build::default();
    let mut from = b.input(DType::F32, shape(&[4096]));
    for k in 0..64 {
        let to =
            if k == 63 { b.output(DType::F32, shape(&[4096])) } else { b.arena(DType::F32, shape(&[4096])) };
        let mut body = BodyBuilder::new();
        let at = || [i(0)].into_iter().collect();
        let v = body.load(from, DType::F32, at());
        let c = body.constant(k as f64 / 64.0, DType::F32);
        let s = body.op(ScalarOp::Add, &[v, c]);
        let op = [ScalarOp::Tanh, ScalarOp::Abs, ScalarOp::Exp, ScalarOp::Neg][k % 4];
        let s = body.op(op, &[s]);
        let s = body.op(ScalarOp::Mul, &[s, v]);
        body.store(to, at(), s, StoreMode::Write);
        b.kernel(shape(&[4096]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
        from = to;
    }
    let p = b.finish();
    let started = std::time::Instant::now();
    let compiled = compile(p);
    let each = started.elapsed().as_secs_f64() * 1e3 / 64.0;
    println!("{each:.3} ms a kernel, {} bytes of code", compiled.code_bytes());
    assert!(compiled.code_bytes() > 0);
    let x = Data::floats(DType::F32, &[4096], |k| k as f64 / 4096.0);
    let outputs = execute(&compiled, std::slice::from_ref(&x)).unwrap();
    assert_eq!(outputs.len(), 1);
    let started = std::time::Instant::now();
    (0..20).for_each(|_| drop(execute(&compiled, std::slice::from_ref(&x)).unwrap()));
    println!("{:.1} us a call of 64 steps over 4096 values", started.elapsed().as_secs_f64() * 1e6 / 20.0);
}
