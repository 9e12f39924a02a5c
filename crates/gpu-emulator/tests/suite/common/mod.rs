//! Shared helpers: graphs of operators under construction, their inputs, and the comparison of the emulated GPU with
//! `interp`, which runs the same graph in its own dtypes and in double precision.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use fx_ir::{Arg, Graph, InputKind, NodeKind, OriginId, Output, OutputKind, ValueId, ValueType};
use gpu_codegen::{Target, variants};
use ir_core::{DType, Scalar, SymExpr, TensorMeta};
use plugin_host::{CompileArgs, KERNEL_IR, LoadedBackend};
use prims::{Builder, DecomposeCx};
use tensor::Tensor;

/// The emulator, or a message why there is none; the test has then shown nothing.
pub fn emulator() -> Option<LoadedBackend> {
    let load = || plugin_host::Registry::from_env().load("gpu-emulator").expect("linked into the test");
    crate::present::available().then(load)
}

/// A graph under construction.
pub struct Case {
    pub graph: Graph,
    data: Vec<Tensor>,
}

/// Fixed sizes.
pub fn fixed(sizes: &[i64]) -> Vec<SymExpr> {
    sizes.iter().map(|n| SymExpr::from_i64(*n)).collect()
}

impl Case {
    pub fn new(name: &str) -> Case {
        Case { graph: Graph::new(name.to_owned()), data: Vec::new() }
    }

    /// An input whose elements are `value(i)`, rounded to the dtype.
    pub fn input(&mut self, dtype: DType, sizes: &[i64], value: impl Fn(usize) -> f64) -> ValueId {
        self.sized(dtype, sizes, fixed(sizes), value)
    }

    /// The same for sizes that the graph knows as expressions.
    pub fn sized(
        &mut self,
        dtype: DType,
        sizes: &[i64],
        known: Vec<SymExpr>,
        value: impl Fn(usize) -> f64,
    ) -> ValueId {
        let name = format!("x{}", self.data.len());
        let meta = TensorMeta::contiguous(dtype, known);
        let shape: Vec<usize> = sizes.iter().map(|n| *n as usize).collect();
        let mut t = Tensor::zeros(DType::F64, &[shape.iter().product()]).unwrap();
        for i in 0..t.numel() {
            t.set(&[i], Scalar::Float(value(i))).unwrap();
        }
        self.data.push(t.to_dtype(dtype).unwrap().reshape(&shape).unwrap());
        self.graph.placeholder(InputKind::User, name.clone(), &name, ValueType::Tensor(meta))
    }

    /// An input of evenly spaced numbers in -1.5..1.5, integers in -5..5, or booleans.
    pub fn any(&mut self, dtype: DType, sizes: &[i64]) -> ValueId {
        let name = format!("any{}", self.data.len());
        self.input(dtype, sizes, |i| {
            let u = f64::from(tensor::formula::uniform(&name, i as u64));
            match dtype {
                DType::Bool => f64::from(u > 0.0),
                d if d.is_int() => (u * 5.0).floor(),
                _ => u * 1.5,
            }
        })
    }

    /// Decomposes for memory of a device, as programs for GPUs are.
    fn builder(&mut self, target: &str) -> Builder<'_> {
        let name = target.split('.').nth(1).unwrap_or("v");
        Builder::new(&mut self.graph, name, OriginId(0))
            .within(DecomposeCx { device_memory: true, ..DecomposeCx::default() })
    }

    /// An operator with one result.
    pub fn call(&mut self, target: &str, args: Vec<Arg>) -> ValueId {
        let mut b = self.builder(target);
        b.call1(target, args).unwrap_or_else(|e| panic!("{target}: {e}"))
    }

    /// An operator with several results.
    pub fn calls(&mut self, target: &str, args: Vec<Arg>) -> Vec<ValueId> {
        let mut b = self.builder(target);
        b.call(target, args).unwrap_or_else(|e| panic!("{target}: {e}")).iter().copied().collect()
    }

    pub fn output(&mut self, v: ValueId) {
        self.graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(v) });
    }

    /// An operator whose result is an output.
    pub fn shows(&mut self, target: &str, args: Vec<Arg>) -> ValueId {
        let v = self.call(target, args);
        self.output(v);
        v
    }

    /// Compiles for the emulator, runs and compares every output.
    pub fn check(self, emulator: &LoadedBackend) {
        self.checked(emulator, 1, &[""]);
    }

    /// The same, and a second call gives the same bits.
    pub fn check_twice(self, emulator: &LoadedBackend) {
        self.checked(emulator, 2, &[""]);
    }

    /// The same with each of these candidates where steps have them; at least one step has.
    pub fn check_candidates(self, emulator: &LoadedBackend, candidates: &[&str]) {
        self.checked(emulator, 2, candidates);
    }

    /// Lowers the graph.
    pub fn program(&mut self) -> kernel_ir::Program {
        let nodes = &self.graph.nodes;
        self.graph.order.sort_by_key(|id| !matches!(nodes[*id].kind, NodeKind::Placeholder { .. }));
        prims::scalars::eliminate_dead(&mut self.graph);
        inductor::compile(&self.graph, &inductor::Options::default()).unwrap()
    }

    /// Compiles for the emulator in every mode, and expects this error from a call and from a second one.
    pub fn refused(mut self, emulator: &LoadedBackend, why: &str) {
        let bytes = self.program().to_bytes();
        for mode in ["default", "reduce-overhead", "max-autotune"] {
            let args = CompileArgs::new(KERNEL_IR, &bytes).mode(mode);
            let mut code = emulator.compile(&args).unwrap_or_else(|e| panic!("{}: {e}", self.graph.name));
            code.bind_constants(&[]).unwrap();
            let given: Vec<&Tensor> = self.data.iter().collect();
            for round in 0..2 {
                let error = code.execute(&given).err().map(|e| e.to_string()).unwrap_or_default();
                assert!(error.contains(why), "{} {mode} {round}: `{error}` is not `{why}`", self.graph.name);
            }
        }
    }

    fn checked(mut self, emulator: &LoadedBackend, calls: usize, candidates: &[&str]) {
        let program = self.program();
        // Which candidates a sort has depends on what is read of it.
        let mut narrowed = program.clone();
        gpu_codegen::narrow_sorts(&mut narrowed);
        let expected = interp::run(&self.graph, &self.data).unwrap();
        let wide: Vec<Tensor> = self.data.iter().map(|t| t.to_dtype(widened(t.dtype())).unwrap()).collect();
        let truth = interp::run(&in_double(&self.graph), &wide).unwrap();
        let bytes = program.to_bytes();
        // For AMD's GPUs every step is computed by the way that is best by rule.
        let amd = architectures(&self.graph.name).iter().map(|architecture| ("", *architecture));
        let runs = candidates.iter().map(|candidate| (*candidate, "")).chain(amd);
        for (candidate, architecture) in runs {
            let has = |step| {
                variants(&narrowed, step, &Target::HOPPER)
                    .is_ok_and(|v| v.iter().any(|v| v.name.contains(candidate)))
            };
            let wanted = candidate.is_empty() || narrowed.steps.iter().any(has);
            assert!(wanted, "{}: no step has a way `{candidate}`", self.graph.name);
            let options = [("prefer", candidate), ("architecture", architecture)];
            let args = CompileArgs::new(KERNEL_IR, &bytes).mode("default").options(&options);
            let name = format!("{} {candidate} {architecture}", self.graph.name);
            let mut code = emulator.compile(&args).unwrap_or_else(|e| panic!("{name}: {e}"));
            code.bind_constants(&[]).unwrap();
            let given: Vec<&Tensor> = self.data.iter().collect();
            let got = code.execute(&given).unwrap_or_else(|e| panic!("{name}: {e}\n{program}"));
            assert_eq!(got.len(), expected.len());
            // What a call leaves behind for the next one does not depend on the architecture.
            for _ in 1..if architecture.is_empty() { calls } else { 1 } {
                let again = code.execute(&given).unwrap_or_else(|e| panic!("{name}: {e}\n{program}"));
                for (n, (one, two)) in got.iter().zip(&again).enumerate() {
                    let bits = |t: &Tensor| t.iter_f64().map(f64::to_bits).collect::<Vec<_>>();
                    assert!(bits(one) == bits(two), "{name}, output {n}: a second call gives something else");
                }
            }
            for (n, ((g, e), t)) in got.iter().zip(&expected).zip(&truth).enumerate() {
                if let Err(what) = compare(g, e, t) {
                    panic!("{name}, output {n}: {what}\n{program}");
                }
            }
        }
    }
}

/// The architectures of AMD's for which a case is computed, with waves of 64 and of 32: one of them, chosen by the case's name since
/// compiling kernels is most of what these tests take, or both where `FERROFLUX_ARCHITECTURES` is `all` (`xtask test-all --full`).
fn architectures(name: &str) -> &'static [&'static str] {
    const BOTH: [&str; 2] = ["gfx942", "gfx1100"];
    if std::env::var("FERROFLUX_ARCHITECTURES").is_ok_and(|which| which == "all") {
        return &BOTH;
    }
    let n = name.bytes().map(usize::from).sum::<usize>() % BOTH.len();
    &BOTH[n..=n]
}

fn widened(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

/// The graph with every float in double precision.
fn in_double(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    graph.subgraphs.iter_mut().for_each(|(_, g)| *g = in_double(g));
    for value in graph.values.iter_mut().map(|(_, v)| v) {
        if let ValueType::Tensor(meta) = &mut value.ty {
            meta.dtype = widened(meta.dtype);
        }
    }
    for node in graph.nodes.iter_mut().map(|(_, n)| n) {
        if let NodeKind::Call { args, .. } = &mut node.kind {
            for arg in args {
                if let Arg::DType(d) = arg {
                    *d = widened(*d);
                }
            }
        }
    }
    graph
}

/// Compares results: integers are equal where both precisions agree on them, floats deviate by little more than `interp`
/// does.
fn compare(got: &Tensor, expected: &Tensor, truth: &Tensor) -> Result<(), String> {
    if got.dtype() != expected.dtype() || got.sizes() != expected.sizes() {
        return Err(format!(
            "is {}{:?}, not {}{:?}",
            got.dtype(),
            got.sizes(),
            expected.dtype(),
            expected.sizes()
        ));
    }
    let rows = || got.iter_f64().zip(expected.iter_f64()).zip(truth.iter_f64()).enumerate();
    if !got.dtype().is_float() {
        let wrong = rows().find(|(_, ((g, e), t))| e == t && g != e);
        return wrong.map_or(Ok(()), |(i, ((g, e), _))| Err(format!("element {i} is {g}, expected {e}")));
    }
    let finite = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
    let scale = rows().fold(0.0f64, |m, (_, (_, t))| m.max(finite(t)));
    let own = rows().fold(0.0f64, |m, (_, ((_, e), t))| m.max(finite(e - t)));
    let relative = match got.dtype() {
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        _ => 1e-2,
    };
    let allowed = relative * scale.max(0.25) + 8.0 * own;
    for (i, ((g, e), t)) in rows() {
        let same = g == t || g == e || (g.is_nan() && (t.is_nan() || e.is_nan()));
        let close = (g - t).abs() <= allowed;
        if !(same || close) {
            return Err(format!("element {i} is {g}, expected {t} (interp {e}, allowed {allowed:.1e})"));
        }
    }
    Ok(())
}
