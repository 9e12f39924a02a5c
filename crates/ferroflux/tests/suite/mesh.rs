//! Programs on meshes: what ranks compute together is what one computes alone.
//!
//! Ranks are threads; the networks run as processes too where a launcher has started this program as one (`xtask mpi`): each
//! process is a rank then, of the meshes that have as many.

use ferroflux::cache::Cache;
use ferroflux::mesh::{Member, Mesh, Place, Plan};
use ferroflux::optim::Optimizer;
use ferroflux::train::TrainOptions;
use ferroflux::{Options, Program, Tensor};
use testing::cases::{Cases, corpus};

/// The plugin by which ranks that are processes exchange.
const ENGINE: &str = "FERROFLUX_TEST_ENGINE";
/// The backend of ranks that are processes, where it is another than `cpu`, which judges them.
const BACKEND: &str = "FERROFLUX_TEST_BACKEND";

/// Runs `body` as every rank of a mesh, each in a thread; as one of them where this process is one.
pub(crate) fn on_mesh<R: Send>(mesh: &str, name: &str, body: impl Fn(&Member) -> R + Sync) -> Vec<R> {
    let mesh: Mesh = mesh.parse().unwrap();
    if let (Some(place), Ok(engine)) = (Place::from_environment(), std::env::var(ENGINE)) {
        if place.size != mesh.ranks() {
            return Vec::new();
        }
        place.take_device();
        let member = Member::join(&mesh, &place, &engine).unwrap_or_else(|e| panic!("{e}"));
        let own = body(&member);
        member.barrier().unwrap();
        return vec![own];
    }
    std::thread::scope(|scope| {
        let (mesh, body) = (&mesh, &body);
        let start = |rank: usize| {
            let place = Place::new(rank, mesh.ranks(), format!("{name} {mesh}"));
            scope.spawn(move || {
                let member = Member::join(mesh, &place, "cpu").unwrap_or_else(|e| panic!("{e}"));
                body(&member)
            })
        };
        let ranks: Vec<_> = (0..mesh.ranks()).map(start).collect();
        ranks.into_iter().map(|r| r.join().expect("no rank panics")).collect()
    })
}

pub(crate) fn alone() -> Options {
    Options::new().threads(1).cache(Cache::Off).seed(3)
}

/// As a rank of a mesh.
pub(crate) fn as_rank(member: &Member) -> Options {
    let options = alone().mesh(member);
    match std::env::var(BACKEND) {
        Ok(backend) if Place::from_environment().is_some() => options.backend(backend),
        _ => options,
    }
}

/// Weights that an archive lacks, by a formula.
pub(crate) struct Filled;

impl ferroflux::WeightSource for Filled {
    fn tensor(&self, weight: &ferroflux::Weight) -> Result<Option<Tensor>, String> {
        let norm = weight.sizes.len() == 1 && weight.name.ends_with("weight");
        let offset = if norm { 1.0 } else { 0.0 };
        let made = ferroflux::tensor::formula::fill(&weight.name, &weight.sizes, 0.05, offset);
        made.and_then(|t| t.to_dtype(weight.dtype)).map(Some).map_err(|e| e.to_string())
    }
}

/// A network of the corpus: its first archive.
pub(crate) fn golden(name: &str) -> Option<Program> {
    let mut zip = Cases::open(&corpus()?.join(format!("{name}.zip"))).unwrap();
    let archive = zip.archive(&zip.names()[0]).unwrap();
    let mut program = Program::from_bytes(archive).unwrap();
    program.fill_weights(&Filled).unwrap();
    Some(program)
}

/// Inputs by a formula: small numbers, indices that are in range of any table.
pub(crate) fn inputs(program: &Program) -> Vec<Tensor> {
    let infos = program.inputs();
    let one = |meta: &ferroflux::ir_core::TensorMeta| {
        let sizes: Vec<usize> = meta.sizes.iter().map(|s| s.as_const().unwrap() as usize).collect();
        let n: usize = sizes.iter().product();
        let value = |i: usize| ((i * 7919) % 101) as f64;
        let float = meta.dtype.is_float();
        let data =
            (0..n).map(|i| if float { value(i) / 101.0 - 0.5 } else { value(i) % 2.0 }).collect::<Vec<f64>>();
        Tensor::from_vec(data, &sizes).unwrap().to_dtype(meta.dtype).unwrap()
    };
    infos.iter().filter_map(|i| i.meta()).map(one).collect()
}

/// Differences relative to the largest magnitude, or to `floor` where that is larger.
pub(crate) fn assert_close(what: &str, got: &Tensor, expected: &Tensor, (tolerance, floor): (f64, f64)) {
    assert_eq!((got.dtype(), got.sizes()), (expected.dtype(), expected.sizes()), "{what}");
    let largest = expected.iter_f64().fold(floor, |a: f64, b| a.max(b.abs()));
    for (i, (g, e)) in got.iter_f64().zip(expected.iter_f64()).enumerate() {
        assert!(
            (g - e).abs() <= tolerance * largest,
            "{what}: element {i} is {g}, not {e} (largest {largest})"
        );
    }
}

fn adamw() -> Optimizer {
    Optimizer::Adam(ferroflux::optim::Adam { decoupled: true, weight_decay: 0.01, ..Default::default() })
}

/// The learning rate of training steps.
const RATE: f64 = 0.02;

const MESHES: [&str; 4] = ["dp=2", "tp=2", "fsdp=2", "dp=2,tp=2"];

fn forward_on_meshes(name: &str) {
    let Some(program) = golden(name) else { return };
    let given = inputs(&program);
    let expected = program.compile(&alone()).unwrap().call(&given).unwrap();
    for mesh in MESHES {
        let all = on_mesh(mesh, &format!("forward {name}"), |member| {
            let model = program.compile(&as_rank(member)).unwrap_or_else(|e| panic!("{name} {mesh}: {e}"));
            let first = model.call(&given).unwrap_or_else(|e| panic!("{name} {mesh}: {e}"));
            let again = model.call(&given).unwrap();
            assert_eq!(first[0].iter_f64().next(), again[0].iter_f64().next(), "a call twice is the same");
            first
        });
        for (rank, got) in all.iter().enumerate() {
            for (g, e) in got.iter().zip(&expected) {
                assert_close(&format!("{name} {mesh} rank {rank}"), g, e, (1e-4, 1e-6));
            }
        }
    }
}

/// Parameters whose gradient is zero in exact arithmetic, by what one rank computes: a bias of keys, which a softmax does not
/// see. Adam divides a gradient by its own magnitude, so their updates are signs of rounding errors, on one rank too.
fn noise(program: &Program, given: &[Tensor]) -> Vec<String> {
    let model = program.differentiate(&program.usual_gradients(), &alone()).unwrap();
    let (_, saved) = model.forward(given).unwrap();
    let gradients = saved.backward(&[]).unwrap();
    let largest = |t: &Tensor| t.iter_f64().fold(0.0, |a: f64, b| a.max(b.abs()));
    let all: Vec<(String, f64)> =
        gradients.0.iter().filter_map(|g| Some((g.name.clone(), largest(g.tensor.as_ref()?)))).collect();
    let most = all.iter().map(|(_, n)| *n).fold(0.0, f64::max);
    all.into_iter().filter(|(_, n)| *n <= 1e-6 * most).map(|(name, _)| name).collect()
}

/// Values that are no further apart than this: for updates whose size alone is known.
fn assert_bounded(what: &str, got: &Tensor, expected: &Tensor, most: f64) {
    assert_eq!((got.dtype(), got.sizes()), (expected.dtype(), expected.sizes()), "{what}");
    for (g, e) in got.iter_f64().zip(expected.iter_f64()) {
        assert!((g - e).abs() <= most, "{what}: {g}, not {e} (within {most})");
    }
}

fn training_on_meshes(name: &str, train: &TrainOptions, normalised: bool) {
    let Some(program) = golden(name) else { return };
    let given = inputs(&program);
    trains_alike(name, (&program, &given), train, normalised, &MESHES, &as_rank);
}

/// Four training steps on meshes, against the same on one rank: losses, and the weights behind them.
pub(crate) fn trains_alike(
    name: &str,
    (program, given): (&Program, &[Tensor]),
    train: &TrainOptions,
    normalised: bool,
    meshes: &[&str],
    options: &(dyn Fn(&Member) -> Options + Sync),
) {
    let run = |options: &Options| {
        let mut step = program.train_step(train, options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let losses: Vec<f64> =
            (0..4).map(|_| step.step(given, RATE).unwrap_or_else(|e| panic!("{e}")).loss).collect();
        (losses, step.weights().unwrap())
    };
    let (expected, weights) = run(&alone());
    // An update by SGD is as small as the gradient is: it is judged as any other.
    let noise = if normalised { noise(program, given) } else { Vec::new() };
    assert!(noise.len() * 10 <= weights.len(), "{name}: most parameters would not be judged: {noise:?}");
    for mesh in meshes.iter().copied() {
        let all = on_mesh(mesh, &format!("train {name} {normalised}"), |member| run(&options(member)));
        for (rank, (losses, own)) in all.iter().enumerate() {
            for (l, e) in losses.iter().zip(&expected) {
                assert!(
                    (l - e).abs() <= 1e-4 * e.abs().max(1e-3),
                    "{name} {mesh} rank {rank}: {losses:?}, not {expected:?}"
                );
            }
            for (parameter, e) in &weights {
                let what = format!("{name} {mesh} rank {rank} {parameter}");
                match noise.contains(parameter) {
                    true => assert_bounded(&what, &own[parameter], e, 2.0 * 4.0 * RATE),
                    false => assert_close(&what, &own[parameter], e, (2e-3, 1e-6)),
                }
            }
        }
    }
}

#[test]
fn forward_of_golden_networks() {
    ["train/mlp", "train/gpt2_tiny", "train/bert_tiny", "train/vit_tiny", "train/dlrm"]
        .into_iter()
        .for_each(forward_on_meshes);
}

#[test]
fn forward_of_convolutions_and_recurrences() {
    ["train/resnet18_narrow", "train/lstm", "train/gcn", "train/mobilenet_v2"]
        .into_iter()
        .for_each(forward_on_meshes);
}

#[test]
fn forward_of_upsampling_depthwise_convolutions_and_a_decoder() {
    ["train/unet", "train/convnext_tiny2", "hf/LlamaForCausalLM"].into_iter().for_each(forward_on_meshes);
}

#[test]
fn training_steps_with_momentum() {
    let sgd =
        TrainOptions::new(Optimizer::Sgd(ferroflux::optim::Sgd { momentum: 0.9, ..Default::default() }));
    ["train/mlp", "train/gpt2_tiny", "train/vit_tiny", "train/lstm", "train/gcn", "train/resnet18_narrow"]
        .into_iter()
        .for_each(|name| training_on_meshes(name, &sgd, false));
}

#[test]
fn training_steps_with_adam() {
    let adam = TrainOptions::new(adamw());
    ["train/mlp", "train/bert_tiny"].into_iter().for_each(|name| training_on_meshes(name, &adam, true));
}

#[test]
fn a_snapshot_goes_on_on_another_mesh() {
    let Some(program) = golden("train/mlp") else { return };
    let (given, train) = (inputs(&program), TrainOptions::new(adamw()));
    let mut whole = program.train_step(&train, &alone()).unwrap();
    let expected: Vec<f64> = (0..6).map(|_| whole.step(&given, 0.01).unwrap().loss).collect();
    let first = on_mesh("fsdp=2", "before", |member| {
        let mut step = program.train_step(&train, &as_rank(member)).unwrap();
        (0..3).for_each(|n| assert!((step.step(&given, 0.01).unwrap().loss - expected[n]).abs() < 1e-4));
        step.snapshot().unwrap()
    });
    let losses = on_mesh("dp=3", "after", |member| {
        let mut step = program.train_step(&train, &as_rank(member)).unwrap();
        step.restore(&first[1]).unwrap();
        (3..6).map(|_| step.step(&given, 0.01).unwrap().loss).collect::<Vec<f64>>()
    });
    for rank in &losses {
        rank.iter()
            .zip(&expected[3..])
            .for_each(|(l, e)| assert!((l - e).abs() < 1e-4, "{losses:?} {expected:?}"));
    }
    let mut alone_again = program.train_step(&train, &alone()).unwrap();
    alone_again.restore(&first[0]).unwrap();
    assert!((alone_again.step(&given, 0.01).unwrap().loss - expected[3]).abs() < 1e-4);
}

/// Parts of weights in sections (queries, keys and values in one) are read back whole, and on meshes that cut them otherwise.
#[test]
fn parts_in_sections_go_on_on_another_mesh() {
    let Some(program) = golden("train/gpt2_tiny") else { return };
    let (given, train) = (inputs(&program), TrainOptions::new(Optimizer::Sgd(Default::default())));
    let mut whole = program.train_step(&train, &alone()).unwrap();
    let expected: Vec<f64> = (0..4).map(|_| whole.step(&given, RATE).unwrap().loss).collect();
    let parts = on_mesh("fsdp=2,tp=2", "before in sections", |member| {
        let mut step = program.train_step(&train, &as_rank(member)).unwrap();
        (0..2).for_each(|n| assert!((step.step(&given, RATE).unwrap().loss - expected[n]).abs() < 1e-4));
        step.snapshot_part().unwrap()
    });
    let in_sections =
        parts.iter().flat_map(|part| part.places.values()).filter(|place| !place.pieces.is_empty()).count();
    assert!(in_sections >= 4, "the plan cuts fused weights by sections");
    for mesh in ["tp=2", "dp=2", "fsdp=2,tp=2"] {
        let losses = on_mesh(mesh, "after in sections", |member| {
            let mut step = program.train_step(&train, &as_rank(member)).unwrap();
            step.restore_parts(&parts).unwrap();
            (2..4).map(|_| step.step(&given, RATE).unwrap().loss).collect::<Vec<f64>>()
        });
        for (l, e) in losses.iter().flat_map(|rank| rank.iter().zip(&expected[2..])) {
            assert!((l - e).abs() < 1e-4, "{mesh}: {losses:?} {expected:?}");
        }
    }
    let mut alone_again = program.train_step(&train, &alone()).unwrap();
    alone_again.restore_parts(&parts).unwrap();
    assert!((alone_again.step(&given, RATE).unwrap().loss - expected[2]).abs() < 1e-4);
    assert!(alone_again.restore_parts(&parts[1..]).is_err(), "a part is missing");
}

#[test]
fn what_does_not_fit_is_an_error() {
    let Some(program) = golden("train/mlp") else { return };
    let mesh: Mesh = "dp=2".parse().unwrap();
    let wrong = Member::join(&mesh, &Place::new(0, 3, "other"), "cpu").unwrap_err().to_string();
    assert!(wrong.contains("2 ranks") && wrong.contains("3 processes"), "{wrong}");
    let found = on_mesh("dp=2", "plans differ", |member| {
        let plan = if member.rank() == 0 { Plan::usual(member.mesh()) } else { Plan::default() };
        program.compile(&as_rank(member).plan(plan)).map(drop).map_err(|e| e.to_string())
    });
    assert!(found.iter().all(|r| r.as_ref().is_err_and(|e| e.contains("other exchanges"))), "{found:?}");
    let found = on_mesh("dp=2", "no such name", |member| {
        program
            .compile(&as_rank(member).placement("nothing.*", "dp=S(0)"))
            .map(drop)
            .map_err(|e| e.to_string())
    });
    assert!(found.iter().all(|r| r.as_ref().is_err_and(|e| e.contains("nothing.*"))), "{found:?}");
}
