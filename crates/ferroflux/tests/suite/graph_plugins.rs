//! Plugins that take whole graphs: the example library, loaded by its path, next to the interpreter; and faulty ones, which are
//! linked in.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use ferroflux::cache::Report;
use ferroflux::func::{self, Types};
use ferroflux::fx_ir::Graph;
use ferroflux::graph_backend::{GraphCompiler, GraphExecutable};
use ferroflux::optim::{Adam, Optimizer};
use ferroflux::tensor::{self, formula, safetensors::SafetensorsFile};
use ferroflux::train::TrainOptions;
use ferroflux::{Compiled, DType, Error, Options, Program, Tensor};
use plugin_sdk::{
    Backend, CompileRequest, Constants, Description, DeviceInfo, Executable, Host, IrVersion, KERNEL_IR,
    OptionKind, OptionSpec, OwnedTensor, PluginError, Signature, Stream, TensorView,
};

/// The example library, which `cargo test -p ferroflux` builds next to the tests.
fn library() -> String {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().unwrap().parent().unwrap().join("examples");
    let file = format!("{}graph_plugin{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let path = folder.join(file);
    assert!(path.exists(), "{} is missing: run `cargo build -p ferroflux --examples`", path.display());
    path.to_str().unwrap().to_owned()
}

fn plugin() -> Options {
    Options::new().backend(library())
}

fn functional() -> Options {
    plugin().backend_option("dialect", "functional")
}

fn eager() -> Options {
    Options::new().backend("eager")
}

fn digits(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

/// A program over a graph's text whose weights are those of the digits' network.
fn program(text: &str) -> Program {
    let exported = pt2::ExportedProgram::load(digits("digits_train.pt2")).unwrap();
    Program::from_graph(text.parse().unwrap(), &exported.weights).unwrap()
}

fn close(got: &[Tensor], wanted: &[Tensor]) {
    assert_eq!(got.len(), wanted.len());
    for (got, wanted) in got.iter().zip(wanted) {
        assert_eq!((got.dtype(), got.sizes()), (wanted.dtype(), wanted.sizes()));
        tensor::allclose(got, wanted, 1e-5, 1e-5).unwrap();
    }
}

fn rows(name: &str, first: usize, count: usize) -> Tensor {
    let data = SafetensorsFile::open(digits("digits.safetensors")).unwrap();
    data.tensors[name].narrow(0, first, count).unwrap()
}

#[test]
fn a_model_with_a_dynamic_batch_runs_in_both_dialects() {
    let model = Program::load(digits("digits.pt2")).unwrap();
    let wanted = model.compile(&eager()).unwrap();
    for options in [plugin(), functional()] {
        let compiled = model.compile(&options).unwrap();
        assert_eq!(compiled.backend(), "graphs");
        assert!(!compiled.is_from_cache() && compiled.explain().kernels.is_empty());
        for count in [1, 7, 64] {
            let images = [rows("train_image", 0, count)];
            close(&compiled.call(&images).unwrap(), &wanted.call(&images).unwrap());
        }
        let too_wide = Tensor::zeros(DType::F32, &[1, 2, 8, 8]).unwrap();
        assert!(matches!(compiled.call(&[too_wide]), Err(Error::Input { .. })));
    }
    let report = model.cached(&plugin()).unwrap();
    assert!(matches!(&report, Report::Off(why) if why.contains("takes graphs")), "{report:?}");
}

#[test]
fn calls_run_on_many_threads() {
    let model = Program::load(digits("digits.pt2")).unwrap();
    let (compiled, wanted) = (model.compile(&plugin()).unwrap(), model.compile(&eager()).unwrap());
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (compiled, wanted) = (&compiled, &wanted);
            scope.spawn(move || {
                let images = [rows("train_image", n, n + 1)];
                close(&compiled.call(&images).unwrap(), &wanted.call(&images).unwrap());
            });
        }
    });
}

/// Input and buffer are written; the buffer's new value is returned too, and a weight is only read.
const COUNTING: &str = r#"fx 1.0
graph "counting" {
  %x: f32[] = input "x"
  %count: i64[] = buffer "model.b1.num_batches_tracked"
  %other: i64[] = buffer "model.b2.num_batches_tracked"

  %one: i64[] = aten.add.Scalar(%other, 1, 1)
  %more: i64[] = aten.add_.Tensor(%count, %one, 1) from net:forward:"net.py:7"
  %y: f32[] = aten.add_.Tensor(%x, %more, 1) from net:forward:"net.py:8"
  return %more
  return %y
}
"#;

#[test]
fn written_buffers_and_inputs_are_extra_outputs() {
    let number = |t: &Tensor| t.item().unwrap().as_f64();
    let calls = |model: &Compiled| -> Vec<f64> {
        let mut inputs = [Tensor::scalar(DType::F32, 0.5.into()).unwrap()];
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.extend(model.call_mut(&mut inputs).unwrap().iter().map(number));
            seen.push(number(&inputs[0]));
        }
        seen
    };
    let wanted = calls(&program(COUNTING).compile(&eager()).unwrap());
    assert_eq!(wanted[3] - wanted[0], wanted[0], "it counts");
    for options in [plugin(), functional()] {
        assert_eq!(calls(&program(COUNTING).compile(&options).unwrap()), wanted);
    }
}

#[test]
fn functions_with_several_results_and_sizes_run_on_prims() {
    let mut types = Types::new();
    let n = types.symbol("n", 1, Some(100));
    let types = types.tensor(DType::F32, [n.clone(), 3.into()]).tensor(DType::F32, [n, 3.into()]);
    let f = func::of_many(|[x, y]| [(x.sin() * y).softmax(1), x.sum(), x.transpose(0, 1).reshape(&[-1])]);
    // Prims are what a function consists of, whatever the plugin prefers.
    for options in [plugin(), functional()] {
        let compiled = f.compile(&types, &options).unwrap();
        for n in [1, 4, 100] {
            let inputs = ["x", "y"].map(|name| formula::fill(name, &[n, 3], 1.0, 0.0).unwrap());
            close(&compiled.call(&inputs).unwrap(), &f.call(&inputs, &eager()).unwrap());
        }
    }
}

#[test]
fn random_numbers_are_those_of_every_other_backend() {
    let text = r#"fx 1.0
graph "noise" {
  %x: f32[40] = input "x"
  %r: f32[40] = aten.rand_like.default(%x, none, none, none, none, none)
  %y: f32[40] = aten.add.Tensor(%x, %r, 1)
  return %y
}
"#;
    let x = formula::fill("x", &[40], 1.0, 0.0).unwrap();
    let draws = |options: Options| {
        let model = program(text).compile(&options.seed(3)).unwrap();
        let (a, b) =
            (model.call(std::slice::from_ref(&x)).unwrap(), model.call(std::slice::from_ref(&x)).unwrap());
        assert!(a[0].iter_f64().ne(b[0].iter_f64()), "each call draws anew");
        [a, b].concat()
    };
    close(&draws(plugin()), &draws(eager()));
}

#[test]
fn complex_numbers_cross_whole_or_as_pairs() {
    let text = r#"fx 1.0
graph "turned" {
  %x: c64[6] = input "x"
  %y: c64[6] = aten.mul.Tensor(%x, %x)
  return %y
}
"#;
    let x = formula::fill("x", &[6, 2], 1.0, 0.0).unwrap().view_as_complex().unwrap();
    let wanted = program(text).compile(&eager()).unwrap().call(std::slice::from_ref(&x)).unwrap();
    for options in [plugin(), functional()] {
        let got = program(text).compile(&options).unwrap().call(std::slice::from_ref(&x)).unwrap();
        assert_eq!(got[0].dtype(), DType::C64);
        close(&[got[0].view_as_real().unwrap()], &[wanted[0].view_as_real().unwrap()]);
    }
}

#[test]
fn a_training_step_is_a_graph_like_any_other() {
    let model = Program::load(digits("digits_train.pt2")).unwrap();
    let train = TrainOptions::new(Optimizer::Adam(Adam::adamw()));
    let losses = |options: Options| -> Vec<f64> {
        let mut step = model.train_step(&train, &options.seed(1)).unwrap();
        let batch = |n: usize| [rows("train_image", n * 64, 64), rows("train_label", n * 64, 64)];
        (0..3).map(|n| step.step(&batch(n), 1e-3).unwrap().loss).collect()
    };
    for (got, wanted) in losses(plugin()).iter().zip(losses(eager())) {
        assert!((got - wanted).abs() <= 1e-4 * wanted, "{got} {wanted}");
    }
}

#[test]
fn refusals_name_nodes_operators_and_lines() {
    let refused = |options: Options| match program(COUNTING).compile(&options) {
        Err(Error::Refused { backend, refused }) => {
            assert_eq!(backend, "graphs");
            refused
        }
        other => panic!("{:?}", other.err()),
    };
    let all = refused(plugin().backend_option("refuse", "prims.add"));
    assert_eq!(all.len(), 3, "{all:#?}");
    assert!(all[1].contains("prims.add") && all[1].contains("net.py:7"), "{}", all[1]);
    assert!(all[2].starts_with("node `") && all[2].contains("net.py:8"), "{}", all[2]);
    let all = refused(functional().backend_option("refuse", "aten.add.Scalar"));
    assert_eq!(all.len(), 1, "{all:#?}");
    assert!(all[0].starts_with("node `one` (aten.add.Scalar): this backend does not take"), "{}", all[0]);
}

#[test]
fn options_and_modes_that_are_not_there_are_errors() {
    let says = |options: Options| program(COUNTING).compile(&options).err().unwrap().to_string();
    let mode = says(plugin().mode(ferroflux::Mode::MaxAutotune));
    assert!(mode.contains("has no mode `max-autotune`"), "{mode}");
    let option = says(plugin().backend_option("refused", "x"));
    assert!(option.contains("did you mean refuse?"), "{option}");
    let dialect = says(plugin().backend_option("dialect", "captured"));
    assert!(dialect.contains("graphs are `functional` or `prim`"), "{dialect}");
}

/// Takes every program and makes an executable of one input and one output; what it reads is a parameter.
struct Plain<const KERNELS_FIRST: bool>;

impl<const KERNELS_FIRST: bool> Backend for Plain<KERNELS_FIRST> {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(Self)
    }
    fn describe(&self) -> Description {
        let graphs = IrVersion::fx_ir(1, 3);
        let (name, forms) = match KERNELS_FIRST {
            true => ("kernels-first", [KERNEL_IR, graphs]),
            false => ("graphs-first", [graphs, KERNEL_IR]),
        };
        let description = forms.into_iter().fold(Description::new(name, "1"), Description::reads);
        description.option(OptionSpec::new("fail", OptionKind::Text, "", "where it fails"))
    }
    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo::cpu("host")]
    }
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let level = request.program.ir.level as f32;
        match request.options.text("fail")? {
            "" => Ok(Box::new(One(level))),
            "panic" => panic!("out of ideas"),
            node => Err(PluginError::unsupported("too hard").at(node)),
        }
    }
}

/// Returns the level of its program.
struct One(f32);

impl Executable for One {
    fn signature(&self) -> Signature {
        Signature { inputs: 1, outputs: 1, constants: 0 }
    }
    fn execute(
        &self,
        _inputs: &[TensorView<'_>],
        _constants: &Constants<'_>,
        _stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        Ok(vec![OwnedTensor::from_slice(&[self.0], &[])?])
    }
}

plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "kernels-first", entry: plugin_sdk::entry::<Plain<true>> }
}
plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "graphs-first", entry: plugin_sdk::entry::<Plain<false>> }
}

const ONE: &str = r#"fx 1.0
graph "one" {
  %x: f32[] = input "x"
  %y: f32[] = aten.sin.default(%x) from net:forward:"net.py:3"
  return %y
}
"#;

#[test]
fn the_first_form_that_a_plugin_lists_is_the_one_it_is_given() {
    let x = Tensor::scalar(DType::F32, 0.5.into()).unwrap();
    for (name, level) in [("graphs-first", IrVersion::fx_ir(1, 0).level), ("kernels-first", KERNEL_IR.level)]
    {
        let model = program(ONE).compile(&Options::new().backend(name)).unwrap();
        assert_eq!(
            model.call(std::slice::from_ref(&x)).unwrap()[0].item().unwrap().as_f64(),
            f64::from(level),
            "{name}"
        );
    }
}

#[test]
fn faults_of_a_plugin_are_typed_errors() {
    let options = |fail: &str| Options::new().backend("graphs-first").backend_option("fail", fail);
    let declined = program(ONE).compile(&options("y")).err().unwrap();
    let Error::Refused { refused, .. } = &declined else { panic!("{declined}") };
    assert!(refused[0].contains("node `y`") && refused[0].contains("net.py:3"), "{declined}");
    let unknown = program(ONE).compile(&options("nobody")).err().unwrap();
    assert!(
        matches!(&unknown, Error::Refused { refused, .. } if refused[0] == "`nobody`: too hard"),
        "{unknown}"
    );
    let panicked = program(ONE).compile(&options("panic")).err().unwrap();
    assert!(matches!(&panicked, Error::Backend(e) if e.to_string().contains("out of ideas")), "{panicked}");
    let counted = program(COUNTING).compile(&options("")).err().unwrap();
    let wanted = "takes 1 inputs and 0 constants and gives 1 outputs; the graph has 2, 1 and 4";
    assert!(counted.to_string().contains(wanted), "{counted}");
}

/// Notes where its inputs lie, and returns the first of them.
struct Addresses;
struct First;
static ADDRESSES: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());

impl GraphCompiler for Addresses {
    fn compile(&self, _: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
        Ok(Box::new(First))
    }
}

impl GraphExecutable for First {
    fn execute(&self, inputs: &[Option<Tensor>], _: u64) -> Result<Vec<Tensor>, PluginError> {
        let addresses = inputs.iter().flatten().map(|t| t.data_ptr() as usize);
        ADDRESSES.lock().unwrap().extend(addresses);
        Ok(vec![inputs[0].clone().unwrap()])
    }
}

ferroflux::register_graph_backend!("addresses", "notes where its inputs lie", Addresses);

#[test]
fn weights_and_inputs_are_lent_and_results_are_the_callers() {
    let text = "fx 1.0\ngraph \"g\" {\n%w: f32[2] = parameter \"w\"\n%x: f32[2] = input \"x\"\n\n%y: f32[2] = aten.add.Tensor(%w, %x, 1)\nreturn %y\n}";
    let w = Tensor::from_vec(vec![1.0_f32, 2.0], &[2]).unwrap();
    let program =
        Program::from_graph(text.parse().unwrap(), &BTreeMap::from([("w".to_owned(), w.clone())])).unwrap();
    let x = Tensor::from_vec(vec![3.0_f32, 4.0], &[2]).unwrap();
    let model = program.compile(&Options::new().backend("addresses")).unwrap();
    let result = model.call(std::slice::from_ref(&x)).unwrap().remove(0);
    assert_eq!(*ADDRESSES.lock().unwrap(), [w.data_ptr() as usize, x.data_ptr() as usize]);
    drop((model, program));
    assert_ne!(result.data_ptr(), w.data_ptr());
    assert_eq!(result.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}
