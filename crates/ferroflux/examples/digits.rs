//! The facade on the digits model: load, inspect, compile, call with two batch sizes, count correct predictions.
//!
//! ```text
//! cargo run --release -p ferroflux --example digits
//! ```

use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Options, Program, Tensor};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = Program::load(format!("{FOLDER}/digits.pt2"))?;
    for input in program.inputs() {
        println!("input {}: {}", input.name, input.kind);
    }

    let model = program.compile(&Options::new().backend("cpu"))?;
    println!("compiled for `{}`:", model.backend());
    for kernel in &model.explain().kernels {
        println!("  {} computes {}", kernel.kind, kernel.nodes.join(", "));
    }

    // One compilation serves every batch size that the model was exported for.
    let data = SafetensorsFile::open(format!("{FOLDER}/digits.safetensors"))?;
    let (images, labels) = (&data.tensors["image"], data.tensors["label"].to_vec::<i64>()?);
    let first = predict(&model.call(&[images.narrow(0, 0, 5)?])?[0])?;
    println!("the first five are {first:?}, their labels {:?}", &labels[..5]);

    let all = predict(&model.call(std::slice::from_ref(images))?[0])?;
    let right = all.iter().zip(&labels).filter(|(got, label)| got == label).count();
    println!("{right} of {} are right", labels.len());
    Ok(())
}

/// The class with the largest score, for each row of `[N, C]` scores.
fn predict(scores: &Tensor) -> Result<Vec<i64>, ferroflux::TensorError> {
    let largest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
    Ok(scores.to_vec::<f32>()?.chunks(scores.sizes()[1]).map(|row| largest(row) as i64).collect())
}
