//! Functions of tensors in Rust, and functions of functions: `grad`, `vjp`, `jvp`, `vmap`, `jacrev`, `jacfwd`, `hessian`, as in
//! `torch.func`. Any of them applies to what another gives.
//!
//! ```
//! use ferroflux::{Options, Tensor, func};
//!
//! // The gradient of each row of `x` by itself, and the second derivative of a sine.
//! let energy = func::of(|[x]| (x.sin() * x).sum());
//! let rows = func::vmap(&func::grad(&energy), &[Some(0)], &[Some(0)]);
//! let x = Tensor::from_vec(vec![0.0_f64, 1.0, 2.0, 3.0], &[2, 2])?;
//! let gradients = rows.call(&[x], &Options::new().backend("eager"))?;
//! assert_eq!(gradients[0].sizes(), [2, 2]);
//!
//! let second = func::grad(&func::grad(&func::of(|[x]| x.sin())));
//! let x = Tensor::from_vec(vec![0.5_f64], &[])?;
//! let y = second.call(&[x], &Options::new().backend("eager"))?;
//! assert!(y[0].iter_f64().all(|y| (y + 0.5_f64.sin()).abs() < 1e-15));
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! A [`Func`] is traced for the types that it is given ([`Types`]; sizes may be symbols), so one function serves any shape.
//! Not here: the transforms of graphs themselves (`aot_autograd::transform`).

mod compiled;
mod transforms;
mod types;
mod var;

use std::sync::Arc;

use fx_ir::{Arg, Graph, InputKind, NodeKind, Output, OutputKind, ValueType};
use ir_core::TensorMeta;
use tensor::Tensor;

pub use aot_autograd::transform::{Randomness, TransformError};
pub use compiled::CompiledFunc;
pub use transforms::{
    grad, grad_of, hessian, jacfwd, jacrev, jvp, value_and_grad, value_and_grad_of, vjp, vmap, vmap_with,
};
pub use types::Types;
pub use var::{Operand, Var};

use crate::pipeline::{self, Cx, StageId};
use crate::{Error, Options};
use var::Tape;

#[cfg(doctest)]
#[doc = include_str!("transforms.md")]
struct Page;

type Make = dyn Fn(&Types) -> Result<Graph, Error> + Send + Sync;

/// A function of tensors, traced for the types of its arguments when they are known. Cheap to clone.
#[derive(Clone)]
pub struct Func {
    inputs: usize,
    outputs: usize,
    make: Arc<Make>,
}

/// The function of `N` tensors that a closure computes: `func::of(|[x, w]| x.matmul(w).tanh())`. Tensors that it needs
/// are its arguments; it captures none.
pub fn of<const N: usize, F>(f: F) -> Func
where
    F: for<'t> Fn([Var<'t>; N]) -> Var<'t> + Send + Sync + 'static,
{
    of_many(move |x| [f(x)])
}

/// As [`of`], with several results: `func::of_many(|[x]| [x.sin(), x.cos()])`.
pub fn of_many<const N: usize, const M: usize, F>(f: F) -> Func
where
    F: for<'t> Fn([Var<'t>; N]) -> [Var<'t>; M] + Send + Sync + 'static,
{
    Func::new(N, M, move |types| {
        let mut graph = Graph::new("function");
        graph.symbols = types.symbols.clone();
        let mut values = Vec::with_capacity(N);
        for (n, meta) in types.metas.iter().enumerate() {
            let name = format!("x{n}");
            let ty = ValueType::Tensor(meta.clone());
            values.push(graph.placeholder(InputKind::User, name.clone(), &name, ty));
        }
        let tape = Tape::new(graph);
        let outs = f(std::array::from_fn(|n| Var { tape: &tape, value: values.get(n).copied() }));
        let outs = outs.map(|v| v.value);
        if let Some(error) = tape.error.into_inner() {
            return Err(TransformError::from(error).into());
        }
        let mut graph = tape.graph.into_inner();
        for value in outs {
            let value = value.ok_or_else(|| Error::Function("a result has no value".into()))?;
            graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(value) });
        }
        prims::scalars::eliminate_dead(&mut graph);
        Ok(graph)
    })
}

impl Func {
    fn new(
        inputs: usize,
        outputs: usize,
        make: impl Fn(&Types) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Func {
        Func { inputs, outputs, make: Arc::new(make) }
    }

    /// A functional graph as a function of all its placeholders, parameters and buffers included (the seed of random
    /// numbers is none of them), that returns all its outputs. It takes no other types than its own. What the graph says of
    /// its values is held against the operators' rules when the function is traced.
    pub fn from_graph(mut graph: Graph) -> Func {
        for (_, node) in graph.nodes.iter_mut() {
            if let NodeKind::Placeholder { kind, .. } = &mut node.kind
                && *kind != InputKind::Seed
            {
                *kind = InputKind::User;
            }
        }
        graph.outputs.iter_mut().for_each(|o| o.kind = OutputKind::User);
        let inputs = graph.inputs().filter(|(_, kind, _)| *kind == InputKind::User).count();
        Func::new(inputs, graph.outputs.len(), move |types| {
            let mut graph = graph.clone();
            if graph.symbols.is_empty() {
                graph.symbols = types.symbols.clone();
            }
            // It comes from outside: judged in all builds.
            pipeline::verify_functional(&graph).map_err(Error::Graph)?;
            // The types of all values are the rules' own from here on.
            pipeline::run(graph, StageId::Prim..=StageId::Prim, &Cx::training()?)
        })
    }

    /// How many tensors it takes.
    pub fn inputs(&self) -> usize {
        self.inputs
    }
    /// How many tensors it returns.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The function on these types as a graph of prims.
    ///
    /// # Errors
    /// Types that do not fit, operators that refuse them, and what a transform cannot do.
    pub fn graph(&self, types: &Types) -> Result<Graph, Error> {
        if types.metas.len() != self.inputs {
            let what = format!("takes {} tensors, {} types are given", self.inputs, types.metas.len());
            return Err(Error::Function(what));
        }
        let graph = (self.make)(types)?;
        let number = |(v, _, _): &(fx_ir::ValueId, InputKind, &str)| graph.meta(*v).is_none();
        if let Some((_, _, name)) = graph.inputs().find(number) {
            let what = format!(
                "takes the number `{name}`: functions take tensors, give it as one without dimensions"
            );
            return Err(Error::Function(what));
        }
        let takes: Vec<&TensorMeta> = graph
            .inputs()
            .filter(|(_, kind, _)| *kind != InputKind::Seed)
            .filter_map(|(v, _, _)| graph.meta(v))
            .collect();
        for (n, (given, takes)) in types.metas.iter().zip(takes).enumerate() {
            if given.dtype != takes.dtype || given.sizes != takes.sizes {
                return Err(Error::Function(format!("argument {n} is {given}, it must be {takes}")));
            }
        }
        Ok(graph)
    }

    /// Compiles it for arguments of these types.
    ///
    /// # Errors
    /// As [`graph`](Func::graph), and what the backend refuses.
    pub fn compile(&self, types: &Types, options: &Options) -> Result<CompiledFunc, Error> {
        CompiledFunc::new(self.graph(types)?, options)
    }

    /// Compiles it for tensors like these and calls it once; [`compile`](Func::compile) and keep the result to call it
    /// often.
    ///
    /// # Errors
    /// As [`compile`](Func::compile), and what the backend runs into.
    pub fn call(&self, inputs: &[Tensor], options: &Options) -> Result<Vec<Tensor>, Error> {
        self.compile(&Types::of(inputs), options)?.call(inputs)
    }
}
