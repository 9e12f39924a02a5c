//! Batches of a data set in memory. The samples are an endless stream: the data in order, again and again, each time in
//! another order if they are shuffled. A batch takes the next samples of the stream, so that a step's batch is a function
//! of its number and training can resume anywhere.

use anyhow::Result;
use ferroflux::ir_core::TensorMeta;
use ferroflux::tensor::formula::splitmix64;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Input, InputInfo, Tensor, Value};

use crate::inputs::{self, Set};
use crate::report::advised;

/// A data set: one tensor for each tensor that the model takes, samples along dimension 0.
pub(crate) struct Data {
    inputs: Vec<Column>,
    /// Samples.
    pub(crate) len: usize,
    /// Samples of a step.
    pub(crate) batch: usize,
    /// Seed of the orders; none keeps the data's own.
    shuffle: Option<u64>,
    /// The order of the pass that was read last.
    order: Option<(u64, Vec<u32>)>,
}

/// The values of one input of the model for a step.
enum Column {
    /// The same for all batches: numbers, and tensors such as masks or positions.
    Fixed(Input),
    /// The samples of the batch.
    Samples(Tensor),
}

impl Data {
    /// The data for these inputs out of a file. `wanted` is the batch size where the model leaves it open.
    pub(crate) fn new(
        infos: &[InputInfo],
        file: &SafetensorsFile,
        (prefix, set): (&str, &Set<'_>),
        wanted: Option<usize>,
        shuffle: Option<u64>,
    ) -> Result<Data> {
        let given = inputs::from_file(infos, file, prefix, set)?;
        let batch = batch_size(infos, wanted)?;
        let mut len = None;
        let mut inputs = Vec::new();
        for (info, input) in infos.iter().zip(given) {
            let (tensor, meta) = match (&input, info.meta()) {
                (Input::Tensor(Value::Host(tensor)), Some(meta)) => (tensor.clone(), meta),
                _ => {
                    inputs.push(Column::Fixed(input));
                    continue;
                }
            };
            check_type(info, meta, &tensor)?;
            if meta.rank() == 0 || !leads(meta, batch) {
                inputs.push(Column::Fixed(input));
                continue;
            }
            let samples = tensor.sizes()[0];
            match len {
                None => len = Some((samples, &info.name)),
                Some((n, first)) if n != samples => {
                    return Err(advised(
                        format!("`{first}` has {n} samples, `{}` has {samples}", info.name),
                        "every input needs the same number of samples along its first dimension",
                    ));
                }
                Some(_) => {}
            }
            inputs.push(Column::Samples(tensor));
        }
        match len {
            Some((len, _)) if len > 0 => Ok(Data { inputs, len, batch, shuffle, order: None }),
            _ => Err(advised("the data holds no samples", "give at least one sample along dimension 0")),
        }
    }

    /// The inputs of step `step` (the first is 0).
    pub(crate) fn batch(&mut self, step: u64) -> Result<Vec<Input>> {
        let first = step * self.batch as u64;
        let rows: Vec<usize> = (0..self.batch as u64).map(|n| self.sample(first + n)).collect();
        let one = |column: &Column| match column {
            Column::Fixed(input) => Ok(input.clone()),
            Column::Samples(tensor) => gather(tensor, &rows).map(Input::from),
        };
        self.inputs.iter().map(one).collect()
    }

    /// Steps in which every sample was seen `epochs` times; the last one may begin the next pass.
    pub(crate) fn steps(&self, epochs: u64) -> u64 {
        (self.len as u64).saturating_mul(epochs).div_ceil(self.batch as u64)
    }

    /// The sample at a place of the stream.
    fn sample(&mut self, place: u64) -> usize {
        let (pass, at) = (place / self.len as u64, (place % self.len as u64) as usize);
        let Some(seed) = self.shuffle else { return at };
        if self.order.as_ref().is_none_or(|(of, _)| *of != pass) {
            self.order = Some((pass, permutation(self.len, splitmix64(seed ^ splitmix64(pass)))));
        }
        self.order.as_ref().map_or(at, |(_, order)| order[at] as usize)
    }
}

/// Fisher and Yates' shuffle with SplitMix64's numbers.
fn permutation(len: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len as u32).collect();
    for n in (1..len).rev() {
        let random = splitmix64(seed.wrapping_add(n as u64));
        // The high half of a product: as even as 64 bits allow.
        let other = ((u128::from(random) * (n as u128 + 1)) >> 64) as usize;
        order.swap(n, other);
    }
    order
}

/// Rows of a tensor as a new one.
pub(crate) fn gather(tensor: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let mut sizes = tensor.sizes().to_vec();
    sizes[0] = rows.len();
    let mut out = Tensor::zeros(tensor.dtype(), &sizes)?;
    let source = tensor.contiguous()?;
    let row = source.nbytes() / tensor.sizes()[0].max(1);
    let start = source.offset() as usize * source.dtype().size();
    let bytes = source.storage().bytes();
    let mut filled = Vec::with_capacity(row * rows.len());
    for &r in rows {
        filled.extend_from_slice(&bytes[start + r * row..start + (r + 1) * row]);
    }
    out = out.with_storage(ferroflux::tensor::Storage::from_bytes(&filled)?)?;
    Ok(out)
}

/// Whether the input's first size is the batch.
fn leads(meta: &TensorMeta, batch: usize) -> bool {
    meta.sizes.first().is_some_and(|s| s.as_const().is_none_or(|n| n == batch as i64))
}

/// The batch size that the model was exported with, or what the user wants where it is open.
fn batch_size(infos: &[InputInfo], wanted: Option<usize>) -> Result<usize> {
    let first = infos.iter().find_map(|i| i.meta()?.sizes.first());
    let Some(first) = first else {
        return Err(advised(
            "no input of the model has a first dimension",
            "a loss graph takes batches of samples",
        ));
    };
    match (first.as_const().and_then(|n| usize::try_from(n).ok()), wanted) {
        (Some(0), _) | (_, Some(0)) => Err(advised("a batch of 0 samples", "give `--batch-size` at least 1")),
        (Some(fixed), None) => Ok(fixed),
        (Some(fixed), Some(wanted)) if fixed == wanted => Ok(fixed),
        (Some(fixed), Some(wanted)) => Err(advised(
            format!("the model was exported with batches of {fixed} samples, not {wanted}"),
            "leave `--batch-size` out, or export the model with a dynamic batch dimension",
        )),
        (None, Some(wanted)) => Ok(wanted),
        (None, None) => Err(advised(
            "the model takes batches of any size",
            "say how large they shall be: `--batch-size N`",
        )),
    }
}

/// dtype, rank and the sizes of a sample.
fn check_type(info: &InputInfo, meta: &TensorMeta, tensor: &Tensor) -> Result<()> {
    let sizes = meta.sizes.iter().zip(tensor.sizes()).skip(1);
    let same = |(want, have): (&ferroflux::ir_core::SymExpr, &usize)| {
        want.as_const().is_none_or(|n| n == *have as i64)
    };
    if tensor.dtype() == meta.dtype && tensor.rank() == meta.rank() && sizes.into_iter().all(same) {
        return Ok(());
    }
    Err(advised(
        format!(
            "the data for `{}` is {}{:?}, the model takes {meta}",
            info.name,
            tensor.dtype(),
            tensor.sizes(),
        ),
        "samples lie along the first dimension, which may be of any size; the rest must be as the model has it",
    ))
}

#[cfg(test)]
mod tests {
    use super::permutation;

    #[test]
    fn a_permutation_has_every_sample_once() {
        let mut order = permutation(1000, 7);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        assert_ne!(order, permutation(1000, 8));
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
