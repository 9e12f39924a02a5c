//! The models against what PyTorch computed with the same weights, which are a formula of their names.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;
use std::path::Path;

use ferroflux::Program;
use ferroflux::prelude::*;
use ferroflux::tensor::{Tensor as HostTensor, formula, safetensors::SafetensorsFile};
use models::gpt2::{Config, Gpt2};
use models::llama::{self, Llama};
use models::resnet::ResNet;
use models::vit::VisionTransformer;
use testing::cases::{Cases, corpus, data};
use testing::compare::largest;

/// Weights by the formulas that a golden file lists.
fn load(model: &dyn Module, golden: &SafetensorsFile) {
    let formulas: BTreeMap<String, (f32, f32)> = serde_json::from_str(&golden.metadata["params"]).unwrap();
    let mut weights = model.state_dict().unwrap();
    let mut left: Vec<&str> = formulas.keys().map(String::as_str).collect();
    for (name, tensor) in &mut weights {
        let Some((scale, offset)) = formulas.get(&format!("m.{name}")) else { continue };
        *tensor = formula::fill(name, tensor.sizes(), *scale, *offset).unwrap();
        left.retain(|l| l.strip_prefix("m.") != Some(name));
    }
    assert!(left.is_empty(), "the model lacks {left:?}");
    model.load_state_dict(&weights).unwrap();
    model.eval();
}

/// Compares with the golden outputs: within 1e-3 of the largest value, as the corpus' README says.
fn check(name: &str, got: &HostTensor, golden: &SafetensorsFile) {
    let wanted = &golden.tensors["out0"];
    let outs: Vec<serde_json::Value> = serde_json::from_str(&golden.metadata["outs"]).unwrap();
    let step = outs[0]["step"].as_u64().unwrap() as usize;
    assert_eq!(got.numel().div_ceil(step), wanted.numel());
    let bound = 1e-3 * largest(wanted);
    let worst =
        got.iter_f64().step_by(step).zip(wanted.iter_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{name}: off by {worst:.2e} of {:.2e}", largest(wanted));
    assert!(worst <= bound, "{name}: {worst} is more than {bound}");
}

fn case(path: &Path, name: &str) -> (Vec<u8>, SafetensorsFile) {
    let mut zip = Cases::open(path).unwrap();
    (zip.archive(name).unwrap(), zip.golden(name).unwrap())
}

/// Eager, compiled and compiled with frozen weights.
fn three_ways(
    name: &str,
    model: impl Layer + Send + Sync + 'static,
    input: &Tensor,
    golden: &SafetensorsFile,
) {
    load(&model, golden);
    let model = std::sync::Arc::new(model);
    no_grad(|| {
        check(&format!("{name}, eager"), &model.forward(input).to_host().unwrap(), golden);
        for freeze in [false, true] {
            let own = std::sync::Arc::clone(&model);
            let compiled =
                compile(move |x: Tensor| own.forward(&x)).freeze(freeze).fullgraph(true).build().unwrap();
            for _ in 0..2 {
                let y = compiled.call(input.clone()).unwrap().to_host().unwrap();
                check(&format!("{name}, compiled, freeze {freeze}"), &y, golden);
            }
            assert_eq!(compiled.captures(), 1);
            model.train(true);
            model.eval();
            compiled.call(input.clone()).unwrap();
            assert_eq!(compiled.captures(), 1, "the mode is the one of the capture again");
        }
    });
}

#[test]
fn resnet18_gives_pytorchs_scores() {
    let (archive, golden) = case(&data("models/resnet18.zip"), "resnet18");
    let model = ResNet::resnet18(1000);
    has_the_names_of(&model, archive);
    let image = formula::fill("input0", &[1, 3, 224, 224], 1.7, 0.0).unwrap();
    three_ways("resnet18", model, &image.into(), &golden);
}

/// A model of Rust and its archive with the same weights, in turns: both give PyTorch's values. The times are printed, not
/// asserted: machines differ.
fn beside_its_archive(
    name: &str,
    model: impl Layer + Send + Sync + 'static,
    input: &HostTensor,
    (archive, golden): &(Vec<u8>, SafetensorsFile),
) {
    load(&model, golden);
    let weights = model.state_dict().unwrap().into_iter().map(|(name, t)| (format!("m.{name}"), t));
    let weights: BTreeMap<String, HostTensor> = weights.collect();
    let mut program = Program::from_bytes(archive.clone()).unwrap();
    assert_eq!(program.fill_weights(&weights).unwrap(), 0);
    let archive = program.compile(&ferroflux::Options::new()).unwrap();
    let compiled = compile(move |x: Tensor| model.forward(&x)).freeze(true).fullgraph(true).build().unwrap();
    let mut best = [f64::INFINITY; 2];
    no_grad(|| {
        // Calls of small networks are many: the fastest of a few says little of them.
        let begin = std::time::Instant::now();
        let mut rounds = 0;
        while rounds < 8 || begin.elapsed() < std::time::Duration::from_millis(500) {
            rounds += 1;
            for (n, best) in best.iter_mut().enumerate() {
                let start = std::time::Instant::now();
                let y = match n {
                    0 => archive.call(std::slice::from_ref(input)).unwrap().remove(0),
                    _ => compiled.call(input.into()).unwrap().to_host().unwrap(),
                };
                *best = best.min(start.elapsed().as_secs_f64() * 1e3);
                if rounds <= 8 {
                    check(name, &y, golden);
                }
            }
        }
    });
    println!("{name}: {:.3} ms from the archive, {:.3} ms from Rust", best[0], best[1]);
}

#[test]
fn resnet18_compiled_beside_its_archive() {
    let case = case(&data("models/resnet18.zip"), "resnet18");
    let image = formula::fill("input0", &[1, 3, 224, 224], 1.7, 0.0).unwrap();
    beside_its_archive("resnet18", ResNet::resnet18(1000), &image, &case);
}

#[test]
fn models_of_the_corpus_compiled_beside_their_archives() {
    for (name, model) in [("resnet50", ResNet::resnet50(1000)), ("resnet152", ResNet::resnet152(1000))] {
        let Some(case) = of_corpus(&format!("tv/{name}.zip"), name) else { return };
        beside_its_archive(name, model, &image(&case.1), &case);
    }
    if let Some(case) = of_corpus("tv/vit_b_16.zip", "vit_b_16") {
        beside_its_archive("vit_b_16", VisionTransformer::vit_b_16(1000), &image(&case.1), &case);
    }
    if let Some(case) = of_corpus("hf/GPT2LMHeadModel.zip", "GPT2LMHeadModel") {
        beside_its_archive("gpt2", Gpt2::new(&GPT2), &case.1.tensors["in0"].clone(), &case);
    }
    if let Some(case) = of_corpus("hf/LlamaForCausalLM.zip", "LlamaForCausalLM") {
        beside_its_archive("llama", Llama::new(&LLAMA), &case.1.tensors["in0"].clone(), &case);
    }
}

/// The configuration of the corpus' GPT-2.
const GPT2: Config = Config { vocabulary: 512, positions: 128, size: 64, heads: 4, layers: 2 };
/// The configuration of the corpus' Llama.
const LLAMA: llama::Config = llama::Config {
    vocabulary: 512,
    size: 64,
    hidden: 128,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    eps: 1e-6,
    theta: 10_000.0,
};

/// The image of a golden file of torchvision's models.
fn image(golden: &SafetensorsFile) -> HostTensor {
    let inputs: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(&golden.metadata["inputs"]).unwrap();
    let scale = inputs["in0"]["scale"].as_f64().unwrap() as f32;
    formula::fill(inputs["in0"]["name"].as_str().unwrap(), &[1, 3, 224, 224], scale, 0.0).unwrap()
}

/// A model has the parameters and buffers of an archive, by name.
fn has_the_names_of(model: &dyn Module, archive: Vec<u8>) {
    let mut own: Vec<String> = model.state().into_iter().map(|(name, _)| format!("m.{name}")).collect();
    let program = Program::from_bytes(archive).unwrap();
    let mut names: Vec<String> = program.exported().weights.iter().map(|w| w.name.clone()).collect();
    own.sort();
    names.sort();
    assert_eq!(own, names, "the names of torchvision");
}

#[test]
fn gpt2_gives_pytorchs_scores() {
    let Some(corpus) = corpus() else { return };
    let path = corpus.join("hf/GPT2LMHeadModel.zip");
    if !path.exists() {
        return;
    }
    let (_, golden) = case(&path, "GPT2LMHeadModel");
    let tokens: Tensor = (&golden.tensors["in0"]).into();
    three_ways("gpt2", Gpt2::new(&GPT2), &tokens, &golden);
}

/// The archive and the golden file of a model of the corpus; `None` where there is no corpus.
fn of_corpus(file: &str, name: &str) -> Option<(Vec<u8>, SafetensorsFile)> {
    let path = corpus()?.join(file);
    path.exists().then(|| case(&path, name))
}

#[test]
fn llama_gives_pytorchs_scores() {
    let Some((_, golden)) = of_corpus("hf/LlamaForCausalLM.zip", "LlamaForCausalLM") else { return };
    let tokens: Tensor = (&golden.tensors["in0"]).into();
    three_ways("llama", Llama::new(&LLAMA), &tokens, &golden);
}

#[test]
fn llama_takes_any_length() {
    let config = llama::Config {
        vocabulary: 16,
        size: 8,
        hidden: 12,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        eps: 1e-6,
        theta: 100.0,
    };
    let model = std::sync::Arc::new(Llama::new(&config));
    let own = model.clone();
    let compiled = compile(move |x: Tensor| own.forward(&x)).fullgraph(true).build().unwrap();
    no_grad(|| {
        for length in [5, 3, 9, 2, 7] {
            let tokens = Tensor::arange(length).unsqueeze(0);
            let (a, b) = (model.forward(&tokens), compiled.call(tokens.clone()).unwrap());
            let (a, b) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
            assert_eq!(a.len(), b.len());
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + a.abs())), "{length}");
        }
        assert_eq!(compiled.captures(), 2, "{:?}", compiled.recompile_reasons());
    });
}

#[test]
fn vit_gives_pytorchs_scores() {
    let Some((archive, golden)) = of_corpus("tv/vit_b_16.zip", "vit_b_16") else { return };
    let model = VisionTransformer::vit_b_16(1000);
    has_the_names_of(&model, archive);
    let image = image(&golden);
    load(&model, &golden);
    let model = std::sync::Arc::new(model);
    let own = std::sync::Arc::clone(&model);
    let compiled = compile(move |x: Tensor| own.forward(&x)).freeze(true).fullgraph(true).build().unwrap();
    no_grad(|| {
        let image = Tensor::from(&image);
        check("vit_b_16, eager", &model.forward(&image).to_host().unwrap(), &golden);
        check("vit_b_16, compiled", &compiled.call(image.clone()).unwrap().to_host().unwrap(), &golden);
    });
}

#[test]
fn networks_of_bottlenecks_have_torchvisions_parameters() {
    let count = |model: ResNet| -> i64 { model.parameters().iter().map(|p| p.numel().get()).sum() };
    assert_eq!(count(ResNet::resnet50(1000)), 25_557_032);
    assert_eq!(count(ResNet::resnet152(1000)), 60_192_808);
}

#[test]
fn a_step_of_resnet18_is_the_same_eager_and_compiled() {
    let make = || {
        let model = ResNet::resnet18(4);
        let weights: BTreeMap<String, HostTensor> = model
            .state_dict()
            .unwrap()
            .into_iter()
            .map(|(name, t)| {
                let made = match (t.dtype().is_float(), name.contains("var")) {
                    (false, _) => t,
                    (true, true) => formula::fill(&name, t.sizes(), 0.1, 1.0).unwrap(),
                    (true, false) => formula::fill(&name, t.sizes(), 0.05, 0.02).unwrap(),
                };
                (name, made)
            })
            .collect();
        model.load_state_dict(&weights).unwrap();
        model
    };
    let losses = |compiled: bool| -> (Vec<f64>, BTreeMap<String, HostTensor>) {
        let model = std::sync::Arc::new(make());
        let optimizer = ferroflux::nn::Sgd::new(model.parameters(), 0.05).momentum(0.9);
        let own = std::sync::Arc::clone(&model);
        let step = move |(x, y): (Tensor, Tensor)| -> Result<Tensor, ferroflux::Error> {
            optimizer.zero_grad();
            let loss = own.forward(&x).cross_entropy(&y);
            loss.backward()?;
            optimizer.step()?;
            Ok(loss.detach())
        };
        let x: Tensor = formula::fill("images", &[4, 3, 32, 32], 1.0, 0.0).unwrap().into();
        let y = Tensor::from_slice(&[0_i64, 1, 2, 3], &[4]);
        let mut all = Vec::new();
        if compiled {
            let step = compile(step).fullgraph(true).build().unwrap();
            for _ in 0..4 {
                all.push(step.call((x.clone(), y.clone())).unwrap().item().unwrap());
            }
            // The first step found no gradients, which the others forget first.
            assert!(step.captures() <= 2, "{:?}", step.recompile_reasons());
        } else {
            for _ in 0..4 {
                all.push(step((x.clone(), y.clone())).unwrap().item().unwrap());
            }
        }
        (all, model.state_dict().unwrap())
    };
    let ((eager, a), (compiled, b)) = (losses(false), losses(true));
    println!("losses: {eager:?}");
    for (x, y) in eager.iter().zip(&compiled) {
        assert!((x - y).abs() <= 1e-4 * (1.0 + x.abs()), "{eager:?} {compiled:?}");
    }
    assert!(eager[3] < eager[0], "{eager:?}");
    for (name, x) in &a {
        let bound = 1e-3 * (1.0 + largest(x));
        let worst = x.iter_f64().zip(b[name].iter_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= bound, "{name}: {worst}");
    }
    assert_eq!(a["bn1.num_batches_tracked"].item().unwrap().as_i64(), 4);
}
