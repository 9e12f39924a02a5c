//! Random networks of concatenations and residual sums, which share memory in many ways: parts are written into what they are
//! concatenated to, prefixes are read where they lie, and results are written over what dies in them. Every backend of the
//! host gives what the graph gives operator by operator.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use ferroflux::{Options, Program, Tensor};

use crate::differential::rng::Rng;

/// Networks in one run of the suite.
const NETWORKS: u64 = 120;
/// The first of them run on the emulator of GPUs too, where there is a C++ compiler.
const EMULATED: u64 = 20;

/// A network as text, under construction: its values by name and sizes.
struct Network {
    rng: Rng,
    head: String,
    body: String,
    values: Vec<(String, Vec<usize>)>,
    weights: BTreeMap<String, Tensor>,
    tensors: Vec<Tensor>,
}

impl Network {
    fn drawn(seed: u64) -> Network {
        let mut n = Network {
            rng: Rng::new(seed),
            head: String::new(),
            body: String::new(),
            values: Vec::new(),
            weights: BTreeMap::new(),
            tensors: Vec::new(),
        };
        let (batch, side) = (1 + n.rng.below(2), 3 + n.rng.below(6));
        for _ in 0..1 + n.rng.below(2) {
            n.input(vec![batch, 4, side, side]);
        }
        for _ in 0..4 + n.rng.below(12) {
            n.grow();
        }
        n
    }

    fn filled(&self, name: &str, sizes: &[usize], scale: f32) -> Tensor {
        ferroflux::tensor::formula::fill(name, sizes, scale, 0.05).unwrap()
    }

    fn input(&mut self, sizes: Vec<usize>) {
        let name = format!("x{}", self.tensors.len());
        self.head += &format!("  %{name}: f32{sizes:?} = input \"{name}\"\n");
        self.tensors.push(self.filled(&name, &sizes, 1.0));
        self.values.push((name, sizes));
    }

    fn weight(&mut self, sizes: &[usize]) -> String {
        let name = format!("w{}", self.weights.len());
        self.head += &format!("  %{name}: f32{sizes:?} = parameter \"{name}\"\n");
        let fan_in: usize = sizes[1..].iter().product();
        self.weights.insert(name.clone(), self.filled(&name, sizes, 2.0 / (fan_in as f32).sqrt()));
        name
    }

    fn say(&mut self, sizes: Vec<usize>, call: &str) -> (String, Vec<usize>) {
        let name = format!("v{}", self.values.len());
        self.body += &format!("  %{name}: f32{sizes:?} = {call}\n");
        self.values.push((name.clone(), sizes.clone()));
        (name, sizes)
    }

    /// Any value, the latest ones more often.
    fn pick(&mut self) -> (String, Vec<usize>) {
        let (a, b) = (self.rng.below(self.values.len()), self.rng.below(self.values.len()));
        self.values[a.max(b)].clone()
    }

    fn grow(&mut self) {
        match self.rng.below(8) {
            0..=2 => self.convolution(),
            3 | 4 => self.join(),
            5 => self.residual(),
            6 => {
                let (x, sizes) = self.pick();
                let call = ["aten.relu.default(%X)", "aten.mul.Scalar(%X, 0.5)", "aten.softmax.int(%X, 1)"];
                let call = self.rng.pick(&call).replace('X', &x);
                self.say(sizes, &call);
            }
            _ => self.stack(),
        }
    }

    fn convolution(&mut self) {
        let (x, sizes) = self.pick();
        let channels = *self.rng.pick(&[4, 8, 12, 3, 16, 20]);
        let window = *self.rng.pick(&[1, 1, 3]);
        let w = self.weight(&[channels, sizes[1], window, window]);
        let pad = window / 2;
        let call = format!("aten.conv2d.default(%{x}, %{w}, none, [1, 1], [{pad}, {pad}])");
        let (y, sizes) = self.say(vec![sizes[0], channels, sizes[2], sizes[3]], &call);
        if self.rng.one_in(2) {
            self.say(sizes, &format!("aten.relu.default(%{y})"));
        }
    }

    /// Values that agree but for `dim`.
    fn fitting(&self, sizes: &[usize], dim: usize) -> Vec<(String, Vec<usize>)> {
        let agree = |other: &[usize]| (0..4).all(|d| d == dim || other[d] == sizes[d]);
        self.values.iter().filter(|(_, other)| agree(other)).cloned().collect()
    }

    fn join(&mut self) {
        let dim = *self.rng.pick(&[1, 1, 1, 1, 1, 0, 2]);
        let (_, mut sizes) = self.pick();
        let all = self.fitting(&sizes, dim);
        // All of them in order, as in DenseNet, or any few.
        let parts: Vec<_> = match self.rng.one_in(3) {
            true => all.into_iter().rev().take(6).rev().collect(),
            false => (0..2 + self.rng.below(3)).map(|_| self.rng.pick(&all).clone()).collect(),
        };
        sizes[dim] = parts.iter().map(|(_, sizes)| sizes[dim]).sum();
        let small = sizes.iter().product::<usize>() < 20_000;
        if parts.len() > 1 && small {
            let names: Vec<String> = parts.iter().map(|(name, _)| format!("%{name}")).collect();
            self.say(sizes, &format!("aten.cat.default([{}], {dim})", names.join(", ")));
        }
    }

    fn stack(&mut self) {
        let (x, sizes) = self.pick();
        let (y, _) = self.rng.pick(&self.fitting(&sizes, 4)).clone();
        let dim = 1 + self.rng.below(2);
        let mut stacked = sizes.clone();
        stacked.insert(dim, 2);
        if sizes[1] > 12 {
            return;
        }
        self.body += &format!(
            "  %{x}_{}: f32{stacked:?} = aten.stack.default([%{x}, %{y}], {dim})\n",
            self.values.len()
        );
        let stacked = format!("{x}_{}", self.values.len());
        let merged = vec![sizes[0], 2 * sizes[1], sizes[2], sizes[3]];
        self.say(merged.clone(), &format!("aten.reshape.default(%{stacked}, {merged:?})"));
    }

    fn residual(&mut self) {
        let (x, sizes) = self.pick();
        let window = *self.rng.pick(&[1, 3]);
        let w = self.weight(&[sizes[1], sizes[1], window, window]);
        let pad = window / 2;
        let call = format!("aten.conv2d.default(%{x}, %{w}, none, [1, 1], [{pad}, {pad}])");
        let (y, _) = self.say(sizes.clone(), &call);
        let (other, _) = self.rng.pick(&self.fitting(&sizes, 4)).clone();
        let (z, _) = self.say(sizes.clone(), &format!("aten.add.Tensor(%{y}, %{other})"));
        self.say(sizes, &format!("aten.relu.default(%{z})"));
    }

    /// The last value is returned, and sometimes another one.
    fn text(&mut self) -> String {
        let (last, _) = self.values[self.values.len() - 1].clone();
        let mut returns = format!("  return %{last}\n");
        let (other, _) = self.pick();
        if self.rng.one_in(3) && other != last && !other.starts_with('x') {
            returns += &format!("  return %{other}\n");
        }
        format!("fx 1.0\ngraph \"network\" {{\n{}{}{returns}}}\n", self.head, self.body)
    }
}

/// Whether these backends give what the graph gives operator by operator.
fn agree(text: &str, weights: &BTreeMap<String, Tensor>, tensors: &[Tensor], backends: &[&str]) {
    let graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let program = Program::from_graph(graph, weights).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let run = |backend: &str| {
        let code = program.compile(&Options::new().backend(backend));
        let code = code.unwrap_or_else(|e| panic!("{e} by {backend}\n{text}"));
        code.call(tensors).unwrap_or_else(|e| panic!("{e} by {backend}\n{text}"))
    };
    let wanted = run("eager");
    for backend in backends {
        for (got, wanted) in run(backend).iter().zip(&wanted) {
            // Sums of transformed tiles cancel: what counts is the size of the terms, not of their sum.
            let near = 2e-5 * testing::compare::largest(wanted).max(1.0);
            let near = ferroflux::tensor::allclose(got, wanted, near, 1e-4);
            near.unwrap_or_else(|e| panic!("{e} by {backend}\n{text}"));
        }
    }
}

#[test]
fn random_networks_of_concatenations_and_residuals() {
    let emulated = gpu_emulator::available().is_ok();
    for seed in 0..NETWORKS {
        let mut network = Network::drawn(seed);
        let text = network.text();
        // Texts of kernels take long to compile.
        let backends: &[&str] =
            if emulated && seed < EMULATED { &["oracle", "cpu", "gpu-emulator"] } else { &["oracle", "cpu"] };
        agree(&text, &network.weights, &network.tensors, backends);
    }
}

/// A value of one row is the addend of a product that is written over it: one value for each column looks like a bias.
#[test]
fn an_addend_of_one_row_is_read_before_sums_are_stored_over_it() {
    let text = r#"fx 1.0
graph "row" {
  %x: f32[1, 640] = input "x"
  %w: f32[640, 640] = parameter "w"
  %u: f32[640, 640] = parameter "u"
  %v: f32[640, 640] = parameter "v"

  %h: f32[1, 640] = aten.mm.default(%x, %w)
  %a: f32[1, 640] = aten.mm.default(%h, %u)
  %b: f32[1, 640] = aten.relu.default(%a)
  %c: f32[1, 640] = aten.mm.default(%b, %v)
  %y: f32[1, 640] = aten.add.Tensor(%c, %h)
  %z: f32[1, 640] = aten.mm.default(%y, %w)
  return %z
}
"#;
    let fill = |name: &str, sizes: &[usize]| {
        ferroflux::tensor::formula::fill(name, sizes, 2.0 / (sizes[0] as f32).sqrt(), 0.0).unwrap()
    };
    let weights = ["w", "u", "v"].map(|name| (name.to_owned(), fill(name, &[640, 640])));
    agree(text, &weights.into(), &[fill("x", &[1, 640])], &["oracle", "cpu"]);
}
