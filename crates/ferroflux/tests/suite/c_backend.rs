//! The example of a backend in C: built here with `cc` against the header alone, loaded by path and by manifest, and held
//! against the interpreter.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ferroflux::func::{self, Func, Types};
use ferroflux::{DType, Options, Tensor};
use plugin_host::{
    CompileArgs, HostError, IrVersion, KERNEL_IR, LoadedBackend, Registry, SearchPath, Source,
};
use tempfile::TempDir;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c-backend")
}

/// Runs the C compiler on the example's sources with the header of a folder of `plugin-abi`.
fn cc(header: &str, arguments: &[&str], output: &Path) {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-abi").join(header);
    let mut sources: Vec<PathBuf> =
        example().join("src").read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    sources.retain(|p| p.extension().is_some_and(|e| e == "c"));
    let built = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg(format!("-I{}", include.display()))
        .args(&sources)
        .args(arguments)
        .args([Path::new("-o"), output, Path::new("-lm")])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// The library, built once: against this version's header and against that of every released minor.
fn libraries() -> &'static [PathBuf] {
    static BUILT: OnceLock<(TempDir, Vec<PathBuf>)> = OnceLock::new();
    let build = |folder: &TempDir, name: &str, header: &str| {
        let path = folder.path().join(name);
        cc(header, &["-O2", "-fPIC", "-shared", "-fvisibility=hidden"], &path);
        path
    };
    let (_, paths) = BUILT.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let current = build(&folder, "libc_loops.so", "include");
        let old = build(&folder, "libc_loops_1_0.so", "include/released/1.0");
        (folder, vec![current, old])
    });
    paths
}

fn library() -> &'static Path {
    &libraries()[0]
}

fn by_path() -> Options {
    Options::new().backend(library().to_str().unwrap())
}

fn loaded() -> LoadedBackend {
    Registry::new(&SearchPath::default()).load(library().to_str().unwrap()).unwrap()
}

fn input(name: &str, sizes: &[usize]) -> Tensor {
    ferroflux::tensor::formula::fill(name, sizes, 1.0, 0.0).unwrap()
}

/// Compares the library with the interpreter in double precision.
fn check(f: &Func, inputs: &[Tensor]) {
    let wide: Vec<Tensor> = inputs.iter().map(|t| t.to_dtype(DType::F64).unwrap()).collect();
    let wanted = f.call(&wide, &Options::new().backend("eager")).unwrap();
    for library in libraries() {
        let got = f.call(inputs, &Options::new().backend(library.to_str().unwrap())).unwrap();
        assert_eq!(wanted.len(), got.len());
        for (wanted, got) in wanted.iter().zip(&got) {
            assert_eq!((got.dtype(), got.sizes()), (DType::F32, wanted.sizes()));
            for (w, g) in wanted.iter_f64().zip(got.iter_f64()) {
                assert!((w - g).abs() <= 4e-6 * (1.0 + w.abs()), "{g}, not {w}");
            }
        }
    }
}

fn mixed() -> Func {
    func::of_many(|[x, y]| {
        let z = x.sin() * y.exp() - x.relu();
        [z.sigmoid(), (z * z + y).abs().sqrt(), z.gelu()]
    })
}

#[test]
fn elementwise_programs_agree_with_the_interpreter() {
    check(&mixed(), &[input("x", &[3, 4]), input("y", &[3, 4])]);
    check(&mixed(), &[input("x", &[2, 3, 4]), input("y", &[4])]);
    check(&mixed(), &[input("x", &[]), input("y", &[5])]);
    check(&mixed(), &[input("x", &[0, 4]), input("y", &[4])]);
}

#[test]
fn strided_inputs_are_read_where_they_lie() {
    let (x, y) = (input("x", &[4, 3]), input("y", &[6, 4]));
    let spread = input("z", &[1, 4]).expand(&[3, 4]).unwrap();
    check(&mixed(), &[x.transpose(0, 1).unwrap(), y.narrow(0, 2, 3).unwrap()]);
    check(&mixed(), &[spread, y.narrow(0, 1, 3).unwrap()]);
}

#[test]
fn reductions_and_views_agree_with_the_interpreter() {
    let norms = func::of_many(|[x]| {
        let list = func::Operand::from(&[6i64][..]);
        [x.softmax(-1), x.call("aten.layer_norm.default", [list]), x.transpose(0, 1).reshape(&[3, 8])]
    });
    check(&norms, &[input("x", &[4, 6])]);
    check(&func::of(|[x]| (x.mean() - x).pow(2.0).sum()), &[input("x", &[7, 5])]);
    let derived = func::grad(&func::of(|[x]| (x.tanh() * x.softmax(0)).sum()));
    check(&derived, &[input("x", &[9])]);
}

#[test]
fn one_executable_serves_every_size_and_many_threads() {
    let mut types = Types::new();
    let n = types.symbol("n", 1, Some(100));
    let types = types.tensor(DType::F32, [n, 3.into()]);
    let f = func::of(|[x]| x.softmax(0) + x.cos());
    let (here, wanted) = (
        f.compile(&types, &by_path()).unwrap(),
        f.compile(&types, &Options::new().backend("eager")).unwrap(),
    );
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (here, wanted) = (&here, &wanted);
            scope.spawn(move || {
                for n in [1, 2, 17, 100] {
                    let x = input(&format!("x{thread}"), &[n, 3]);
                    let (g, w) = (here.call(std::slice::from_ref(&x)).unwrap(), wanted.call(&[x]).unwrap());
                    for (g, w) in g[0].iter_f64().zip(w[0].iter_f64()) {
                        assert!((g - w).abs() <= 2e-6, "{g}, not {w}");
                    }
                }
            });
        }
    });
    let error = here.call(&[input("x", &[101, 3])]).unwrap_err().to_string();
    assert!(error.contains("101"), "{error}");
}

#[test]
fn what_is_not_taken_is_named() {
    let refusal = |f: Func, inputs: &[Tensor]| f.call(inputs, &by_path()).err().unwrap().to_string();
    let sorted = refusal(func::of(|[x]| x.call("aten.msort.default", [])), &[input("x", &[4, 4])]);
    assert!(sorted.contains("only loops, matrix products") && sorted.contains("Extern"), "{sorted}");
    let whole = refusal(func::of(|[x]| x.abs()), &[Tensor::from_slice(&[1i32, 2], &[2]).unwrap()]);
    assert!(whole.contains("dtype are not taken") && whole.contains("i32"), "{whole}");
    let special = refusal(func::of(|[x]| x.call("aten.digamma.default", [])), &[input("x", &[3])]);
    assert!(special.contains("`digamma`"), "{special}");
    let options = by_path().backend_option("threads", "2");
    let unknown = mixed().call(&[input("x", &[1]), input("y", &[1])], &options).unwrap_err().to_string();
    assert!(unknown.contains("no option `threads`"), "{unknown}");
}

#[test]
fn products_and_convolutions_agree_with_the_interpreter() {
    check(&func::of(|[x, y]| x.matmul(y).gelu()), &[input("x", &[5, 7]), input("y", &[7, 3])]);
    check(&func::of(|[x, y]| x.matmul(y)), &[input("x", &[2, 3, 4]), input("y", &[4, 6])]);
    let transposed = input("y", &[6, 4]).transpose(0, 1).unwrap();
    check(&func::of(|[x, y]| x.matmul(y)), &[input("x", &[2, 3, 4]), transposed]);
    check(&func::of(|[x, y]| x.matmul(y)), &[input("x", &[3, 0]), input("y", &[0, 2])]);
    // Stride, padding, dilation and groups differ in every dimension; the result goes through an epilogue.
    let conv = |transposed: bool| {
        func::of(move |[x, w, b]| {
            let list = |n: [i64; 2]| func::Operand::from(&n[..]);
            let rest = [list([2, 1]), list([1, 0]), list([1, 2])];
            let [stride, padding, dilation] = rest;
            let name = if transposed { "aten.conv_transpose2d.input" } else { "aten.conv2d.default" };
            let groups = func::Operand::from(2i64);
            let more = match transposed {
                false => vec![w.into(), b.into(), stride, padding, dilation, groups],
                true => vec![w.into(), b.into(), stride, padding, list([1, 0]), groups, dilation],
            };
            x.call(name, more).relu()
        })
    };
    check(&conv(false), &[input("x", &[2, 4, 7, 6]), input("w", &[6, 2, 3, 2]), input("b", &[6])]);
    check(&conv(true), &[input("x", &[2, 4, 5, 6]), input("w", &[4, 3, 3, 2]), input("b", &[6])]);
}

/// Rows of a table by indices from data; one that is out of bounds is named as the other backends name it.
#[test]
fn indices_from_data_are_checked() {
    let rows = |ids: &[i64], backend: &str| {
        let table = input("table", &[4, 3]);
        let ids = Tensor::from_slice(ids, &[ids.len()]).unwrap();
        let lookup = func::of(|[table, ids]| table.call("aten.embedding.default", [ids.into()]) * 2.0);
        lookup.call(&[table, ids], &Options::new().backend(backend))
    };
    let here = library().to_str().unwrap();
    let (wanted, got) = (rows(&[3, 0, 2], "eager").unwrap(), rows(&[3, 0, 2], here).unwrap());
    assert_eq!(got[0].to_vec::<f32>().unwrap(), wanted[0].to_vec::<f32>().unwrap());
    for bad in [4, -1] {
        let error = rows(&[1, bad], here).unwrap_err().to_string();
        let wanted = format!("index {bad} is out of bounds for dimension 0 with size 4");
        assert!(error.contains("`aten.embedding.default`") && error.contains(&wanted), "{error}");
    }
}

/// The flagship example whole, on its 360 images.
#[test]
fn it_runs_the_digits_model() {
    let program = ferroflux::Program::load(testing::cases::digits("digits.pt2")).unwrap();
    let data =
        ferroflux::tensor::safetensors::SafetensorsFile::open(testing::cases::digits("digits.safetensors"));
    let tensors = data.unwrap().tensors;
    let scores = program.compile(&by_path()).unwrap().call(&[tensors["image"].clone()]).unwrap();
    ferroflux::tensor::allclose(&scores[0], &tensors["logits"], 1e-4, 1e-5).unwrap();
}

/// The library reads kernel-ir 1.6, and the programs of every minor before it.
#[test]
fn programs_of_every_minor_are_read() {
    let backend = loaded();
    assert_eq!(backend.reads(), [IrVersion::kernel_ir(1, 6)]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-ir/tests/golden");
    for minor in 0..=6 {
        let bytes = std::fs::read(folder.join(format!("program_1_{minor}.ffxk"))).unwrap();
        // The goldens have one of everything, so something is declined; but none is called damaged.
        let refused = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes)).err().unwrap().to_string();
        assert!(refused.contains("unsupported (2)"), "1.{minor}: {refused}");
    }
}

/// Built against the header of an earlier minor, it says so and lacks what came later.
#[test]
fn a_plugin_of_an_earlier_minor_works() {
    let load = |path: &Path| Registry::new(&SearchPath::default()).load(path.to_str().unwrap()).unwrap();
    let [current, old] = libraries() else { panic!("two libraries") };
    let (current, old) = (load(current), load(old));
    assert_eq!((old.abi().as_str(), old.effective_minor()), ("1.0", 0));
    assert!(current.effective_minor() > 0);
    assert_eq!(old.artifact_compat(None).unwrap(), None);
    let types = Types::new().tensor(DType::F32, [2i64, 2]);
    let graph = func::of(|[x]| x.softmax(-1)).graph(&types).unwrap();
    let bytes = fused(&graph).to_bytes();
    let program = old.compile(&CompileArgs::new(KERNEL_IR, &bytes)).unwrap();
    assert_eq!(program.save_artifact().unwrap(), None);
    let refused = old.load_artifact(&bytes, None).unwrap_err();
    assert!(matches!(refused, HostError::NotOffered { slot: "artifact_load", .. }), "{refused}");
}

#[test]
fn it_is_found_by_manifest() {
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("libc_loops.so");
    std::fs::copy(library(), &copy).unwrap();
    let manifest = folder.path().join("c-loops.json");
    plugin_host::manifest::write_for(&copy, "c-loops", "0.1.0", &manifest).unwrap();
    let registry = Registry::new(&SearchPath::only(folder.path()));
    let info = registry.list_backends().into_iter().find(|b| b.name == "c-loops").unwrap();
    assert_eq!((info.source, info.unavailable_because), (Source::Manifest(manifest), None));
    assert_eq!((info.version.as_str(), info.devices[0].name.as_str()), ("0.1.0", "host"));
    assert!(registry.load("c-loops").is_ok());
}

/// A program of constants: bound by name, replaced, missing.
#[test]
fn constants_are_bound_by_name() {
    let text = "kir 1.0\nprogram \"scaled\"\nbuffer b0 \"x\" f32[4]{1}+0 input 0\n\
        buffer b1 \"w\" f32[4]{1}+0 constant 0\nbuffer b2 \"twice\" f32[4]{1}+0 persistent\n\
        buffer b3 \"y\" f32[4]{1}+0 output\ninput \"x\" b0\nconstant \"w\" b1\noutput \"y\" b3[4]{1}+0\n\
        init:\nloop \"double\" outer [4]\n  stage []\n    v0: f32 = load b1[i0]\n    v1: f32 = add v0, v0\n    \
        v2: f32 = store b2[i0], v1\nsteps:\nloop \"scale\" outer [4]\n  stage []\n    v0: f32 = load b0[i0]\n    \
        v1: f32 = load b2[i0]\n    v2: f32 = mul v0, v1\n    v3: f32 = store b3[i0], v2\nplan:\n";
    let bytes = text.parse::<ferroflux::kernel_ir::Program>().unwrap().to_bytes();
    let mut program = loaded().compile(&CompileArgs::new(KERNEL_IR, &bytes)).unwrap();
    let x = Tensor::from_slice(&[1f32, 2., 3., 4.], &[4]).unwrap();
    assert!(program.execute(&[&x]).unwrap_err().to_string().contains("bind_constants"));
    for factor in [1f32, -3.] {
        // Every second element of a larger tensor: copied into the layout of the program.
        let wide = Tensor::from_slice(&[factor; 8], &[8]).unwrap();
        let w = wide.as_strided(&[4], &[2], 0).unwrap();
        program.bind_constants(&[("other", &x), ("w", &w)]).unwrap();
        let y = program.execute(&[&x]).unwrap()[0].to_vec::<f32>().unwrap();
        assert_eq!(y, [1., 2., 3., 4.].map(|x| x * 2. * factor));
    }
    let missing = program.bind_constants(&[("v", &x)]).unwrap_err();
    assert_eq!(missing.plugin_failure().and_then(|f| f.node.as_deref()), Some("w"));
    assert!(program.execute(&[&x]).is_err(), "a failed binding leaves nothing bound");
}

/// Damaged programs under the sanitizers of the C compiler.
#[test]
fn damaged_programs_do_no_harm() {
    let folder = TempDir::new().unwrap();
    let binary = folder.path().join("damage");
    let source = example().join("tests/damage.c");
    cc(
        "include",
        &["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", source.to_str().unwrap()],
        &binary,
    );
    let matrix = || Types::new().tensor(DType::F32, [2i64, 2]);
    let image = Types::new().tensor(DType::F32, [1i64, 2, 3, 3]).tensor(DType::F32, [2i64, 2, 2, 2]);
    let conv = func::of(|[x, w]| x.call("aten.conv2d.default", [w.into()]).relu());
    let programs = [
        ("softmax", func::of(|[x]| x.softmax(-1)).graph(&matrix()).unwrap()),
        ("product", func::of(|[x]| x.matmul(x) + 1.0).graph(&matrix()).unwrap()),
        ("lookup", {
            let types = matrix().tensor(DType::I64, [2i64]);
            func::of(|[x, i]| x.call("aten.embedding.default", [i.into()])).graph(&types).unwrap()
        }),
        ("conv", conv.graph(&image).unwrap()),
    ];
    let files = programs.map(|(name, graph)| {
        let file = folder.path().join(name);
        // The newest form that this backend reads.
        std::fs::write(&file, fused(&graph).to_bytes_at(6).unwrap()).unwrap();
        file
    });
    let run = Command::new(&binary).args(&files).output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{errors}");
    assert!(!out.starts_with("0 compiled"), "none was harmless enough to run: {out}");
}

/// The fused program of a graph of prims.
fn fused(graph: &ferroflux::fx_ir::Graph) -> ferroflux::kernel_ir::Program {
    inductor::compile(graph, &inductor::Options::default()).unwrap()
}
