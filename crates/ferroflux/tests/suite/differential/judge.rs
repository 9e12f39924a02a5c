//! Runs a graph of prims by `interp`, by the fused program point by point and by the `cpu` backend, and compares.
//! The judge is the graph in double precision: what a backend may be off by follows from how far `interp` itself, in the
//! graph's own dtypes, is off.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fx_ir::{Arg, Graph, InputKind, NodeKind, OutputKind, ValueType};
use ir_core::DType;
use kernel_ir::{Program, Storage};
use plugin_host::{CompileArgs, KERNEL_IR, LoadedBackend, LoadedExecutable};
use tensor::Tensor;

use super::data;

/// What went wrong, and at which stage: shrinking keeps the stage.
#[derive(Clone, Debug)]
pub struct Failure {
    pub stage: &'static str,
    pub what: String,
}

fn fail<T>(stage: &'static str, what: impl std::fmt::Display) -> Result<T, Failure> {
    Err(Failure { stage, what: what.to_string() })
}

/// The stage of `interp`. A graph whose guards hold and that it refuses was built without a guard that it needs.
pub const EAGER: &str = "eager";
/// What a refusal of an index says: of a call, and of a constant when it is bound.
const OUT_OF_BOUNDS: [&str; 2] = ["is out of bounds for dimension", "holds the index"];

/// How large sums of some ten random values become on their way.
const SUMMED: f64 = 4.0;

fn refuses_index(error: &str) -> bool {
    OUT_OF_BOUNDS.iter().any(|what| error.contains(what))
}

/// Everything a run needs that does not change from graph to graph.
pub struct Judge {
    cpu: LoadedBackend,
}

impl Judge {
    pub fn new() -> Judge {
        use ferroflux as _; // registers the `cpu` backend
        Judge { cpu: plugin_host::Registry::from_env().load("cpu").expect("the backend is linked in") }
    }

    /// Compiles once, runs at every list of symbol values.
    pub fn check(&self, graph: &Graph, symbols: &[Vec<i64>]) -> Result<(), Failure> {
        let result = catch_unwind(AssertUnwindSafe(|| self.run(graph, symbols)));
        result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            fail("panic", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?"))
        })
    }

    fn run(&self, graph: &Graph, symbols: &[Vec<i64>]) -> Result<(), Failure> {
        let double = in_double(graph);
        let mut runs = Vec::new();
        // A call that breaks a guard is refused before anything runs; the facade's tests see to that.
        for values in symbols.iter().filter(|values| guards_hold(graph, values)) {
            let inputs = data::inputs(graph, values);
            let wide: Vec<Tensor> = inputs.iter().map(widened).collect();
            let expected = match interp::run(graph, &inputs) {
                Ok(outputs) => Ok((outputs, interp::run(&double, &wide).or_else(|e| fail(EAGER, e))?)),
                Err(e) if refuses_index(&e.to_string()) => Err(e.to_string()),
                Err(e) => return fail(EAGER, format!("at {values:?}: {e}")),
            };
            runs.push((values, split(graph, inputs), expected));
        }
        let program = kernels(graph).or_else(|e| fail("inductor", e))?;
        kernel_ir::verify(&program).or_else(|e| fail("verify", e))?;
        let Some(((_, (weights, _), _), _)) = runs.split_first() else { return Ok(()) };
        let cpu = self.cpu(&program, weights);
        let unclear = Unclear::of(graph);
        for (values, (weights, users), expected) in &runs {
            let at = |e: String| format!("at {values:?}: {e}");
            let got = oracle(&program, weights, users).map_err(at);
            judged("oracle", got, expected, unclear)?;
            match &cpu {
                Ok(None) => {}
                Ok(Some(code)) => {
                    let users: Vec<&Tensor> = users.iter().collect();
                    let got = code.execute(&users).map_err(|e| at(e.to_string()));
                    judged("cpu", got, expected, unclear)?;
                }
                // Where constants are indices out of range they are refused when they are bound.
                Err(error) => judged("cpu", Err(error.clone()), expected, unclear)?,
            }
        }
        Ok(())
    }

    /// The compiled program with its weights. `None` where the backend says beforehand that it does not take the program.
    fn cpu(
        &self,
        program: &Program,
        weights: &[(String, Tensor)],
    ) -> Result<Option<LoadedExecutable>, String> {
        let bytes = program.to_bytes();
        let args = CompileArgs::new(KERNEL_IR, &bytes).mode("default").options(&[("threads", "2")]);
        let refused = self.cpu.query_support(&args).map_err(|e| e.to_string())?;
        if !refused.is_empty() {
            return Ok(None);
        }
        let mut code = self.cpu.compile(&args).map_err(|e| e.to_string())?;
        let constants: Vec<(&str, &Tensor)> = program
            .constants
            .iter()
            .filter_map(|c| weights.iter().find(|(n, _)| *n == c.name).map(|(n, t)| (n.as_str(), t)))
            .collect();
        code.bind_constants(&constants).map_err(|e| e.to_string())?;
        Ok(Some(code))
    }
}

/// Outputs and what they are in double precision, or why the graph must be refused.
type Expected = Result<(Vec<Tensor>, Vec<Tensor>), String>;

/// What operators of a graph leave open.
#[derive(Clone, Copy)]
struct Unclear {
    /// Values are added in memory of 16 bits, rounded each time: what cancels leaves the error of the sum's largest part.
    rounds_sums: bool,
    /// Values that attention hides may be multiplied by 0 or left out, which differs for NaN and infinity.
    hides: bool,
    /// What the entries of its operators allow.
    entries: prims::Tolerance,
}

impl Unclear {
    fn of(graph: &Graph) -> Unclear {
        let calls = || graph.order.iter().filter_map(|n| graph.nodes[*n].as_call());
        let narrow = |args: &[Arg]| match args.first() {
            Some(Arg::Value(v)) => graph.meta(*v).is_some_and(|m| m.dtype.is_float() && m.dtype.size() == 2),
            _ => false,
        };
        let hides = |args: &[Arg]| matches!(args, [_, _, _, mask, causal, ..] if *mask != Arg::None || *causal == true.into());
        let adds = |args: &[Arg]| args.iter().any(|a| matches!(a, Arg::Str(mode) if &**mode == "add"));
        Unclear {
            rounds_sums: calls().any(|(_, args)| adds(args) && narrow(args)),
            hides: calls().any(|(target, args)| target == "prims.attention" && hides(args)),
            entries: prims::Tolerance::of_graph(graph),
        }
    }
}

/// A refusal where `interp` refuses an index, equal outputs elsewhere.
fn judged(
    stage: &'static str,
    got: Result<Vec<Tensor>, String>,
    expected: &Expected,
    unclear: Unclear,
) -> Result<(), Failure> {
    match (got, expected) {
        (Ok(got), Ok((outputs, truth))) => compare(stage, &got, outputs, truth, unclear),
        (Ok(_), Err(why)) => fail(stage, format!("it answers where interp says: {why}")),
        (Err(e), Err(_)) if refuses_index(&e) => Ok(()),
        (Err(e), _) => fail(stage, e),
    }
}

/// Whether the sizes are such as the graph was built for.
fn guards_hold(graph: &Graph, values: &[i64]) -> bool {
    graph.guards.iter().all(|g| g.relation.holds(data::at(&g.expression, values)))
}

/// The fused program; outputs have the strides of their values' metas.
pub fn kernels(graph: &Graph) -> Result<Program, inductor::InductorError> {
    let strides = |o: &fx_ir::Output| match o.arg {
        Arg::Value(v) => graph.meta(v).map(|m| m.strides.clone()),
        _ => None,
    };
    let output_strides = graph.outputs.iter().map(strides).collect();
    let options = inductor::Options { output_strides, ..inductor::Options::default() };
    inductor::compile(graph, &options)
}

/// Whether something is computed into a part of a temporary or an output.
pub fn has_parts(graph: &Graph) -> bool {
    let shared = |s: &Storage| matches!(s, Storage::Arena | Storage::Output);
    kernels(graph).is_ok_and(|p| {
        let part = |s: &Storage| matches!(s, Storage::View(of) if shared(&p.buffers[*of].storage));
        p.buffers.iter().any(|(_, b)| part(&b.storage))
    })
}

fn oracle(program: &Program, weights: &[(String, Tensor)], users: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let weight = |name: &str| weights.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
    let options = interp::kernels::Options { planned_arena: true };
    let code =
        interp::kernels::Executable::new(program.clone(), &weight, options).map_err(|e| e.to_string())?;
    code.call(users).map_err(|e| e.to_string())
}

/// Weights by name, and what the caller gives (buffers that the graph writes among it).
fn split(graph: &Graph, all: Vec<Tensor>) -> (Vec<(String, Tensor)>, Vec<Tensor>) {
    let (mut weights, mut users) = (Vec::new(), Vec::new());
    for ((_, kind, name), t) in graph.inputs().zip(all) {
        let written =
            graph.outputs.iter().any(|o| matches!(&o.kind, OutputKind::BufferMutation(n) if n == name));
        if kind == InputKind::User || written { users.push(t) } else { weights.push((name.to_owned(), t)) }
    }
    (weights, users)
}

fn wide(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

fn widened(t: &Tensor) -> Tensor {
    t.to_dtype(wide(t.dtype())).unwrap()
}

/// The graph with every float in double precision.
fn in_double(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    graph.subgraphs.iter_mut().for_each(|(_, g)| *g = in_double(g));
    for value in graph.values.iter_mut().map(|(_, v)| v) {
        if let ValueType::Tensor(meta) = &mut value.ty {
            meta.dtype = wide(meta.dtype);
        }
    }
    for node in graph.nodes.iter_mut().map(|(_, n)| n) {
        if let NodeKind::Call { args, .. } = &mut node.kind {
            for arg in args {
                if let Arg::DType(d) = arg {
                    *d = wide(*d);
                }
            }
        }
    }
    graph
}

fn compare(
    stage: &'static str,
    got: &[Tensor],
    expected: &[Tensor],
    truth: &[Tensor],
    unclear: Unclear,
) -> Result<(), Failure> {
    if got.len() != expected.len() {
        return fail(stage, format!("{} outputs, expected {}", got.len(), expected.len()));
    }
    for (n, ((g, e), t)) in got.iter().zip(expected).zip(truth).enumerate() {
        if g.dtype() != e.dtype() || g.sizes() != e.sizes() {
            return fail(
                stage,
                format!("output {n} is {}{:?}, expected {}{:?}", g.dtype(), g.sizes(), e.dtype(), e.sizes()),
            );
        }
        output(g, e, t, unclear).or_else(|what| fail(stage, format!("output {n}: {what}")))?;
    }
    Ok(())
}

/// One output. Integers are equal where both precisions agree on them; floats are off by little more than `interp` is.
fn output(got: &Tensor, expected: &Tensor, truth: &Tensor, open: Unclear) -> Result<(), String> {
    let rows = || got.iter_f64().zip(expected.iter_f64()).zip(truth.iter_f64()).enumerate();
    if !got.dtype().is_float() {
        let wrong = rows().find(|(_, ((g, e), t))| e == t && g != e);
        return wrong.map_or(Ok(()), |(i, ((g, e), _))| Err(format!("element {i} is {g}, expected {e}")));
    }
    let finite = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
    let scale = rows().fold(0.0f64, |m, (_, (_, t))| m.max(finite(t)));
    let own = rows().fold(0.0f64, |m, (_, ((_, e), t))| m.max(finite(e - t)));
    let most: f64 = match got.dtype() {
        DType::F64 => 1e-6,
        DType::F32 => 2e-4,
        _ => 2e-2,
    };
    let relative = most.min(open.entries.of(got.dtype()).1);
    let least = if open.rounds_sums { SUMMED } else { 0.25 };
    let allowed = relative * scale.max(least) + 8.0 * own;
    for (i, ((g, e), t)) in rows() {
        let same = g == t || g == e || (g.is_nan() && (t.is_nan() || e.is_nan()));
        // What overflows in one precision alone says nothing.
        let unclear =
            e.is_nan() != t.is_nan() || e.is_infinite() != t.is_infinite() || (open.hides && t.is_nan());
        let near = (g - t).abs() <= allowed;
        if !same && !unclear && !near {
            return Err(format!("element {i} is {g}, expected {t} (interp {e}, allowed {allowed:.1e})"));
        }
    }
    Ok(())
}
