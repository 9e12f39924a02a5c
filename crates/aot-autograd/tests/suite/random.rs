//! Random programs of views and writes: the functional graph gives what the captured one gives on shared memory, writes
//! the same inputs, and is legal in the functional dialect.

use crate::oracle::{self, T};
use aot_autograd::{functional_legality, functionalize};
use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % n
    }
}

struct Program {
    graph: Graph,
    /// Every value with what it looks like in the captured program.
    values: Vec<(ValueId, T)>,
}

impl Program {
    /// Appends a call and runs it on shapes, so that its metas are those of the captured program.
    fn call(&mut self, target: &str, args: Vec<Arg>) {
        let mut probe = Graph::new("probe");
        let mut inputs = Vec::new();
        let mut probe_args = args.clone();
        for arg in &mut probe_args {
            arg.for_each_value_mut(&mut |v| {
                let t = self.values.iter().find(|(id, _)| id == v).expect("known").1.clone();
                *v = probe.placeholder(
                    InputKind::User,
                    format!("x{}", inputs.len()),
                    "x",
                    ValueType::Tensor(t.meta()),
                );
                inputs.push(t);
            });
        }
        // Metas of the probe's results are not known yet: run the operator alone.
        let outs = oracle::probe(target, &probe_args, &inputs);
        let types = outs.iter().map(|t| ("v", ValueType::Tensor(t.meta())));
        let ids = self.graph.call(target, args, types, OriginId(0));
        self.values.extend(ids.into_iter().zip(outs));
    }
}

fn random_view(rng: &mut Rng, program: &mut Program) {
    let (id, t) = program.values[rng.below(program.values.len())].clone();
    let rank = t.sizes.len();
    let x = Arg::Value(id);
    let d = rng.below(rank.max(1));
    let dim = Arg::int(if rng.below(2) == 0 { d as i64 } else { d as i64 - rank as i64 });
    let int = |i: usize| Arg::int(i as i64);
    match rng.below(13) {
        0 => program.call("aten.detach.default", vec![x]),
        1 if rank > 0 => program.call("aten.select.int", vec![x, dim, int(rng.below(t.sizes[d]))]),
        2 if rank > 0 => {
            let start = rng.below(t.sizes[d]);
            let end = start + 1 + rng.below(t.sizes[d] - start + 2);
            program.call("aten.slice.Tensor", vec![x, dim, int(start), int(end), int(1 + rng.below(2))]);
        }
        3 if rank > 1 => program.call("aten.transpose.int", vec![x, dim, int(rng.below(rank))]),
        4 if rank == 2 => program.call("aten.t.default", vec![x]),
        5 if rank > 0 => {
            let mut dims: Vec<i64> = (0..rank as i64).collect();
            dims.rotate_left(rng.below(rank));
            program.call("aten.permute.default", vec![x, dims.as_slice().into()]);
        }
        6 if rank < 4 => program.call("aten.unsqueeze.default", vec![x, int(rng.below(rank + 1))]),
        7 => {
            let count = t.data().len() as i64;
            program.call("aten.reshape.default", vec![x, [count].as_slice().into()]);
        }
        8 if rank > 0 => program.call("aten.split.Tensor", vec![x, int(1 + rng.below(2)), int(d)]),
        9 if rank > 0 && t.sizes[d] < 5 => program.call("aten.unbind.int", vec![x, int(d)]),
        10 if rank > 0 => {
            let start = rng.below(t.sizes[d]);
            program.call(
                "aten.narrow.default",
                vec![x, dim, int(start), int(1 + rng.below(t.sizes[d] - start))],
            );
        }
        11 if rank > 1 => {
            let e = (d + 1) % rank;
            let offset = rng.below(2) as i64 - i64::from(t.sizes[d] > 1);
            if offset < t.sizes[e] as i64 {
                program.call("aten.diagonal.default", vec![x, Arg::int(offset), int(d), int(e)]);
            }
        }
        12 => {
            let last = t.storage.borrow().len() - 1;
            let (rows, stride) = (1 + rng.below(2), 1 + rng.below(2));
            if stride * (rows - 1) + rows - 1 <= last {
                let offset = rng.below(last + 1 - stride * (rows - 1));
                let sizes = [rows as i64].as_slice().into();
                program.call(
                    "aten.as_strided.default",
                    vec![x, sizes, [stride as i64].as_slice().into(), int(offset)],
                );
            }
        }
        _ => {}
    }
}

fn random_write(rng: &mut Rng, program: &mut Program) {
    let (id, t) = program.values[rng.below(program.values.len())].clone();
    let x = Arg::Value(id);
    let same: Vec<ValueId> =
        program.values.iter().filter(|(_, o)| o.sizes == t.sizes).map(|(v, _)| *v).collect();
    let other = Arg::Value(same[rng.below(same.len())]);
    match rng.below(6) {
        0 => program.call("aten.relu_.default", vec![x]),
        1 => program.call("aten.mul_.Tensor", vec![x, Arg::from(-2.0)]),
        2 => program.call("aten.add_.Tensor", vec![x, other, Arg::int(1)]),
        3 => program.call("aten.copy_.default", vec![x, other, false.into()]),
        4 => program.call("aten.fill_.Scalar", vec![x, Arg::from(rng.below(9) as f64)]),
        _ => program.call("aten.add.Tensor", vec![x, other, Arg::int(1)]),
    }
}

fn random_program(seed: u64) -> (Program, Vec<T>) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut program = Program { graph: Graph::new("random"), values: Vec::new() };
    let mut inputs = Vec::new();
    for (n, sizes) in [&[2, 3, 4][..], &[3, 4], &[4, 4]].into_iter().enumerate() {
        let count: usize = sizes.iter().product();
        let mut t = T::new(sizes, (0..count).map(|i| i as f64 - 5.0).collect());
        if n == 2 {
            t.strides.reverse(); // a dense tensor that is not row-major
        }
        let kind = if n == 1 { InputKind::Buffer { persistent: true } } else { InputKind::User };
        let id = program.graph.placeholder(kind, format!("in{n}"), "x", ValueType::Tensor(t.meta()));
        program.values.push((id, t.clone()));
        inputs.push(t);
    }
    for _ in 0..3 + rng.below(14) {
        match rng.below(3) {
            0 => random_write(&mut rng, &mut program),
            _ => random_view(&mut rng, &mut program),
        }
    }
    for _ in 0..6 {
        let (id, _) = program.values[rng.below(program.values.len())];
        program.graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(id) });
    }
    (program, inputs)
}

fn fresh(inputs: &[T]) -> Vec<T> {
    let fresh = inputs.iter().map(|t| {
        let count = t.storage.borrow().len();
        let data = (0..count).map(|i| ((i * 7) % 11) as f64 - 4.0).collect();
        T { storage: std::rc::Rc::new(std::cell::RefCell::new(data)), ..t.clone() }
    });
    fresh.collect()
}

#[test]
fn functional_programs_compute_the_same() {
    let mut written_programs = 0;
    for seed in 0..3000 {
        let (program, shapes) = random_program(seed);
        let captured = &program.graph;
        let text = captured.to_string();
        let functional = functionalize(captured).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{text}"));
        if let Err(errors) = fx_ir::verify(&functional, &functional_legality()) {
            panic!("seed {seed}: {errors:#?}\n{text}\n{functional}");
        }
        let (before, after) = (fresh(&shapes), fresh(&shapes));
        let (expected, _) = oracle::run(captured, &before, false);
        let (actual, written) = oracle::run(&functional, &after, true);
        for (n, (a, b)) in expected.iter().zip(&actual).enumerate() {
            assert_eq!(a.data(), b.data(), "seed {seed}, result {n}:\n{text}\n{functional}");
        }
        // What the captured program left in its inputs is what the functional one returns for them.
        for (n, (t, untouched)) in before.iter().zip(&after).enumerate() {
            let name = format!("in{n}");
            let now = written
                .iter()
                .find(|(w, _)| *w == name)
                .map_or_else(|| untouched.data(), |(_, data)| data.clone());
            assert_eq!(t.data(), now, "seed {seed}, input {n}:\n{text}\n{functional}");
        }
        written_programs += usize::from(!written.is_empty());
    }
    assert!(written_programs > 1000, "only {written_programs} programs write to an input");
}

/// Both branches of `cond` on memory that is really shared: what the taken one writes to its operands shows outside.
#[test]
fn branches_that_write_give_the_same() {
    let text = "fx 1.0
        graph \"cond\" {
          subgraph g0 \"yes\" {
            %a: f64[4] = input \"a\"
            %b: f64[2, 4] = input \"b\"
            %row: f64[4]+4 = aten.select.int(%b, 0, 1)
            %add_: f64[4]+4 = aten.add_.Tensor(%row, %a, 1)
            %mul: f64[4] = aten.mul.Tensor(%add_, %a)
            return %mul
          }
          subgraph g1 \"no\" {
            %a: f64[4] = input \"a\"
            %b: f64[2, 4] = input \"b\"
            %fill_: f64[4] = aten.fill_.Scalar(%a, 3.0)
            %add: f64[4] = aten.add.Tensor(%fill_, %a, 1)
            return %add
          }
          %p: f64[1] = input \"in0\"
          %x: f64[3, 4] = input \"in1\"
          %y: f64[2, 4] = buffer \"in2\"
          %row: f64[4]+8 = aten.select.int(%x, 0, 2)
          %flat: f64[12] = aten.reshape.default(%x, [12])
          %cond: f64[4] = higher_order.cond(%p, &g0, &g1, [%row, %y])
          %relu: f64[12] = aten.relu.default(%flat)
          return %cond
          return %relu
          return %row
          return %y
        }";
    let captured: Graph = text.parse().expect("a graph");
    let functional = functionalize(&captured).expect("functional");
    fx_ir::verify(&functional, &functional_legality()).expect("legal");
    for taken in [0.0, 1.0] {
        let inputs = || {
            let data = |n: usize| (0..n).map(|i| i as f64 - 5.0).collect::<Vec<_>>();
            [T::new(&[1], vec![taken]), T::new(&[3, 4], data(12)), T::new(&[2, 4], data(8))]
        };
        let (before, after) = (inputs(), inputs());
        let (expected, _) = oracle::run(&captured, &before, false);
        let (actual, written) = oracle::run(&functional, &after, true);
        for (a, b) in expected.iter().zip(&actual) {
            assert_eq!(a.data(), b.data(), "{functional}");
        }
        assert_eq!(written.len(), 2, "both operands are written by one branch");
        for (name, data) in written {
            let n: usize = name[2..].parse().expect("a number");
            assert_eq!(before[n].data(), data, "{name}:\n{functional}");
        }
    }
}
