//! The explanation of a compiled model: operators, fused kernels, memory, and everything that is not supported in one list.

use std::collections::BTreeMap;

use fx_ir::Graph;
use kernel_ir::{Program, Step, Storage};

/// Facts about a model and its compiled form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Each operator of the captured graph with the number of its calls.
    pub operators: BTreeMap<String, usize>,
    /// The kernels of a call in order; empty for backends that do not compile.
    pub kernels: Vec<KernelInfo>,
    /// Kernels that run once, when the weights are bound.
    pub init_kernels: Vec<KernelInfo>,
    /// Bytes of temporary memory of a call, where sizes are numbers.
    pub arena_bytes: Option<u64>,
    /// Bytes of weights, where sizes are numbers.
    pub constant_bytes: Option<u64>,
    /// Bytes of outputs of a call, where sizes are numbers.
    pub output_bytes: Option<u64>,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelInfo {
    /// Its name.
    pub name: String,
    /// `loop`, `matmul`, `conv`, `attention` or `extern`; `together` for a group of concurrent kernels.
    pub kind: &'static str,
    /// The graph nodes fused into it.
    pub nodes: Vec<String>,
    /// The kernels of a group of concurrent ones; none for other kinds.
    pub members: Vec<KernelInfo>,
}

/// A call that is not supported.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsupported {
    /// The operator.
    pub target: String,
    /// The node.
    pub node: String,
    /// The reason, the place, and what to do.
    pub message: String,
}

impl crate::Program {
    /// Operators, kernels and memory of the compiled form.
    ///
    /// # Errors
    /// As for compiling; [`unsupported`](crate::Program::unsupported) lists what is not supported.
    pub fn explain(&self) -> Result<Explanation, crate::Error> {
        Ok(explain(self.graph(), Some(&self.kernels()?)))
    }
    /// The explanation of kernels that exist already: those of [`kernels`](crate::Program::kernels).
    pub fn explain_kernels(&self, kernels: &Program) -> Explanation {
        explain(self.graph(), Some(kernels))
    }
    /// Operators of the captured graph with the number of their calls.
    pub fn operators(&self) -> BTreeMap<String, usize> {
        operators(self.graph())
    }
    /// Everything in the model that the compiler does not support, all of it at once, in the order of the graph's stages.
    pub fn unsupported(&self) -> Vec<Unsupported> {
        let mut list: Vec<Unsupported> = Vec::new();
        // A call that an early stage refuses is not reported again by a later one.
        let mut add = |target: &str, node: &str, message: String| {
            if !list.iter().any(|u| u.node == node) {
                list.push(Unsupported { target: target.into(), node: node.into(), message });
            }
        };
        let functional = match aot_autograd::functionalize(self.graph()) {
            Ok(functional) => functional,
            Err(errors) => {
                errors.iter().for_each(|e| add(&e.target, &e.node, e.to_string()));
                // The rest is still examined, as captured: in-place calls count as their functional form.
                self.graph().clone()
            }
        };
        let (prims, errors) = prims::decompose_partial(&functional);
        errors.iter().for_each(|e| add(&e.target, &e.node, e.to_string()));
        inductor::problems(&prims).iter().for_each(|p| add(&p.target, &p.node, p.to_string()));
        list
    }
}

fn operators(graph: &Graph) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (target, _) in graph.iter().filter_map(|(_, node)| node.as_call()) {
        *counts.entry(target.to_string()).or_insert(0) += 1;
    }
    for sub in graph.subgraphs.values() {
        for (target, n) in operators(sub) {
            *counts.entry(target).or_insert(0) += n;
        }
    }
    counts
}

pub(crate) fn explain(graph: &Graph, program: Option<&Program>) -> Explanation {
    let operators = operators(graph);
    let Some(program) = program else { return Explanation { operators, ..Explanation::default() } };
    let list = |steps: &[Step]| steps.iter().map(kernel).collect();
    let bytes = |wanted: &dyn Fn(&Storage) -> bool| {
        let sizes = program.buffers.values().filter(|b| wanted(&b.storage));
        sizes
            .map(|b| Some((b.span().as_const()?.max(0) as u64).saturating_mul(b.dtype.size() as u64)))
            .try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    };
    Explanation {
        operators,
        kernels: list(&program.steps),
        init_kernels: list(&program.init),
        arena_bytes: program.plan.place(program, &|_| None).ok().map(|(_, bytes)| bytes),
        constant_bytes: bytes(&|s| matches!(s, Storage::Constant(_) | Storage::Persistent)),
        output_bytes: bytes(&|s| matches!(s, Storage::Output)),
    }
}

fn kernel(step: &Step) -> KernelInfo {
    let mut nodes = step.origins().to_vec();
    let mut members = Vec::new();
    if let Step::Together(t) = step {
        members = t.steps.iter().map(kernel).collect();
        nodes = t.steps.iter().flat_map(Step::origins).cloned().collect();
    }
    KernelInfo { name: step.name().into(), kind: step.kind(), nodes, members }
}
