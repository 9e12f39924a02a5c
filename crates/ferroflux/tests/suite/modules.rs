//! Modules: what layers compute, the names of their state, modes in captured functions.

use std::collections::BTreeMap;

use ferroflux::nn::{
    BatchNorm2d, Conv1d, Conv2d, Conv3d, ConvTranspose2d, Dropout, Embedding, GroupNorm, Gru, LayerNorm,
    Linear, Lstm, MultiheadAttention, Relu, RmsNorm, Sequential, Sgd, TransformerEncoderLayer,
};
use ferroflux::prelude::*;

fn values(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().unwrap_or_else(|e| panic!("{e}"))
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= 2e-5 * (1.0 + y.abs()), "{a:?} is not {b:?}");
    }
}

#[derive(Module)]
struct Net<const WIDE: bool> {
    body: Sequential,
    heads: Vec<Linear>,
    r#type: Option<Embedding>,
    #[skip]
    #[allow(dead_code)] // a field that is no module
    notes: BTreeMap<String, (i32, Vec<f32>)>,
    rate: f64,
}

fn net() -> Net<true> {
    Net {
        body: Sequential::new().then(Conv2d::new(1, 2, 3)).then(BatchNorm2d::new(2)).then(Relu),
        heads: vec![Linear::new(2, 3), Linear::new(2, 3).without_bias()],
        r#type: Some(Embedding::new(5, 2)),
        notes: BTreeMap::new(),
        rate: 0.5,
    }
}

#[test]
fn names_are_those_of_pytorch() {
    let names: Vec<String> = net().state().into_iter().map(|(name, _)| name).collect();
    let expected = [
        "body.0.weight",
        "body.0.bias",
        "body.1.weight",
        "body.1.bias",
        "body.1.running_mean",
        "body.1.running_var",
        "body.1.num_batches_tracked",
        "heads.0.weight",
        "heads.0.bias",
        "heads.1.weight",
        "type.weight",
    ];
    assert_eq!(names, expected);
    assert_eq!(net().parameters().len(), 8);
    let lstm: Vec<String> = Lstm::new(2, 3, 1).state().into_iter().map(|(name, _)| name).collect();
    assert_eq!(lstm, ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]);
    let layer = TransformerEncoderLayer::new(8, 2, 16, 0.0).state_dict().unwrap();
    assert!(layer.contains_key("self_attn.in_proj_weight") && layer.contains_key("self_attn.out_proj.bias"));
    assert!((net().rate - 0.5).abs() < 1e-9);
}

#[test]
fn state_dicts_are_loaded_whole_or_not_at_all() {
    let (a, b) = (net(), net());
    let path = std::env::temp_dir().join(format!("ferroflux-modules-{}.safetensors", std::process::id()));
    a.save_safetensors(&path).unwrap();
    b.load_safetensors(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for ((name, x), (_, y)) in a.state().iter().zip(b.state()) {
        assert_eq!(
            x.to_host().unwrap().iter_f64().collect::<Vec<_>>(),
            y.to_host().unwrap().iter_f64().collect::<Vec<_>>(),
            "{name}"
        );
    }
    assert!(b.parameters().iter().all(Tensor::requires_grad));
    let mut state = a.state_dict().unwrap();
    state.remove("type.weight");
    state.insert("other".into(), ferroflux::Tensor::zeros(DType::F32, &[1]).unwrap());
    let error = b.load_state_dict(&state).unwrap_err().to_string();
    assert!(error.contains("missing: type.weight") && error.contains("unknown: other"), "{error}");
}

#[test]
fn batch_norm_trains_and_then_uses_what_it_has_seen() {
    let norm = BatchNorm2d::new(1);
    let x = Tensor::arange(8).to(DType::F32).reshape(&[2, 1, 2, 2]);
    let y = norm.forward(&x);
    // Mean 3.5, variance 5.25; unbiased 6.
    close(&values(&y)[..1], &[-3.5 / 5.250_01f32.sqrt()]);
    close(&values(&norm.running_mean), &[0.35]);
    close(&values(&norm.running_var), &[0.9 + 0.6]);
    assert_eq!(norm.num_batches_tracked.item().unwrap(), 1.0);
    norm.eval();
    close(&values(&norm.forward(&x))[..1], &[-0.35 / 1.500_01f32.sqrt()]);
    assert_eq!(norm.num_batches_tracked.item().unwrap(), 1.0);
}

#[test]
fn modes_are_guards_and_buffers_are_kept() {
    let norm = std::sync::Arc::new(BatchNorm2d::new(2));
    let drop = std::sync::Arc::new(Dropout::new(0.5));
    let (own, own_drop) = (norm.clone(), drop.clone());
    let f = compile(move |x: Tensor| own_drop.forward(&own.forward(&x))).fullgraph(true).build().unwrap();
    let x = Tensor::rand(&[3, 2, 2, 2]);
    drop.eval();
    let reference = BatchNorm2d::new(2);
    for round in 0..3 {
        close(&values(&f.call(x.clone()).unwrap()), &values(&reference.forward(&x)));
        assert_eq!(norm.num_batches_tracked.item().unwrap(), f64::from(round + 1));
        close(&values(&norm.running_var), &values(&reference.running_var));
    }
    assert_eq!(f.captures(), 1);
    norm.eval();
    reference.eval();
    close(&values(&f.call(x.clone()).unwrap()), &values(&reference.forward(&x)));
    drop.train(true);
    let dropped = values(&f.call(Tensor::ones(&[3, 2, 2, 2])).unwrap());
    assert!(dropped.contains(&0.0), "{dropped:?}");
    assert_eq!(f.captures(), 3);
    drop.eval();
    close(&values(&f.call(x.clone()).unwrap()), &values(&reference.forward(&x)));
    assert_eq!(f.captures(), 3, "compiled forms of earlier modes are used again");
}

#[test]
fn convolutions_over_any_dimensions_have_pytorchs_sizes() {
    let shape = |t: Tensor| t.shape();
    assert_eq!(shape(Conv1d::new(2, 4, 3).padding(1).forward(&Tensor::zeros(&[1, 2, 7]))), [1, 4, 7]);
    assert_eq!(
        shape(Conv2d::with(4, 8, [3, 1], 2).stride(2).forward(&Tensor::zeros(&[1, 4, 9, 9]))),
        [1, 8, 4, 5]
    );
    assert_eq!(
        shape(Conv3d::new(1, 2, 2).dilation(2).forward(&Tensor::zeros(&[1, 1, 5, 5, 5]))),
        [1, 2, 3, 3, 3]
    );
    let up = ConvTranspose2d::new(3, 2, 3).stride(2).padding(1).output_padding(1);
    assert_eq!(shape(up.forward(&Tensor::zeros(&[1, 3, 4, 4]))), [1, 2, 8, 8]);
    let one = Conv1d::new(1, 1, 2);
    no_grad(|| {
        one.weight.set_(&Tensor::from_slice(&[1.0_f32, 10.0], &[1, 1, 2])).unwrap();
        one.bias.as_ref().unwrap().fill_(0.5).unwrap();
    });
    close(&values(&one.forward(&Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[1, 1, 3]))), &[21.5, 32.5]);
}

#[test]
fn norms_have_mean_zero_and_variance_one() {
    let x = Tensor::randn(&[4, 6]) * 3.0 + 2.0;
    let y = LayerNorm::new(&[6]).forward(&x);
    close(&values(&y.mean_dims(&[1], false)), &[0.0; 4]);
    // What is divided by is the root of the variance and 1e-5, which counts where few numbers happen to lie close together.
    let variances = values(&x.var_dims(&[1], 0, false));
    let wanted: Vec<f32> = variances.iter().map(|v| v / (v + 1e-5)).collect();
    close(&values(&y.var_dims(&[1], 0, false)), &wanted);
    let rms = RmsNorm::new(&[6], Some(0.0)).forward(&x);
    close(&values(&rms.square().mean_dims(&[1], false)), &[1.0; 4]);
    let groups = GroupNorm::new(2, 6).forward(&x).reshape(&[4, 2, 3]);
    close(&values(&groups.mean_dims(&[2], false)), &[0.0; 8]);
}

#[test]
fn attention_is_what_its_parts_compute() {
    let attention = MultiheadAttention::new(6, 2);
    let x = Tensor::randn(&[2, 5, 6]);
    let got = attention.attend(&x, &x, &x, None, true);
    let part = |n: i64| {
        let w = attention.in_proj_weight.narrow(0, 6 * n, 6);
        x.matmul(&w.t()).reshape(&[2, 5, 2, 3]).permute(&[0, 2, 1, 3])
    };
    let scores = part(0).matmul(&part(1).transpose(2, 3)) / 3.0f64.sqrt();
    let mask = Tensor::ones(&[5, 5]).call("aten.triu.default", [1.into()]).gt(0.0);
    let weights = scores.masked_fill(&mask, f64::NEG_INFINITY).softmax(3);
    let heads = weights.matmul(&part(2)).permute(&[0, 2, 1, 3]).reshape(&[2, 5, 6]);
    close(&values(&got), &values(&attention.out_proj.forward(&heads)));
}

#[test]
fn recurrent_layers_run_over_sequences() {
    let gru = Gru::new(3, 4, 2);
    let x = Tensor::randn(&[2, 5, 3]);
    let (y, last) = gru.run(&x, &[&gru.zero_state(&x)]).unwrap();
    assert_eq!((y.shape(), last[0].shape()), (vec![2, 5, 4], vec![2, 2, 4]));
    close(&values(&y.select(1, 4)), &values(&last[0].select(0, 1)));
    let lstm = Lstm::new(3, 4, 1);
    let (h, c) = (lstm.zero_state(&x), lstm.zero_state(&x));
    let (y, last) = lstm.run(&x, &[&h, &c]).unwrap();
    assert_eq!((y.shape(), last.len()), (vec![2, 5, 4], 2));
}

#[test]
fn a_network_learns_eager_and_compiled_alike() {
    let train = |compiled: bool| {
        let net = std::sync::Arc::new(
            Sequential::new().then(Linear::new(2, 16)).then(Relu).then(Linear::new(16, 1)),
        );
        for (n, (_, p)) in net.named_parameters().into_iter().enumerate() {
            let made = ferroflux::tensor::formula::fill(&format!("p{n}"), &p.shape(), 0.5, 0.0).unwrap();
            no_grad(|| p.set_(&made.into()).map(|_| ())).unwrap();
        }
        let optimizer = std::sync::Arc::new(Sgd::new(net.parameters(), 0.1).momentum(0.9).weight_decay(1e-4));
        let rate = optimizer.clone();
        let step = move |(x, y): (Tensor, Tensor)| -> Result<Tensor, ferroflux::Error> {
            optimizer.zero_grad();
            let loss = net.forward(&x).mse_loss(&y);
            loss.backward()?;
            optimizer.step()?;
            Ok(loss.detach())
        };
        let x = Tensor::from_slice(&[0.0_f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], &[4, 2]);
        let y = Tensor::from_slice(&[0.0_f32, 1.0, 1.0, 0.0], &[4, 1]);
        let compiled = compiled.then(|| compile(step.clone()).fullgraph(true).build().unwrap());
        let turn = |n: i32| {
            rate.set_lr(0.1 * 0.99f64.powi(n)).unwrap();
            match &compiled {
                Some(step) => step.call((x.clone(), y.clone())).unwrap().item().unwrap(),
                None => step((x.clone(), y.clone())).unwrap().item().unwrap(),
            }
        };
        let losses = (0..60).map(turn).collect::<Vec<f64>>();
        // The first call finds no gradients to forget; another learning rate compiles nothing.
        assert!(compiled.is_none_or(|step| step.captures() <= 2));
        losses
    };
    let (eager, compiled) = (train(false), train(true));
    for (a, b) in eager.iter().zip(&compiled) {
        assert!((a - b).abs() < 1e-4, "{eager:?} {compiled:?}");
    }
    assert!(eager[59] < 0.1 * eager[0], "{eager:?}");
}
