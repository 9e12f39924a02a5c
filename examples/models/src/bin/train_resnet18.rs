//! Trains ResNet-18 on random images, as PyTorch's page about `torch.compile` does: each step is a forward pass,
//! `sum().backward()` and an update; first operator by operator, then the whole step compiled. Prints the time of each step.

use std::sync::Arc;
use std::time::Instant;

use ferroflux::eager::compiled_pieces;
use ferroflux::nn::Sgd;
use ferroflux::prelude::*;
use models::resnet::ResNet;

/// Images of a step.
const BATCH: usize = 8;
/// Steps of each kind.
const STEPS: usize = 6;

fn main() -> Result<(), ferroflux::Error> {
    for compiled in [false, true] {
        let model = Arc::new(ResNet::resnet18(10));
        let optimizer = Arc::new(Sgd::new(model.parameters(), 0.01));
        let step = move |images: Tensor| -> Result<Tensor, ferroflux::Error> {
            optimizer.zero_grad();
            let loss = model.forward(&images).sum();
            loss.backward()?;
            optimizer.step()?;
            Ok(loss.detach())
        };
        let name = if compiled { "compiled" } else { "eager" };
        let compiled = compiled.then(|| compile(step.clone()).fullgraph(true).build()).transpose()?;
        for n in 0..STEPS {
            let images = Tensor::randn(&[BATCH, 3, 64, 64]);
            images.compute()?;
            let start = Instant::now();
            let loss = match &compiled {
                Some(step) => step.call(images)?,
                None => step(images)?,
            };
            let loss = loss.item()?;
            let (ms, pieces) = (start.elapsed().as_secs_f64() * 1e3, compiled_pieces());
            println!("{name} step {n}: loss {loss:.3}, {ms:.1} ms, {pieces} recorded pieces compiled so far");
        }
    }
    Ok(())
}
