//! The formula gives the same bits as the corpus' Python; the expected numbers were printed by it.

use crate::formula::{fill, uniform};

#[test]
fn uniform_is_the_corpus_stream() {
    let first: Vec<f32> = (0..3).map(|i| uniform("conv1.weight", i)).collect();
    // 0x1.7141p-4, -0x1.b363c4p-1, 0x1.d70f3p-1
    assert_eq!(first, [0.090_149_88, -0.850_370_5, 0.920_037_75]);
    assert_eq!([uniform("", 0), uniform("", 1)], [0.527_389_05, 0.951_764_6]);
}

#[test]
fn fill_scales_in_single_precision() {
    let bias = fill("fc.bias", &[3], 0.1, 0.5).unwrap();
    assert_eq!(bias.to_vec::<f32>().unwrap(), [0.495_530_25, 0.445_084_27, 0.499_980_84]);
}

#[test]
fn values_stay_in_range_and_differ_by_name() {
    assert!((0..10_000).all(|i| (-1.0..1.0).contains(&uniform("x", i))));
    assert_ne!(uniform("x", 0), uniform("y", 0));
}
