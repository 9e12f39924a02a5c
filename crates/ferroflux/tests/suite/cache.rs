//! Models through the cache on disk: what is found computes bit for bit what was kept, whatever decides the code is in the
//! key, and a file that is not what it should be is rebuilt without a word to the user.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::fs;
use std::path::{Path, PathBuf};

use ferroflux::cache::{Cache, Report, Store};
use ferroflux::func::{self, Types};
use ferroflux::fx_ir::Graph;
use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::tensor::formula;
use ferroflux::train::{Clip, Scaler, TrainOptions};
use ferroflux::{Compiled, DType, Options, Program, Tensor};
use plugin_host::{CompileArgs, KERNEL_IR, LoadedExecutable, Registry, SearchPath};
use tempfile::TempDir;

fn digits(file: &str) -> Program {
    Program::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").join(file)).unwrap()
}

fn at(folder: &TempDir) -> Options {
    Options::new().cache(Cache::at(folder.path()))
}

fn images(program: &Program) -> Vec<Tensor> {
    let sizes = |s: &ferroflux::ir_core::SymExpr| s.as_const().map_or(7, |n| n as usize);
    let one = |i: &ferroflux::InputInfo| {
        let sizes: Vec<usize> = i.meta().unwrap().sizes.iter().map(sizes).collect();
        formula::fill(&i.name, &sizes, 1.0, 0.5).unwrap().to_dtype(i.meta().unwrap().dtype).unwrap()
    };
    program.inputs().iter().map(one).collect()
}

fn bits(tensors: &[Tensor]) -> Vec<u64> {
    tensors.iter().flat_map(|t| t.iter_f64().map(f64::to_bits).collect::<Vec<_>>()).collect()
}

fn entries(folder: &TempDir) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(folder.path().join("programs")) else { return Vec::new() };
    files.map(|f| f.unwrap().path()).collect()
}

/// The part in which the nearest entry differs.
fn missed(program: &Program, options: &Options) -> Vec<String> {
    match program.cached(options).unwrap() {
        Report::Hit(_) => Vec::new(),
        Report::Miss { nearest: Some((_, differences)), .. } => {
            differences.into_iter().map(|d| d.part).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_found_computes_bit_for_bit_what_was_kept() {
    let folder = TempDir::new().unwrap();
    let program = digits("digits.pt2");
    let inputs = images(&program);
    let run = |options: &Options| -> (Compiled, Vec<u64>) {
        let compiled = program.compile(options).unwrap();
        let outputs = bits(&compiled.call(&inputs).unwrap());
        (compiled, outputs)
    };
    let (plain, wanted) = run(&Options::new().cache(Cache::Off));
    assert!(entries(&folder).is_empty() && !plain.is_from_cache());
    let (cold, first) = run(&at(&folder));
    assert!(!cold.is_from_cache());
    let (warm, second) = run(&at(&folder));
    assert!(warm.is_from_cache(), "{:?}", missed(&program, &at(&folder)));
    assert_eq!((first, second), (wanted.clone(), wanted));
    assert_eq!(warm.explain(), cold.explain());
    assert_eq!(entries(&folder).len(), 1);
    let [entry] = &Store::open(&Cache::at(folder.path())).unwrap().entries()[..] else { panic!("one entry") };
    assert_eq!((&*entry.program, &*entry.backend), ("digits", "cpu"));
}

#[test]
fn weights_are_bound_after_loading() {
    let folder = TempDir::new().unwrap();
    let mut program = digits("digits.pt2");
    let inputs = images(&program);
    program.compile(&at(&folder)).unwrap();
    let weight = program.exported().weights.iter().find(|w| w.dtype == DType::F32).unwrap().clone();
    program.set_weight(&weight.name, formula::fill("other", &weight.sizes, 0.1, 0.0).unwrap()).unwrap();
    let warm = program.compile(&at(&folder)).unwrap();
    assert!(warm.is_from_cache());
    let fresh = program.compile(&Options::new().cache(Cache::Off)).unwrap();
    assert_eq!(bits(&warm.call(&inputs).unwrap()), bits(&fresh.call(&inputs).unwrap()));
}

#[test]
fn whatever_decides_the_code_is_a_part_of_the_key() {
    let folder = TempDir::new().unwrap();
    let program = digits("digits.pt2");
    let other = digits("digits_train.pt2");
    assert!(matches!(program.cached(&at(&folder)).unwrap(), Report::Miss { nearest: None, .. }));
    program.compile(&at(&folder)).unwrap();
    assert_eq!(missed(&program, &at(&folder)), [""; 0]);
    assert_eq!(missed(&program, &at(&folder).threads(1)), ["options"]);
    assert_eq!(missed(&other, &at(&folder)), ["graph"]);
    assert!(!program.compile(&at(&folder).threads(1)).unwrap().is_from_cache());
    assert!(program.compile(&at(&folder).threads(1)).unwrap().is_from_cache());
    assert!(matches!(program.cached(&at(&folder).backend("eager")).unwrap(), Report::Off(_)));
    assert!(matches!(program.cached(&Options::new().cache(Cache::Off)).unwrap(), Report::Off(_)));
    // The key's other parts are what this build and this machine are.
    let Report::Hit(key) = program.cached(&at(&folder)).unwrap() else { panic!("a hit") };
    let names: Vec<&str> = key.0.iter().map(|p| &*p.name).collect();
    assert_eq!(names, ["graph", "options", "version", "backend", "plugin", "device"]);
    let shown = |name: &str| key.part(name).unwrap().shown.clone();
    assert!(shown("version").contains(env!("CARGO_PKG_VERSION")) && shown("version").contains("kernel-ir"));
    assert!(shown("device").contains(std::env::consts::ARCH), "{}", shown("device"));
}

#[test]
fn damaged_and_foreign_entries_are_rebuilt() {
    let folder = TempDir::new().unwrap();
    let program = digits("digits.pt2");
    let inputs = images(&program);
    let wanted = bits(&program.compile(&at(&folder)).unwrap().call(&inputs).unwrap());
    let path = entries(&folder).remove(0);
    let whole = fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    let damages = [
        whole[..whole.len() / 2].to_vec(),
        whole[..10].to_vec(),
        Vec::new(),
        b"something else".to_vec(),
        flipped(9),
        flipped(100),
        flipped(whole.len() / 3),
        flipped(whole.len() - 1),
    ];
    for (n, damage) in damages.into_iter().enumerate() {
        fs::write(&path, damage).unwrap();
        let compiled = program.compile(&at(&folder)).unwrap();
        assert!(!compiled.is_from_cache(), "damage {n}");
        assert_eq!(bits(&compiled.call(&inputs).unwrap()), wanted, "damage {n}");
        assert!(program.compile(&at(&folder)).unwrap().is_from_cache(), "damage {n} was not mended");
    }
    // The entry of another model under this one's name.
    let other = TempDir::new().unwrap();
    digits("digits_train.pt2").compile(&at(&other)).unwrap();
    fs::copy(entries(&other).remove(0), &path).unwrap();
    let compiled = program.compile(&at(&folder)).unwrap();
    assert!(!compiled.is_from_cache());
    assert_eq!(bits(&compiled.call(&inputs).unwrap()), wanted);
}

/// Batches for a program that takes floats and class numbers.
fn batch(program: &Program) -> Vec<Tensor> {
    let zeros = |t: Tensor| Tensor::zeros(t.dtype(), t.sizes()).unwrap();
    images(program).into_iter().map(|t| if t.dtype().is_float() { t } else { zeros(t) }).collect()
}

#[test]
fn training_steps_are_found_before_any_pass_and_compute_the_same() {
    let folder = TempDir::new().unwrap();
    let program = digits("digits_train.pt2");
    let inputs = batch(&program);
    let sgd = TrainOptions::new(Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }));
    let scaled = TrainOptions::new(Optimizer::Adam(Adam::adamw()))
        .clip(Clip::Norm { max: 1.0, error_if_nonfinite: true })
        .autocast(DType::F16)
        .scaler(Scaler::default())
        .channels_last(true);
    for (n, train) in [sgd, scaled].into_iter().enumerate() {
        let states = |options: &Options, cached: bool| -> Vec<u64> {
            let mut step = program.train_step(&train, options).unwrap();
            assert_eq!(step.is_from_cache(), cached);
            (0..3)
                .flat_map(|_| {
                    let outcome = step.step(&inputs, 0.05).unwrap();
                    let state = step.snapshot().unwrap().tensors;
                    let mut all = bits(&state.into_values().collect::<Vec<_>>());
                    all.push(outcome.loss.to_bits());
                    all.push(outcome.grad_norm.unwrap_or(0.0).to_bits());
                    all
                })
                .collect()
        };
        let wanted = states(&Options::new().cache(Cache::Off).seed(1), false);
        assert_eq!(states(&at(&folder).seed(1), false), wanted);
        let kept = entries(&folder);
        assert_eq!(kept.len(), n + 1, "one entry a step");
        assert_eq!(states(&at(&folder).seed(1), true), wanted);
        assert_eq!(entries(&folder).len(), n + 1);
    }
}

#[test]
fn whatever_decides_a_training_step_is_a_part_of_its_key() {
    let folder = TempDir::new().unwrap();
    let mut program = digits("digits_train.pt2");
    let sgd = |momentum: f64| TrainOptions::new(Optimizer::Sgd(Sgd { momentum, ..Sgd::default() }));
    let missed = |program: &Program, train: &TrainOptions, options: &Options| -> Vec<String> {
        match program.cached_step(train, options).unwrap() {
            Report::Hit(_) => Vec::new(),
            Report::Miss { nearest: Some((_, differences)), .. } => {
                differences.into_iter().map(|d| d.part).collect()
            }
            other => panic!("{other:?}"),
        }
    };
    program.train_step(&sgd(0.9), &at(&folder)).unwrap();
    assert_eq!(missed(&program, &sgd(0.9), &at(&folder)), [""; 0]);
    let clip = |max| Clip::Norm { max, error_if_nonfinite: false };
    let others = [
        sgd(0.8),
        sgd(0.9).clip(clip(1.0)),
        sgd(0.9).clip(Clip::Value(1.0)),
        sgd(0.9).autocast(DType::BF16),
        sgd(0.9).scaler(Scaler::default()),
        sgd(0.9).channels_last(true),
        sgd(0.9).loss(0),
        TrainOptions::new(Optimizer::Adam(Adam::default())),
    ];
    for other in &others {
        assert_eq!(missed(&program, other, &at(&folder)), ["training"], "{other:?}");
    }
    // What is said and what goes without saying are the same, and so are all states of a scaler.
    assert_eq!(missed(&program, &sgd(0.9).channels_last(false), &at(&folder)), [""; 0]);
    let late = Scaler { scale: 2.0, good: 7, ..Scaler::default() };
    program.train_step(&sgd(0.9).scaler(late), &at(&folder)).unwrap();
    assert_eq!(missed(&program, &sgd(0.9).scaler(Scaler::default()), &at(&folder)), [""; 0]);
    assert_eq!(missed(&program, &sgd(0.9), &at(&folder).threads(1)), ["options"]);
    // Training and inference of one model are two things.
    assert!(!program.compile(&at(&folder)).unwrap().is_from_cache());
    assert!(matches!(program.cached(&at(&folder)).unwrap(), Report::Hit(_)));
    let elsewhere = TempDir::new().unwrap();
    program.train_step(&sgd(0.9), &at(&elsewhere)).unwrap();
    match program.cached(&at(&elsewhere)).unwrap() {
        Report::Miss { nearest: Some((_, differences)), .. } => {
            assert_eq!(differences.iter().map(|d| &*d.part).collect::<Vec<_>>(), ["training"]);
            assert_eq!(differences[0].wanted, "none");
        }
        other => panic!("{other:?}"),
    }
    // Another weight is trained.
    let frozen = program.exported().weights.iter().find(|w| w.requires_grad).unwrap().name.clone();
    let mut exported = program.exported().clone();
    exported.weights.set_requires_grad(&frozen, false).unwrap();
    program = Program::from(exported);
    assert_eq!(missed(&program, &sgd(0.9), &at(&folder)), ["training"]);
}

#[test]
fn one_entry_serves_every_size() {
    let folder = TempDir::new().unwrap();
    let mut types = Types::new();
    let n = types.symbol("n", 1, None);
    let types = types.tensor(DType::F32, [n.clone(), 5.into()]).tensor(DType::F32, [n, 5.into()]);
    let f = func::of(|[x, y]| (x.sin() * y).softmax(1) + x);
    for _ in 0..2 {
        let compiled = f.compile(&types, &at(&folder)).unwrap();
        for n in [1, 3, 17] {
            let inputs = ["x", "y"].map(|name| formula::fill(name, &[n, 5], 1.0, 0.0).unwrap());
            let plain = f.call(&inputs, &Options::new().cache(Cache::Off)).unwrap();
            let found = compiled.call(&inputs).unwrap();
            for (a, b) in plain[0].iter_f64().zip(found[0].iter_f64()) {
                assert!((a - b).abs() < 1e-6, "{a} {b}");
            }
        }
        assert_eq!(entries(&folder).len(), 1);
    }
}

#[test]
fn state_that_calls_write_is_kept_by_what_was_found() {
    let folder = TempDir::new().unwrap();
    let text = r#"fx 1.0
graph "counter" {
  %x: f32[4] = input "x"
  %n: f32[4] = buffer "n"
  %m: f32[4] = aten.add_.Tensor(%n, %x)
  %y: f32[4] = aten.mul.Tensor(%m, %x)
  return %y
}
"#;
    let graph: Graph = text.parse().unwrap();
    let types = Types::new().tensor(DType::F32, [4]).tensor(DType::F32, [4]);
    let f = func::Func::from_graph(prims::decompose(&aot_autograd::functionalize(&graph).unwrap()).unwrap());
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4]).unwrap();
    let results: Vec<Vec<u64>> = (0..2)
        .map(|_| bits(&f.compile(&types, &at(&folder)).unwrap().call(&[x.clone(), x.clone()]).unwrap()))
        .collect();
    assert_eq!(results[0], results[1]);
    assert_eq!(entries(&folder).len(), 1);
}

#[cfg(unix)]
#[test]
fn a_changed_library_misses() {
    use std::process::Command;
    let (folder, built) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = built.path().join("libc_loops.so");
    let sources = fs::read_dir(here.join("../../examples/c-backend/src")).unwrap().map(|e| e.unwrap().path());
    let sources: Vec<PathBuf> = sources.filter(|p| p.extension().is_some_and(|e| e == "c")).collect();
    let build = |name: &str, flag: &str| {
        let output = built.path().join(name);
        let done = Command::new("cc")
            .args(["-std=c99", flag, "-fPIC", "-shared", "-fvisibility=hidden"])
            .arg(format!("-I{}", here.join("../plugin-abi/include").display()))
            .args(&sources)
            .args([Path::new("-o"), &output, Path::new("-lm")])
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        output
    };
    build("libc_loops.so", "-O1");
    let changed = build("changed.so", "-O0");
    let program = digits("digits.pt2");
    let options = |library: &Path| at(&folder).backend(library.to_str().unwrap());
    let parts = |library: &Path| match program.cached(&options(library)).unwrap() {
        Report::Hit(key) | Report::Miss { key, .. } => key,
        Report::Off(why) => panic!("{why}"),
    };
    let differing = |a: &Path, b: &Path| {
        let (a, b) = (parts(a), parts(b));
        a.0.iter().zip(&b.0).filter(|(a, b)| a.sum != b.sum).map(|(a, _)| a.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(differing(&library, &changed), ["plugin"]);
    assert_eq!(differing(&library, &library), [""; 0]);
}

/// Weights of a product that are made of constants when those are bound, and a sum that calls read of the constants' results.
const BOUND: &str = r#"fx 1.0
graph "bound" {
  %x: f32[5, 1500] = input "x"
  %w: f32[1500, 1600] = parameter "w"
  %s: f32[1600] = parameter "s"
  %p: f32[1500, 1600] = aten.mul.Tensor(%w, %s)
  %y: f32[5, 1600] = aten.mm.default(%x, %p)
  %b: f32[1600] = aten.exp.default(%s)
  %z: f32[5, 1600] = aten.add.Tensor(%y, %b)
  return %z
}
"#;

/// [`BOUND`] with the weights `w`, whose packs are kept in the folder `cache`.
fn bound(w: &Tensor, cache: &str) -> LoadedExecutable {
    let graph: Graph = BOUND.parse().unwrap();
    let prims = prims::decompose(&aot_autograd::functionalize(&graph).unwrap()).unwrap();
    let program = inductor::compile(&prims, &inductor::Options::default()).unwrap();
    assert!(!program.init.is_empty(), "something is made of constants");
    let backend = Registry::new(&SearchPath::default()).load("cpu").unwrap();
    let (bytes, options) = (program.to_bytes(), [("cache", cache)]);
    let mut code = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes).options(&options)).unwrap();
    // As the cache does it: machine code that was saved keeps the folder.
    code = backend.load_artifact(&code.save_artifact().unwrap().unwrap(), None).unwrap();
    code.bind_constants(&[("w", w), ("s", &matrix("s", &[1600]))]).unwrap();
    code
}

fn matrix(name: &str, sizes: &[usize]) -> Tensor {
    formula::fill(name, sizes, 1.0, 0.0).unwrap()
}

#[cfg(unix)]
#[test]
fn a_file_of_weights_that_is_cut_short_under_a_running_program_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("programs");
    let (w, x) = (matrix("w", &[1500, 1600]), matrix("x", &[5, 1500]));
    let wanted = bits(&bound(&w, place.to_str().unwrap()).execute(&[&x]).unwrap());
    let [file] = &entries(&folder)[..] else { panic!("one file") };
    let mode = fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o400, "nobody writes it");
    let mut code = bound(&w, place.to_str().unwrap());
    assert_eq!(bits(&code.execute(&[&x]).unwrap()), wanted);
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    let cut = fs::metadata(file).unwrap().len() / 2;
    fs::File::options().write(true).open(file).unwrap().set_len(cut).unwrap();
    let error = code.execute(&[&x]).unwrap_err().to_string();
    assert!(error.contains("cut short") && error.contains("bind the constants again"), "{error}");
    code.bind_constants(&[("w", &w), ("s", &matrix("s", &[1600]))]).unwrap();
    assert_eq!(bits(&code.execute(&[&x]).unwrap()), wanted);
    // It is written beside the calls, and whole when the program is gone.
    drop(code);
    assert!(fs::metadata(file).unwrap().len() > cut, "it was made anew");
    // A name that is gone takes nothing away.
    let code = bound(&w, place.to_str().unwrap());
    fs::remove_file(file).unwrap();
    assert_eq!(bits(&code.execute(&[&x]).unwrap()), wanted);
}

#[test]
fn packed_weights_are_read_from_their_file_or_packed_again() {
    let folder = TempDir::new().unwrap();
    let x = matrix("x", &[5, 1500]);
    let run = |w: &Tensor, cache: &str| -> Vec<u64> {
        let code = bound(w, cache);
        let first = bits(&code.execute(&[&x]).unwrap());
        assert_eq!(bits(&code.execute(&[&x]).unwrap()), first);
        first
    };
    let (w, other) = (matrix("w", &[1500, 1600]), matrix("v", &[1500, 1600]));
    let (wanted, wanted_other) = (run(&w, "off"), run(&other, "off"));
    let place = folder.path().join("programs");
    let cache = place.to_str().unwrap();
    assert_eq!(run(&w, cache), wanted);
    let [file] = &entries(&folder)[..] else { panic!("one file") };
    let whole = fs::read(file).unwrap();
    // The product's weights once, as they were packed, and not as they were before.
    assert!(whole.len() < 2 * 1500 * 1600 * 4, "{} bytes", whole.len());
    let time = || fs::metadata(file).unwrap().modified().unwrap();
    let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    fs::File::open(file).unwrap().set_modified(past).unwrap();
    assert_eq!(run(&w, cache), wanted);
    assert!(time() > past && fs::read(file).unwrap() == whole, "it was used");
    // Other constants have another file, which is not taken under this one's name.
    assert_eq!(run(&other, cache), wanted_other);
    let files = entries(&folder);
    assert_eq!(files.len(), 2);
    fs::remove_file(file).unwrap();
    fs::copy(files.iter().find(|f| *f != file).unwrap(), file).unwrap();
    assert_eq!(run(&w, cache), wanted);
    assert!(fs::read(file).unwrap() == whole, "it was made anew");
    let mut damages: Vec<Vec<u8>> =
        [0, 30, 60, whole.len() / 2, whole.len() - 1].map(|end| whole[..end].to_vec()).into();
    for at in [3, 20, 41, 50, 70, 5000, whole.len() / 2] {
        let mut changed = whole.clone();
        changed[at] ^= 0x20;
        damages.push(changed);
    }
    for (n, damage) in damages.into_iter().enumerate() {
        // Renamed, as every writer does it: a file that is mapped is never changed.
        let damaged = folder.path().join("damaged");
        fs::write(&damaged, damage).unwrap();
        fs::rename(&damaged, file).unwrap();
        assert_eq!(run(&w, cache), wanted, "damage {n}");
        assert!(fs::read(file).unwrap() == whole, "damage {n}");
    }
}
