//! The library as a user gets it: found by its manifest, checked, loaded, and computing.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use ir_core::{DType, SymExpr, contiguous_strides};
use kernel_ir::{
    BodyBuilder, Buffer, InputSpec, LoopKernel, OutputSpec, Program, ScalarOp, Stage, Step, Storage,
    StoreMode,
};
use plugin_host::{CompileArgs, HostError, KERNEL_IR, Registry, SearchPath, Source, manifest};
use tensor::Tensor;

/// The library that cargo built next to this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let name = format!("{}ferroflux_cpu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let found = test.ancestors().map(|dir| dir.join(&name)).find(|p| p.is_file());
    found
        .unwrap_or_else(|| panic!("{name} is not above {}: cargo builds it before this test", test.display()))
}

/// `out = exp(in) + in` over `[s0, 5]`.
fn program() -> Program {
    let mut p = Program { name: "exp_add".into(), ..Program::default() };
    let symbol =
        kernel_ir::Symbol { name: "batch".into(), min: 1, max: Some(100), hint: None, unbacked: false };
    let sizes: ir_core::Shape = [SymExpr::sym(p.symbols.push(symbol)), 5.into()].into_iter().collect();
    let strides = contiguous_strides(&sizes);
    let mut buffer = |name: &str, storage: Storage| {
        let (sizes, strides) = (sizes.clone(), strides.clone());
        p.buffers.push(Buffer {
            name: name.into(),
            dtype: DType::F32,
            sizes,
            strides,
            offset: SymExpr::ZERO,
            storage,
        })
    };
    let (x, y) = (buffer("x", Storage::Input(0)), buffer("y", Storage::Output));
    let at: ir_core::Shape = [SymExpr::loop_var(0), SymExpr::loop_var(1)].into_iter().collect();
    let mut b = BodyBuilder::new();
    let v = b.load(x, DType::F32, at.clone());
    let e = b.op(ScalarOp::Exp, &[v]);
    let sum = b.op(ScalarOp::Add, &[e, v]);
    b.store(y, at, sum, StoreMode::Write);
    let stages = vec![Stage { inner: ir_core::Shape::new(), insts: b.finish() }];
    p.steps.push(Step::Loop(LoopKernel {
        name: "exp_add".into(),
        origins: vec![],
        outer: sizes.clone(),
        accs: vec![],
        stages,
    }));
    p.inputs.push(InputSpec { name: "x".into(), buf: x, written: false });
    p.outputs.push(OutputSpec { name: "y".into(), buf: y, sizes, strides, offset: SymExpr::ZERO });
    p.plan = kernel_ir::ArenaPlan::of(&p);
    p
}

fn computes(registry: &Registry, name: &str) {
    let backend = registry.load(name).unwrap();
    let bytes = program().to_bytes();
    let executable = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes)).unwrap();
    for rows in [1usize, 3, 64] {
        let x = tensor::formula::fill("x", &[rows, 5], 2.0, 0.0).unwrap();
        let out = executable.execute(&[&x]).unwrap();
        let expected: Vec<f64> = x.iter_f64().map(|v| v.exp() + v).collect();
        let expected = Tensor::from_vec(expected, &[rows, 5]).unwrap();
        tensor::allclose(&out[0].to_dtype(DType::F64).unwrap(), &expected, 1e-6, 1e-6).unwrap();
    }
}

fn installed(dir: &Path) -> PathBuf {
    let copy = dir.join(library().file_name().unwrap());
    std::fs::copy(library(), &copy).unwrap();
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/ferroflux-cpu.json");
    let path = dir.join("ferroflux-cpu.json");
    let complete = manifest::Template::read(Path::new(template)).unwrap().complete(
        &copy,
        env!("CARGO_PKG_VERSION"),
        &path,
    );
    complete.unwrap().write(&path).unwrap();
    copy
}

#[test]
fn found_by_manifest_and_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let copy = installed(dir.path());
    let registry = Registry::new(&SearchPath::only(dir.path()));
    let info = registry.list_backends().into_iter().find(|b| b.name == "cpu").unwrap();
    assert_eq!(info.unavailable_because, None);
    assert!(matches!(info.source, Source::Manifest(_)), "{:?}", info.source);
    computes(&registry, "cpu");
    computes(&registry, copy.to_str().unwrap());
}

#[test]
fn a_changed_library_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let copy = installed(dir.path());
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes.push(0);
    std::fs::write(&copy, bytes).unwrap();
    let registry = Registry::new(&SearchPath::only(dir.path()));
    assert!(matches!(registry.load("cpu"), Err(HostError::Checksum { .. })));
}
