//! Saved code: the same results in another process, where this library lies elsewhere in memory; damaged bytes refused.

#![allow(clippy::unwrap_used, missing_docs)] // a failing test may panic
use std::time::Instant;

use crate::common::*;
use backend_cpu::CpuBackend;
use ir_core::DType;
use kernel_ir::{BodyBuilder, IR_MAJOR, IR_MINOR, Program, ScalarOp, Stage, StoreMode};
use plugin_sdk::dlpack::DL_CPU;
use plugin_sdk::{
    Artifact, Backend, CompileRequest, Constants, DeviceId, ErrorKind, Executable, Host, IrVersion, Options,
    ProgramBytes, Stream, TensorView,
};

const HOST: DeviceId = DeviceId { device_type: DL_CPU, device_id: 0 };
/// Set in the process that only loads.
const PATH: &str = "FFX_TEST_ARTIFACT";
const SIZE: usize = 1003;

fn backend() -> CpuBackend {
    CpuBackend::open(Host::NONE).unwrap()
}

/// Kernels that need everything that code may refer to: host functions of several types, the block of zeros, library calls
/// of Cranelift, and constants.
fn program(kernels: usize) -> Program {
    let mut b = Build::default();
    let size = || shape(&[SIZE as i64]);
    let mut from = b.input(DType::F32, size());
    for k in 0..kernels {
        let to = if k + 1 == kernels { b.output(DType::F32, size()) } else { b.arena(DType::F32, size()) };
        let mut body = BodyBuilder::new();
        let at = || [i(0)].into_iter().collect();
        let x = body.load(from, DType::F32, at());
        let c = body.constant(1.0 + k as f64 / 64.0, DType::F32);
        let ops = [ScalarOp::Lgamma, ScalarOp::Digamma, ScalarOp::Round, ScalarOp::Exp];
        let y = body.op(ops[k % 4], &[x]);
        let y = body.op(ScalarOp::Atan2, &[y, c]);
        let y = body.op(ScalarOp::Pow, &[c, y]);
        let mask = body.op(ScalarOp::Lt, &[y, c]);
        let masked = body.load_masked(from, DType::F32, at(), mask);
        let sum = body.op(ScalarOp::Add, &[masked, y]);
        body.store(to, at(), sum, StoreMode::Write);
        let insts = body.finish();
        b.kernel(size(), vec![], vec![Stage { inner: shape(&[]), insts }]);
        from = to;
    }
    b.finish()
}

fn compiled(program: &Program) -> Box<dyn Executable> {
    let bytes = program.to_bytes();
    let options = Options::resolve(&backend().describe().options, &[("threads", "2")]).unwrap();
    let program = ProgramBytes { ir: IrVersion::kernel_ir(IR_MAJOR, IR_MINOR), bytes: &bytes };
    backend().compile(&CompileRequest { program, device: HOST, mode: "default", options }).unwrap()
}

fn load(payload: &[u8]) -> Result<Box<dyn Executable>, plugin_sdk::PluginError> {
    backend().load_artifact(&Artifact { device: HOST, payload })
}

fn run(executable: &dyn Executable) -> Vec<u32> {
    let x: Vec<f32> = (0..SIZE).map(|k| k as f32 / 97.0 + 0.1).collect();
    let sizes = [SIZE as i64];
    let view = TensorView::from_slice(&x, DType::F32, &sizes, &[1]).unwrap();
    let mut out = executable.execute(&[view], &Constants::NONE, Stream::DEFAULT).unwrap();
    read(&mut out[0]).values.iter().map(|v| (v.as_f64() as f32).to_bits()).collect()
}

#[test]
fn code_runs_in_another_process() {
    if let Some(path) = std::env::var_os(PATH) {
        let loaded = load(&std::fs::read(&path).unwrap()).unwrap();
        let bits: Vec<u8> = run(&*loaded).iter().flat_map(|b| b.to_le_bytes()).collect();
        std::fs::write(path, bits).unwrap();
        return;
    }
    let original = compiled(&program(8));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), original.save_artifact().unwrap()).unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "artifact::code_runs_in_another_process"])
        .env(PATH, file.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let wanted: Vec<u8> = run(&*original).iter().flat_map(|b| b.to_le_bytes()).collect();
    assert!(std::fs::read(file.path()).unwrap() == wanted, "the loaded code computes something else");
}

#[test]
fn an_artifact_is_the_same_program_again() {
    let original = compiled(&program(5));
    let saved = original.save_artifact().unwrap();
    let loaded = load(&saved).unwrap();
    assert_eq!(loaded.signature(), original.signature());
    assert_eq!(run(&*loaded), run(&*original));
    assert!(loaded.save_artifact().unwrap() == saved, "loading loses nothing");
}

#[test]
fn damaged_payloads_are_refused() {
    let saved = compiled(&program(1)).save_artifact().unwrap();
    for end in 0..saved.len() {
        assert_eq!(load(&saved[..end]).err().unwrap().kind, ErrorKind::Damaged, "cut at {end}");
    }
    let mut longer = saved.clone();
    longer.push(0);
    assert_eq!(load(&longer).err().unwrap().kind, ErrorKind::Damaged);
    // The code of another program.
    let other = compiled(&program(2)).save_artifact().unwrap();
    // The threads, whether it searches, the empty folder, and the program with its length.
    let program_bytes = |saved: &[u8]| 32 + u64::from_le_bytes(saved[24..32].try_into().unwrap()) as usize;
    let mixed = [&saved[..program_bytes(&saved)], &other[program_bytes(&other)..]].concat();
    assert_eq!(load(&mixed).err().unwrap().kind, ErrorKind::Damaged);
}

#[test]
fn loading_skips_compilation() {
    let program = program(64);
    let started = Instant::now();
    let original = compiled(&program);
    let compile = started.elapsed();
    let saved = original.save_artifact().unwrap();
    let started = Instant::now();
    let loaded = load(&saved).unwrap();
    println!(
        "64 kernels: compiled in {compile:?}, loaded in {:?} from {} bytes",
        started.elapsed(),
        saved.len()
    );
    assert_eq!(run(&*loaded), run(&*original));
}

#[test]
fn the_compatibility_string_names_build_and_instruction_set() {
    let text = backend().artifact_compat(HOST).unwrap().unwrap();
    assert!(text.starts_with("build ") && text.contains(std::env::consts::ARCH), "{text}");
}
