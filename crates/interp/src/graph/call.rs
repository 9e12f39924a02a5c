//! Executes one call: a prim by its reference, a composite by decomposition.

use fx_ir::{Arg, Graph, InputKind, NodeId, OriginId, Output, OutputKind, ValueType};
use ir_core::{DType, Device, EntityId, Scalar, Shape, SymExpr, TensorMeta};
use prims::{Builder, Kind, Op, RefArg, RefCall, Reference, decompose_call, functional_of, lookup};
use tensor::Tensor;

use super::{Frame, MAX_DEPTH, control, scalar_loop, symbolic};
use crate::{Bindings, InterpError, Value};

impl Frame<'_, '_> {
    /// The results of a call, in order.
    pub(super) fn call(&mut self, id: NodeId, target: &str, args: &[Arg]) -> Result<Vec<Value>, InterpError> {
        if target.starts_with("higher_order.") {
            return control::call(self, id, target, args);
        }
        if let Some(values) = symbolic::call(self, id, target, args)? {
            return Ok(values);
        }
        let op = lookup(target).or_else(|| functional_of(target));
        let op = op.ok_or_else(|| self.refused(id, prims::OpError::Unknown(target.into())))?;
        match &op.def.kind {
            Kind::Prim { reference, .. } => self.prim(id, op, reference, args),
            Kind::Composite(_) => self.composite(id, target, args),
        }
    }

    fn prim(
        &mut self,
        id: NodeId,
        op: &'static Op,
        reference: &Reference,
        args: &[Arg],
    ) -> Result<Vec<Value>, InterpError> {
        let args = args.iter().map(|a| self.ref_arg(id, a)).collect::<Result<Vec<_>, _>>()?;
        let outputs = self.graph.nodes[id].outputs.iter();
        let outs = outputs.map(|&v| self.out_type(id, &self.graph.values[v].ty));
        let outs: Vec<(DType, Vec<usize>)> = outs.collect::<Result<_, _>>()?;
        self.check_room(id, &args, &outs)?;
        let call = RefCall { op, args: &args, outs: &outs };
        let results = match reference {
            Reference::Scalar(scalar) => scalar_loop::run(*scalar, &call),
            Reference::Fn(compute) => compute(&call),
        };
        Ok(results.map_err(|e| self.refused(id, e))?.into_iter().map(Value::Tensor).collect())
    }

    /// dtype and sizes of a result; sizes that are not known yet are left out.
    fn out_type(&self, id: NodeId, ty: &ValueType) -> Result<(DType, Vec<usize>), InterpError> {
        let ValueType::Tensor(meta) = ty else { return Ok((DType::I64, Vec::new())) };
        let mut sizes = Vec::with_capacity(meta.rank());
        for (dim, e) in meta.sizes.iter().enumerate() {
            let Some(size) = self.bindings.eval(e) else { return Ok((meta.dtype, Vec::new())) };
            let negative = |_| InterpError::NegativeSize { at: self.at(id), dim, expr: e.to_string(), size };
            sizes.push(usize::try_from(size).map_err(negative)?);
        }
        Ok((meta.dtype, sizes))
    }

    /// Fails where results of these types exceed memory, alone or with the intermediate values of a reference: references
    /// convert elements to doubles.
    fn check_room(
        &self,
        id: NodeId,
        args: &[RefArg],
        outs: &[(DType, Vec<usize>)],
    ) -> Result<(), InterpError> {
        const WIDE: usize = 8;
        let refused = |e| self.tensor_error(id, e);
        let mut sum = 0usize;
        for (dtype, sizes) in outs {
            let numel = tensor::checked_numel(*dtype, sizes).map_err(refused)?;
            tensor::require_room(numel * dtype.size()).map_err(refused)?;
            sum = sum.saturating_add(numel.saturating_mul(dtype.size() + WIDE));
        }
        for arg in args {
            let numel = if let RefArg::Tensor(t) = arg { t.numel() } else { 0 };
            sum = sum.saturating_add(numel.saturating_mul(WIDE));
        }
        tensor::require_room(sum).map_err(refused)
    }

    fn ref_arg(&self, id: NodeId, arg: &Arg) -> Result<RefArg, InterpError> {
        Ok(match arg {
            Arg::None => RefArg::None,
            Arg::Value(v) => match self.value(id, *v)? {
                Value::None => RefArg::None,
                Value::Tensor(t) => RefArg::Tensor(t.clone()),
                Value::Scalar(s) => RefArg::Scalar(*s),
            },
            Arg::Int(expr) => RefArg::Scalar(Scalar::Int(self.size(id, expr)?)),
            Arg::Scalar(s) => RefArg::Scalar(*s),
            Arg::Str(s) => RefArg::Str(s.clone()),
            Arg::DType(d) => RefArg::DType(*d),
            Arg::Device(_) | Arg::Layout(_) | Arg::MemoryFormat(_) | Arg::Graph(_) => RefArg::Other,
            Arg::List(items) => {
                RefArg::List(items.iter().map(|a| self.ref_arg(id, a)).collect::<Result<_, _>>()?)
            }
        })
    }

    /// The value of a size expression.
    pub(super) fn size(&self, id: NodeId, expr: &SymExpr) -> Result<i64, InterpError> {
        let unbound = || InterpError::Unbound { at: self.at(id), expr: expr.to_string() };
        self.bindings.eval(expr).ok_or_else(unbound)
    }

    /// Decomposes the call into a graph of its own, with sizes as numbers, and runs that.
    fn composite(&mut self, id: NodeId, target: &str, args: &[Arg]) -> Result<Vec<Value>, InterpError> {
        if self.depth >= MAX_DEPTH {
            return Err(InterpError::Unsupported { at: self.at(id), what: "nesting this deep".into() });
        }
        let mut scratch = Scratch { graph: Graph::new(target), inputs: Vec::new() };
        let args =
            args.iter().map(|a| self.scratch_arg(id, a, &mut scratch)).collect::<Result<Vec<_>, _>>()?;
        let origin = scratch.graph.add_origin(self.graph.origin(id).clone());
        let name = self.graph.node_name(id);
        let mut builder = Builder::new(&mut scratch.graph, name, origin);
        let outs = decompose_call(&mut builder, target, args).map_err(|e| self.refused(id, e))?;
        let Scratch { mut graph, inputs } = scratch;
        let output = |v: &fx_ir::ValueId| Output { kind: OutputKind::User, arg: Arg::Value(*v) };
        graph.outputs = outs.iter().map(output).collect();
        let mut bindings = Bindings::new();
        let inputs = super::inputs::with_seed(&graph, inputs, self.seed);
        let mut frame = Frame::new(&graph, &mut bindings, self.depth + 1, self.seed);
        frame.set_inputs(inputs);
        frame.run()?;
        Ok(frame.finish()?.outputs)
    }

    /// The argument in terms of the scratch graph: tensors become placeholders, everything else numbers.
    fn scratch_arg(&self, id: NodeId, arg: &Arg, scratch: &mut Scratch) -> Result<Arg, InterpError> {
        Ok(match arg {
            Arg::Value(v) => match self.value(id, *v)? {
                Value::None => Arg::None,
                Value::Scalar(s) => Arg::from(*s),
                Value::Tensor(t) => scratch.input(t, self.concrete_meta(*v, t)),
            },
            Arg::Int(expr) => Arg::int(self.size(id, expr)?),
            Arg::List(items) => {
                let items = items.iter().map(|a| self.scratch_arg(id, a, scratch));
                Arg::List(items.collect::<Result<_, _>>()?)
            }
            other => other.clone(),
        })
    }

    /// The tensor's meta in numbers: the strides are those the graph states (PyTorch's), not those the oracle's own
    /// tensor happens to have, since operators such as `as_strided` mean the former.
    fn concrete_meta(&self, v: fx_ir::ValueId, tensor: &Tensor) -> TensorMeta {
        let actual = tensor.meta();
        let Some(stated) = self.graph.meta(v) else { return actual };
        let numbers = |list: &[SymExpr]| -> Option<Shape> {
            list.iter().map(|e| self.bindings.eval(e).map(SymExpr::from_i64)).collect()
        };
        let contiguous = || TensorMeta::contiguous(actual.dtype, actual.sizes.iter().cloned());
        let strides = numbers(&stated.strides).unwrap_or_else(|| contiguous().strides);
        let offset = self.bindings.eval(&stated.offset).map_or(SymExpr::ZERO, SymExpr::from_i64);
        let device = if stated.device == Device::CPU { Device::CPU } else { stated.device.clone() };
        TensorMeta { dtype: actual.dtype, device, sizes: actual.sizes, strides, offset }
    }
}

/// The graph of one decomposed call and the tensors for its placeholders.
struct Scratch {
    graph: Graph,
    inputs: Vec<Value>,
}

impl Scratch {
    fn input(&mut self, tensor: &Tensor, meta: TensorMeta) -> Arg {
        let name = format!("arg{}", self.inputs.len());
        self.inputs.push(Value::Tensor(tensor.clone()));
        let value = self.graph.placeholder(InputKind::User, name.as_str(), &name, ValueType::Tensor(meta));
        debug_assert_eq!(self.graph.nodes.len(), self.inputs.len());
        debug_assert!(OriginId::from_index(0) == OriginId(0));
        Arg::Value(value)
    }
}
