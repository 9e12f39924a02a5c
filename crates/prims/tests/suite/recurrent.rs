//! The recurrent operators of cuDNN against those of the layers: the same weights and inputs give the same outputs and states.
//! Packed sequences are compared with each sequence by itself. What is refused says why.

use crate::support::{self, graph_of};

use fx_ir::{Arg, ValueId};
use ir_core::DType;
use prims::{Builder, OpError, decompose_call};
use tensor::Tensor;

const LSTM: i64 = 2;
/// Layers by the number of their mode.
const MODES: [&str; 4] = ["aten.rnn_relu.input", "aten.rnn_tanh.input", "aten.lstm.input", "aten.gru.input"];
const FEATURES: usize = 3;
const HIDDEN: usize = 4;

/// A call of the layers, which both kinds of operators can express.
#[derive(Clone, Debug)]
struct Case {
    mode: i64,
    layers: usize,
    bidirectional: bool,
    batch_first: bool,
    biases: bool,
    projection: usize,
    time: usize,
    batch: usize,
    dtype: DType,
}

impl Case {
    fn new(mode: i64) -> Case {
        Case {
            mode,
            layers: 1,
            bidirectional: false,
            batch_first: false,
            biases: true,
            projection: 0,
            time: 5,
            batch: 2,
            dtype: DType::F64,
        }
    }
    fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }
    fn shown(&self) -> usize {
        if self.projection > 0 { self.projection } else { HIDDEN }
    }
    fn states(&self) -> usize {
        1 + usize::from(self.mode == LSTM)
    }
    fn tensor(&self, name: &str, sizes: &[usize]) -> Tensor {
        tensor::formula::fill(name, sizes, 0.7, 0.0).unwrap().to_dtype(self.dtype).unwrap()
    }
    fn input(&self) -> Tensor {
        let (t, b) = (self.time, self.batch);
        self.tensor("input", &if self.batch_first { [b, t, FEATURES] } else { [t, b, FEATURES] })
    }
    fn initial(&self) -> Vec<Tensor> {
        let of = |(name, size)| self.tensor(name, &[self.layers * self.directions(), self.batch, size]);
        [("h", self.shown()), ("c", HIDDEN)].into_iter().take(self.states()).map(of).collect()
    }
    fn weights(&self) -> Vec<Tensor> {
        let gates = HIDDEN * [1, 1, 4, 3][self.mode as usize];
        let mut list = Vec::new();
        for n in 0..self.layers * self.directions() {
            let features = if n < self.directions() { FEATURES } else { self.shown() * self.directions() };
            let mut add = |name: &str, sizes: &[usize]| list.push(self.tensor(&format!("{name}{n}"), sizes));
            add("ih", &[gates, features]);
            add("hh", &[gates, self.shown()]);
            if self.biases {
                add("bih", &[gates]);
                add("bhh", &[gates]);
            }
            if self.projection > 0 {
                add("hr", &[self.projection, HIDDEN]);
            }
        }
        list
    }
    /// Input, states, weights.
    fn tensors(&self) -> Vec<Tensor> {
        [vec![self.input()], self.initial(), self.weights()].concat()
    }
    /// The arguments of the layers' own operator for `tensors`.
    fn of_layers(&self, count: usize) -> Vec<Arg> {
        let states: Vec<Arg> = (1..=self.states()).map(value).collect();
        let hx = if self.mode == LSTM { Arg::List(states) } else { states[0].clone() };
        let weights = Arg::List((1 + self.states()..count).map(value).collect());
        let layers = self.layers as i64;
        vec![
            value(0),
            hx,
            weights,
            self.biases.into(),
            layers.into(),
            0.0.into(),
            false.into(),
            self.bidirectional.into(),
            self.batch_first.into(),
        ]
    }
    /// The arguments of cuDNN's operator for `tensors`, with these sizes of packed sequences.
    fn of_cudnn(&self, count: usize, train: bool, dropout: f64, packed: &[i64]) -> Vec<Arg> {
        let weights = Arg::List((1 + self.states()..count).map(value).collect());
        let stride = 2 + 2 * i64::from(self.biases) + i64::from(self.projection > 0);
        vec![
            value(0),
            weights,
            stride.into(),
            Arg::None,
            value(1),
            if self.mode == LSTM { value(2) } else { Arg::None },
            self.mode.into(),
            (HIDDEN as i64).into(),
            (self.projection as i64).into(),
            (self.layers as i64).into(),
            self.batch_first.into(),
            dropout.into(),
            train.into(),
            self.bidirectional.into(),
            packed.into(),
            Arg::None,
        ]
    }
}

fn value(n: usize) -> Arg {
    Arg::Value(ValueId(n as u32))
}

const CUDNN: &str = "aten._cudnn_rnn.default";

/// Every combination for every mode.
fn cases() -> Vec<Case> {
    let mut list = Vec::new();
    for n in 0..32 {
        let on = |bit: usize| n >> bit & 1 == 1;
        for mode in 0..4 {
            list.push(Case {
                layers: if on(0) { 3 } else { 1 },
                bidirectional: on(1),
                batch_first: on(2),
                biases: on(3),
                projection: if on(4) && mode == LSTM { 2 } else { 0 },
                ..Case::new(mode)
            });
        }
    }
    list
}

fn same(got: &Tensor, expected: &Tensor, what: &dyn std::fmt::Debug) {
    assert_eq!(got.dtype(), expected.dtype(), "{what:?}");
    tensor::allclose(got, expected, 1e-12, 1e-12).unwrap_or_else(|e| panic!("{what:?}: {e}"));
}

#[test]
fn cudnn_has_the_results_of_the_layers() {
    for case in cases() {
        let tensors = case.tensors();
        let layers =
            support::run(MODES[case.mode as usize], &tensors, &case.of_layers(tensors.len())).unwrap();
        let cudnn = support::run(CUDNN, &tensors, &case.of_cudnn(tensors.len(), true, 0.0, &[])).unwrap();
        assert_eq!(cudnn.len(), 5);
        for (got, expected) in cudnn.iter().zip(&layers) {
            same(got, expected, &case);
        }
        assert_eq!(layers.len(), 1 + case.states());
    }
}

#[test]
fn results_have_the_shapes_of_pytorchs_shape_function() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for mode in 0..4 {
            let case = Case { dtype, bidirectional: true, ..Case::new(mode) };
            let tensors = case.tensors();
            let outs = support::run(CUDNN, &tensors, &case.of_cudnn(tensors.len(), true, 0.0, &[])).unwrap();
            let types: Vec<(DType, Vec<i64>)> = outs.iter().map(|t| (t.dtype(), support::sizes(t))).collect();
            let cell = if mode == LSTM { vec![2, 2, 4] } else { vec![0] };
            let expected = [
                (dtype, vec![5, 2, 8]),
                (dtype, vec![2, 2, 4]),
                (dtype, cell),
                (DType::U8, vec![0]),
                (dtype, vec![0]),
            ];
            assert_eq!(types, expected);
        }
    }
}

/// `weight_buf` is what is returned, and its values are not read.
#[test]
fn the_list_of_weights_is_what_is_read() {
    let case = Case::new(LSTM);
    let mut tensors = case.tensors();
    let plain = support::run(CUDNN, &tensors, &case.of_cudnn(tensors.len(), false, 0.0, &[])).unwrap();
    let mut args = case.of_cudnn(tensors.len(), false, 0.0, &[]);
    args[3] = value(tensors.len());
    tensors.push(case.tensor("buffer", &[144]));
    let outs = support::run(CUDNN, &tensors, &args).unwrap();
    same(&outs[0], &plain[0], &"output");
    same(&outs[4], &tensors[tensors.len() - 1], &"buffer");
}

/// cuDNN takes zeros where an LSTM is given no cell state.
#[test]
fn a_cell_state_that_is_absent_is_zero() {
    let case = Case::new(LSTM);
    let mut tensors = case.tensors();
    tensors[2] = Tensor::zeros(DType::F64, tensors[2].sizes()).unwrap();
    let mut args = case.of_cudnn(tensors.len(), false, 0.0, &[]);
    let given = support::run(CUDNN, &tensors, &args).unwrap();
    args[5] = Arg::None;
    let absent = support::run(CUDNN, &tensors, &args).unwrap();
    same(&absent[0], &given[0], &"output");
    assert_eq!(support::sizes(&absent[2]), [0]);
}

/// Elements `range` of a dimension.
fn part(t: &Tensor, dim: usize, range: std::ops::Range<usize>) -> Tensor {
    let args = vec![
        value(0),
        (dim as i64).into(),
        (range.start as i64).into(),
        (range.end as i64).into(),
        1i64.into(),
    ];
    support::run("aten.slice.Tensor", std::slice::from_ref(t), &args).unwrap().remove(0)
}

#[test]
fn packed_sequences_are_as_each_by_itself() {
    let lengths = [4usize, 3, 3, 1];
    let counts: Vec<i64> =
        (0..lengths[0]).map(|t| lengths.iter().filter(|&&l| l > t).count() as i64).collect();
    assert_eq!(counts, [4, 3, 3, 1]);
    let rows: usize = lengths.iter().sum();
    for mut case in cases() {
        case.batch = lengths.len();
        let mut tensors = case.tensors();
        tensors[0] = case.tensor("packed", &[rows, FEATURES]);
        let args = case.of_cudnn(tensors.len(), true, 0.0, &counts);
        let packed = support::run(CUDNN, &tensors, &args).unwrap();
        for (n, &length) in lengths.iter().enumerate() {
            // Row `n` of each time step.
            let before = |t: usize| counts[..t].iter().sum::<i64>() as usize + n;
            let own = |t: &Tensor| {
                let rows: Vec<Tensor> =
                    (0..length).map(|step| part(t, 0, before(step)..before(step) + 1)).collect();
                let list = Arg::List((0..length).map(value).collect());
                support::run("aten.stack.default", &rows, &[list, 0i64.into()]).unwrap().remove(0)
            };
            let mut alone = case.tensors();
            alone[0] = own(&tensors[0]);
            for state in &mut alone[1..=case.states()] {
                *state = part(state, 1, n..n + 1);
            }
            let one = Case { batch: 1, time: length, batch_first: false, ..case.clone() };
            let results =
                support::run(MODES[case.mode as usize], &alone, &one.of_layers(alone.len())).unwrap();
            same(&own(&packed[0]), &results[0], &(&case, n));
            for (got, expected) in packed[1..].iter().zip(&results[1..]) {
                same(&part(got, 1, n..n + 1), expected, &(&case, n));
            }
        }
    }
}

fn refusal(case: &Case, change: impl FnOnce(&mut Vec<Arg>)) -> OpError {
    let tensors = case.tensors();
    let mut args = case.of_cudnn(tensors.len(), true, 0.0, &[]);
    change(&mut args);
    support::run(CUDNN, &tensors, &args).unwrap_err()
}

#[test]
fn dropout_between_layers_is_refused_in_training_alone() {
    let case = Case { layers: 2, ..Case::new(LSTM) };
    let error = refusal(&case, |args| args[11] = 0.5.into());
    assert!(matches!(&error, OpError::Unsupported { what, .. } if what.contains("reserve")), "{error}");
    let tensors = case.tensors();
    let none = support::run(CUDNN, &tensors, &case.of_cudnn(tensors.len(), true, 0.0, &[])).unwrap();
    let evaluated = support::run(CUDNN, &tensors, &case.of_cudnn(tensors.len(), false, 0.5, &[])).unwrap();
    same(&evaluated[0], &none[0], &"evaluation");
    let one = Case { layers: 1, ..case };
    let tensors = one.tensors();
    assert!(support::run(CUDNN, &tensors, &one.of_cudnn(tensors.len(), true, 0.5, &[])).is_ok());
}

#[test]
fn what_does_not_fit_is_refused() {
    let case = Case::new(3);
    for (at, arg) in [
        (2, Arg::from(3i64)),
        (5, value(1)),
        (6, Arg::from(4i64)),
        (8, Arg::from(2i64)),
        (9, Arg::from(2i64)),
        // Three dimensions, but rows of packed sequences have two.
        (14, Arg::from(&[2i64, 1][..])),
    ] {
        let error = refusal(&case, |args| args[at] = arg.clone());
        assert!(!matches!(error, OpError::Unknown(_)), "{at}: {error}");
    }
    let mut tensors = case.tensors();
    tensors[1] = case.tensor("h", &[1, 1, HIDDEN]);
    let error = support::run(CUDNN, &tensors, &case.of_cudnn(tensors.len(), true, 0.0, &[])).unwrap_err();
    assert!(error.to_string().contains("states are of 1 sequences, not 2"), "{error}");
    tensors = case.tensors();
    tensors[0] = case.tensor("packed", &[4, FEATURES]);
    for (counts, what) in
        [(&[1i64, 2, 1][..], "must not rise"), (&[2, 1], "has 4 rows"), (&[2, 2, 0], "positive")]
    {
        let error = support::run(CUDNN, &tensors, &case.of_cudnn(tensors.len(), true, 0.0, counts));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(what) || error.contains("sequences, not"), "{counts:?}: {error}");
    }
}

/// Both directions are refused for the same lengths, and the backward of what is not refused has few enough prims: also in 16 bits,
/// and where a sequence ends in each time step.
#[test]
fn the_longest_sequences_in_training_have_a_backward() {
    for mode in 0..4 {
        for (time, fits) in [(512, true), (513, false)] {
            let projection = if mode == LSTM { 2 } else { 0 };
            let case = Case { time, projection, batch: time, dtype: DType::BF16, ..Case::new(mode) };
            let mut tensors = case.tensors();
            tensors[0] = case.tensor("packed", &[time * (time + 1) / 2, FEATURES]);
            let counts: Vec<i64> = (1..=time as i64).rev().collect();
            let args = case.of_cudnn(tensors.len(), true, 0.0, &counts);
            let (mut graph, _, origin) = graph_of(&tensors);
            let forward = decompose_call(&mut Builder::new(&mut graph, "y", origin), CUDNN, args.clone());
            assert_eq!(forward.is_ok(), fits, "{mode}, {time}: {forward:?}");
            let Ok(forward) = forward else { continue };
            let results = forward.iter().map(|v| Arg::Value(*v)).collect::<Vec<_>>();
            let args = backward(&args, &results);
            let mut b = Builder::new(&mut graph, "dx", origin);
            decompose_call(&mut b, "aten._cudnn_rnn_backward.default", args).unwrap();
        }
    }
}

/// The arguments of the backward of a call with these results, which are the cotangents too.
fn backward(args: &[Arg], results: &[Arg]) -> Vec<Arg> {
    let [output, hy, cy, reserve, buffer] = results else { panic!("five results") };
    let cy = if args[5] == Arg::None { Arg::None } else { cy.clone() };
    let mut list = args[..3].to_vec();
    list.extend([buffer.clone(), args[4].clone(), args[5].clone(), output.clone(), output.clone()]);
    list.extend([hy.clone(), cy]);
    list.extend(args[6..].iter().cloned());
    list.extend([reserve.clone(), Arg::List(vec![true.into(); 4])]);
    list
}

/// Results of the backward for cotangents that are the forward's results; `change` changes its arguments.
fn gradients(case: &Case, tensors: &[Tensor], change: impl FnOnce(&mut Vec<Arg>)) -> Vec<Tensor> {
    let args = case.of_cudnn(case.tensors().len(), true, 0.0, &[]);
    let forward = support::run(CUDNN, tensors, &args).unwrap();
    let results: Vec<Arg> = (0..5).map(|n| value(tensors.len() + n)).collect();
    let mut args = backward(&args, &results);
    change(&mut args);
    let tensors = [tensors, &forward].concat();
    support::run("aten._cudnn_rnn_backward.default", &tensors, &args).unwrap()
}

/// States of zeros are often one tensor.
#[test]
fn states_that_are_one_tensor_have_a_gradient_each() {
    let case = Case { layers: 2, ..Case::new(LSTM) };
    let mut tensors = case.tensors();
    tensors[2] = tensors[1].clone();
    let apart = gradients(&case, &tensors, |_| {});
    let one = gradients(&case, &tensors, |args| args[5] = args[4].clone());
    assert_eq!(apart.len(), 3 + case.weights().len());
    for (n, (got, expected)) in one.iter().zip(&apart).enumerate() {
        same(got, expected, &n);
    }
    assert!(tensor::allclose(&apart[1], &apart[2], 1e-3, 1e-3).is_err(), "both states have one gradient");
}

#[test]
fn gradients_are_those_that_are_requested() {
    let case = Case { bidirectional: true, ..Case::new(LSTM) };
    let tensors = case.tensors();
    let all = gradients(&case, &tensors, |_| {});
    for n in 0..16 {
        let wanted: Vec<bool> = (0..4).map(|bit| n >> bit & 1 == 1).collect();
        let mask = Arg::List(wanted.iter().map(|&w| w.into()).collect());
        let some = gradients(&case, &tensors, |args| *args.last_mut().unwrap() = mask);
        assert_eq!(some.len(), if wanted[3] { all.len() } else { 3 });
        for (n, (got, expected)) in some.iter().zip(&all).enumerate() {
            match wanted[n.min(3)] {
                true => same(got, expected, &(&wanted, n)),
                false => assert_eq!(support::sizes(got), [0]),
            }
        }
    }
}

/// Absent cotangents are zeros; gradients of what no result depends on are, too.
#[test]
fn cotangents_may_be_absent() {
    let case = Case::new(LSTM);
    let tensors = case.tensors();
    let zero = |n: usize| Tensor::zeros(DType::F64, tensors[n].sizes()).unwrap();
    let mut with_zeros = tensors.clone();
    with_zeros.push(zero(1));
    // Zeros in place of the hidden state's cotangent, and of the cell state's.
    let args = case.of_cudnn(tensors.len(), true, 0.0, &[]);
    let forward = support::run(CUDNN, &tensors, &args).unwrap();
    let operands = [&with_zeros[..], &forward[..]].concat();
    let results: Vec<Arg> = (0..5).map(|n| value(with_zeros.len() + n)).collect();
    let run = |cotangents: [Arg; 3]| {
        let mut args = backward(&args, &results);
        args.splice(7..10, cotangents);
        support::run("aten._cudnn_rnn_backward.default", &operands, &args).unwrap()
    };
    let zeros = value(tensors.len());
    let given = run([results[0].clone(), zeros.clone(), zeros]);
    let absent = run([results[0].clone(), Arg::None, Arg::None]);
    for (got, expected) in absent.iter().zip(&given) {
        same(got, expected, &"absent");
    }
    for (got, operand) in run([Arg::None, Arg::None, Arg::None]).iter().zip(&tensors) {
        same(got, &Tensor::zeros(DType::F64, operand.sizes()).unwrap(), &"nothing");
    }
}
