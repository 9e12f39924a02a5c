//! Layers against what PyTorch 2.11 computes for the same weights, which are sines of their elements' numbers.

use ferroflux::nn::{
    AdaptiveAvgPool1d, AdaptiveAvgPool3d, AvgPool1d, AvgPool3d, BagMode, Conv2d, ConvTranspose2d, Elu,
    EmbeddingBag, Gru, Hardsigmoid, Hardswish, Linear, LogSigmoid, Lstm, MaxPool1d, MaxPool3d, Mish,
    Recurrent, Relu6, Rnn, Selu, Softplus, SpectralNorm, TransformerDecoderLayer, WeightNorm,
};
use ferroflux::prelude::*;

fn made(count: usize, f: impl Fn(f64) -> f64, sizes: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..count).map(|n| f(n as f64) as f32).collect();
    Tensor::from_slice(&values, sizes)
}

/// Gives the parameters their values, in this order.
fn fill(parameters: &[(String, Tensor)]) {
    for (n, (_, p)) in parameters.iter().enumerate() {
        let shape = p.shape();
        let value = made(shape.iter().product(), |i| 0.5 * (0.37 * i + n as f64).sin(), &shape);
        no_grad(|| p.set_(&value).map(|_| ())).unwrap();
    }
}

fn close(got: &Tensor, expected: &[f32]) {
    let got = got.to_vec::<f32>().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(got.len(), expected.len());
    let near = got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 3e-6 * (1.0 + b.abs()));
    assert!(near, "{got:?} is not {expected:?}");
}

fn sequence() -> Tensor {
    made(6, |i| (0.5 * i).cos(), &[1, 3, 2])
}

fn both_ways<const GATES: i64>(layer: Recurrent<GATES>, y: &[f32], last: &[f32]) {
    let layer = layer.bidirectional();
    fill(&layer.named_parameters());
    let names: Vec<String> = layer.state().into_iter().map(|(name, _)| name).collect();
    assert_eq!((names[4].as_str(), names[8].as_str()), ("weight_ih_l0_reverse", "weight_ih_l1"));
    let x = sequence();
    let zero = layer.zero_state(&x);
    let states = if GATES == 4 { vec![&zero, &zero] } else { vec![&zero] };
    let (got, ends) = layer.run(&x, &states).unwrap();
    close(&got, y);
    close(&ends[0], last);
}

#[test]
fn recurrent_layers_run_in_both_directions() {
    both_ways(
        Rnn::new(2, 2, 2),
        &[
            -0.280535, -0.672309, 0.758349, 0.946278, -0.282312, -0.517583, 0.738303, 0.950097, 0.064181,
            -0.876282, 0.67417, 0.951363,
        ],
        &[0.804183, 0.444229, -0.299446, -0.259543, 0.064181, -0.876282, 0.758349, 0.946278],
    );
    both_ways(
        Gru::new(2, 2, 2),
        &[
            -0.237361, -0.309006, 0.042149, -0.124927, -0.397401, -0.388492, 0.042267, -0.221659, -0.455025,
            -0.371735, -0.007064, -0.181838,
        ],
        &[-0.216379, -0.133637, 0.552491, 0.398962, -0.455025, -0.371735, 0.042149, -0.124927],
    );
    both_ways(
        Lstm::new(2, 2, 2),
        &[
            -0.043473, -0.058944, -0.066605, -0.059671, -0.067701, -0.082186, -0.046053, -0.080433,
            -0.099114, -0.07867, -0.028434, -0.088793,
        ],
        &[-0.181083, -0.133206, 0.405176, 0.338727, -0.099114, -0.07867, -0.066605, -0.059671],
    );
}

#[test]
fn decoder_layers_attend_to_both_sequences() {
    let x = made(12, |i| (0.5 * i).cos(), &[1, 3, 4]);
    let memory = made(8, |i| (0.3 * i).sin(), &[1, 2, 4]);
    let layer = TransformerDecoderLayer::new(4, 2, 6, 0.0);
    let mut parameters = layer.named_parameters();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(parameters.len(), 18);
    fill(&parameters);
    close(
        &layer.decode(&x, &memory, true),
        &[
            -0.449102, 0.037103, 0.763338, -0.232013, -0.447302, 0.037403, 0.762916, -0.236255, -0.462604,
            0.014912, 0.778879, -0.18592,
        ],
    );
    let first = layer.norm_first(true);
    close(
        &first.decode(&x, &memory, true),
        &[
            2.394679, 0.68622, -0.842298, -0.892543, 0.966824, -1.007661, -2.378241, -1.870293, 0.687902,
            -0.370099, -1.113277, -0.22008,
        ],
    );
}

#[test]
fn bags_are_summed_averaged_and_compared() {
    let expected: [(BagMode, [f32; 4], [f32; 4]); 3] = [
        (BagMode::Sum, [0.995881, 1.322891, 1.593131, 1.048089], [2.466734, 2.381018, 0.0, 0.361615]),
        (BagMode::Mean, [0.49794, 0.661445, 0.796565, 0.524044], [0.822245, 0.793673, 0.0, 0.361615]),
        (BagMode::Max, [0.995881, 0.961275, 0.796565, 0.524044], [0.995881, 0.961275, 0.0, 0.361615]),
    ];
    for (mode, equal, ragged) in expected {
        let bag = EmbeddingBag::new(4, 2, mode);
        no_grad(|| bag.weight.set_(&made(8, |i| (0.37 * i).sin(), &[4, 2])).map(|_| ())).unwrap();
        close(&bag.forward(&Tensor::from_slice(&[0_i64, 2, 3, 3], &[2, 2])), &equal);
        let (numbers, offsets) =
            (Tensor::from_slice(&[1_i64, 2, 3, 0], &[4]), Tensor::from_slice(&[0_i64, 3], &[2]));
        close(&bag.forward_bags(&numbers, &offsets, None), &ragged);
    }
    // Any number of bags of any length by two compilations.
    let bag = std::sync::Arc::new(EmbeddingBag::new(6, 3, BagMode::Sum));
    let own = bag.clone();
    let f = compile(move |x: Tensor| own.forward(&x)).fullgraph(true).build().unwrap();
    for (rows, length) in [(2, 3), (4, 5), (3, 2)] {
        let x = Tensor::arange(rows * length).reshape(&[rows, length]) % 6;
        close(&f.call(x.clone()).unwrap(), &bag.forward(&x).to_vec::<f32>().unwrap());
    }
    assert_eq!(f.captures(), 2, "{:?}", f.recompile_reasons());
}

fn linear() -> Linear {
    let layer = Linear::new(3, 2);
    no_grad(|| layer.weight.set_(&made(6, |i| (0.37 * i).sin(), &[2, 3])).map(|_| ())).unwrap();
    no_grad(|| layer.bias.as_ref().unwrap().fill_(0.0).map(|_| ())).unwrap();
    layer
}

fn names(module: &dyn Module) -> Vec<String> {
    module.state().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn weight_norm_is_pytorchs() {
    let (plain, x) = (linear(), Tensor::from_slice(&[1.0_f32, 2.0, -1.0], &[1, 3]));
    let before = plain.forward(&x).to_vec::<f32>().unwrap();
    let layer = WeightNorm::new(plain);
    close(&layer.forward(&x), &before);
    let expected = ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"];
    assert_eq!(names(&layer), expected);
    no_grad(|| layer.magnitude.set_(&Tensor::from_slice(&[2.0_f32, 0.5], &[2, 1])).map(|_| ())).unwrap();
    let y = layer.forward(&x);
    close(&y, &[0.127933, 0.584164]);
    y.sum().backward().unwrap();
    close(&layer.magnitude.grad().unwrap(), &[0.063966, 1.168328]);
    close(&layer.direction.grad().unwrap(), &[2.613921, 5.148819, -2.761272, 0.110775, 0.39252, -0.509869]);
    let up = WeightNorm::new(ConvTranspose2d::new(2, 3, 2));
    assert_eq!(up.magnitude.shape(), [2, 1, 1, 1]);
}

#[test]
fn spectral_norm_is_pytorchs() {
    let layer = SpectralNorm::new(linear()).unwrap();
    let expected = [
        "bias",
        "parametrizations.weight.original",
        "parametrizations.weight.0._u",
        "parametrizations.weight.0._v",
    ];
    assert_eq!(names(&layer), expected);
    let x = Tensor::from_slice(&[1.0_f32, 2.0, -1.0], &[1, 3]);
    for _ in 0..20 {
        layer.forward(&x).compute().unwrap();
    }
    let y = layer.forward(&x);
    close(&y, &[0.027711, 1.090604]);
    y.sum().backward().unwrap();
    close(&layer.original.grad().unwrap(), &[0.455886, 0.992025, -0.717634, 0.288977, 0.779634, -0.946761]);
    let sizes = |layer: &dyn Module| -> Vec<Vec<usize>> {
        layer.state().into_iter().rev().take(2).map(|(_, t)| t.shape()).collect()
    };
    assert_eq!(sizes(&SpectralNorm::new(ConvTranspose2d::new(2, 3, 2)).unwrap()), [[8], [3]]);
    assert_eq!(sizes(&SpectralNorm::new(Conv2d::new(2, 3, 2)).unwrap()), [[8], [3]]);
}

/// While training every call does a step of power iteration, in a captured function too; afterwards none does.
#[test]
fn spectral_norm_keeps_its_vectors() {
    let layer = std::sync::Arc::new(SpectralNorm::new(Linear::new(5, 4)).unwrap());
    let start = Tensor::from_slice(&[1.0_f32, 0.0, 0.0, 0.0, 0.0], &[5]);
    let vector = |layer: &SpectralNorm<Linear>| {
        layer.state_dict().unwrap()["parametrizations.weight.0._v"].to_vec::<f32>().unwrap()
    };
    let own = layer.clone();
    let f = compile(move |x: Tensor| own.forward(&x)).fullgraph(true).build().unwrap();
    let x = Tensor::rand(&[2, 5]);
    let run = |compiled: bool| {
        let state: std::collections::BTreeMap<_, _> = layer
            .state_dict()
            .unwrap()
            .into_iter()
            .map(|(name, t)| {
                let keep = !name.ends_with("_v");
                (name, if keep { t } else { start.to_host().unwrap() })
            })
            .collect();
        layer.load_state_dict(&state).unwrap();
        for _ in 0..3 {
            let y = if compiled { f.call(x.clone()).unwrap() } else { layer.forward(&x) };
            y.compute().unwrap();
        }
        vector(&layer)
    };
    let (eager, compiled) = (run(false), run(true));
    assert!(eager.iter().zip(&compiled).all(|(a, b)| (a - b).abs() < 1e-5), "{eager:?} {compiled:?}");
    layer.eval();
    f.call(x.clone()).unwrap();
    assert_eq!(vector(&layer), compiled);
}

#[test]
fn pooling_is_pytorchs_over_one_and_three_dimensions() {
    let x = made(24, |n| (0.7 * n).sin(), &[1, 2, 12]);
    let max = [
        0.644218, 0.98545, 0.863209, -0.350783, 0.016814, 0.988168, 0.854599, 0.319099, -0.618137, 0.66957,
        0.990607, 0.845747,
    ];
    close(&MaxPool1d { kernel: 3, stride: 2, padding: 1 }.forward(&x), &max);
    let mean = [
        0.214739, 0.830959, 0.282471, -0.734937, -0.532302, 0.553989, 0.391233, -0.309025, -0.82567,
        0.028352, 0.835308, 0.255598,
    ];
    close(&AvgPool1d { kernel: 3, stride: 2, padding: 1 }.forward(&x), &mean);
    let adaptive = [0.623219, -0.467456, 0.257675, -0.018119, -0.223531, 0.43935];
    close(&AdaptiveAvgPool1d { size: [3] }.forward(&x), &adaptive);
    let y = made(27, |n| (0.7 * n).sin(), &[1, 1, 3, 3, 3]);
    let max = [0.863209, 0.988168, 0.863209, 0.334988, 0.854599, 0.990607, 0.854599, 0.319099];
    close(&MaxPool3d { kernel: 2, stride: 1, padding: 0 }.forward(&y), &max);
    let mean = [0.461239, 0.401456, -0.167626, -0.409276, 0.462445, 0.397375, -0.174938, -0.413014];
    close(&AvgPool3d { kernel: 2, stride: 1, padding: 0 }.forward(&y), &mean);
    close(&AdaptiveAvgPool3d { size: [1, 1, 2] }.forward(&y), &[-0.001896, 7.6e-5]);
}

#[test]
fn activations_are_pytorchs() {
    let x = Tensor::from_slice(&[-4.0_f32, -1.5, -0.25, 0.0, 0.5, 2.0, 7.0], &[7]);
    let all: [(&dyn Layer, [f32; 7]); 8] = [
        (&Relu6, [0.0, 0.0, 0.0, 0.0, 0.5, 2.0, 6.0]),
        (&Hardswish, [0.0, -0.375, -0.114583, 0.0, 0.291667, 1.666667, 7.0]),
        (&Mish, [-0.072592, -0.2981, -0.129927, 0.0, 0.375245, 1.943959, 6.999989]),
        (&Elu, [-0.981684, -0.77687, -0.221199, 0.0, 0.5, 2.0, 7.0]),
        (&Selu, [-1.725899, -1.365814, -0.38889, 0.0, 0.525351, 2.101402, 7.354907]),
        (&Softplus, [0.01815, 0.201413, 0.575939, std::f32::consts::LN_2, 0.974077, 2.126928, 7.000912]),
        (&Hardsigmoid, [0.0, 0.25, 0.458333, 0.5, 0.583333, 0.833333, 1.0]),
        (
            &LogSigmoid,
            [-4.01815, -1.701413, -0.825939, -std::f32::consts::LN_2, -0.474077, -0.126928, -0.000911],
        ),
    ];
    for (layer, expected) in all {
        close(&layer.forward(&x), &expected);
    }
}
