//! Appends the optimizer's update to a joint graph: unscaling, clipping, the update. Afterwards the graph's results are the
//! forward's, new values of state, and the step's reports.

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::{DType, Scalar, TensorMeta};
use prims::{Builder, OpError};

use super::step::{Clip, TrainOptions};
use crate::optim::{Math, Optimizer};

/// A number that the graph reads at every call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NumberInput {
    pub(crate) value: ValueId,
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
}

/// A tensor that the optimizer keeps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub(crate) name: String,
    /// The parameter that it belongs to.
    pub(crate) parameter: String,
    pub(crate) meta: TensorMeta,
}

/// A training step's graph.
pub(crate) struct Updated {
    pub(crate) graph: Graph,
    pub(crate) numbers: Vec<NumberInput>,
    pub(crate) slots: Vec<Slot>,
    /// Parameters that are updated.
    pub(crate) trained: Vec<String>,
    /// Whether the results end with the norm of all gradients, and with whether all were finite.
    pub(crate) reports: (bool, bool),
}

/// Name of a tensor that the optimizer keeps for a parameter.
pub(crate) fn slot_name(slot: &str, parameter: &str) -> String {
    format!("optimizer/{slot}/{parameter}")
}

/// One trained parameter.
struct Trained {
    name: String,
    value: ValueId,
    gradient: ValueId,
    dtype: DType,
}

/// Forward and backward in one graph: the forward's outputs, then gradients of parameters.
pub(crate) struct Gradients {
    pub(crate) graph: Graph,
    /// Number of outputs of the forward.
    pub(crate) forward_outputs: usize,
    /// The placeholder of the loss's cotangent, where the loss is scaled.
    pub(crate) scale: Option<ValueId>,
}

/// Appends the update.
///
/// # Errors
/// Parameters of a dtype that no optimizer supports.
pub(crate) fn append(joint: Gradients, options: &TrainOptions) -> Result<Updated, OpError> {
    let trained = trained(&joint)?;
    let scale = joint.scale;
    let mut u = Update { numbers: Vec::new(), slots: Vec::new(), graph: joint.graph, keep: None };
    u.graph.outputs.truncate(joint.forward_outputs);
    let mut gradients: Vec<ValueId> = trained.iter().map(|t| t.gradient).collect();
    let mut finite = None;
    if let Some(scale) = scale {
        let dtype = u.graph.meta(scale).map_or(DType::F32, |m| m.dtype);
        u.numbers.push(NumberInput { value: scale, name: "scale", dtype });
        finite = u.finite(&gradients)?;
        u.unscale(&trained, &mut gradients)?;
    }
    let norm = u.clip(options.clip, &mut gradients)?;
    u.guard(options.clip, norm, finite)?;
    for (t, gradient) in trained.iter().zip(gradients) {
        u.parameter(&options.optimizer, t, gradient)?;
    }
    for report in [norm, finite].into_iter().flatten() {
        u.graph.outputs.push(Output { kind: OutputKind::Saved, arg: Arg::Value(report) });
    }
    prims::scalars::eliminate_dead(&mut u.graph);
    let reports = (norm.is_some(), finite.is_some());
    let trained = trained.into_iter().map(|t| t.name).collect();
    Ok(Updated { graph: u.graph, numbers: u.numbers, slots: u.slots, trained, reports })
}

fn trained(joint: &Gradients) -> Result<Vec<Trained>, OpError> {
    let mut list = Vec::new();
    for output in &joint.graph.outputs[joint.forward_outputs..] {
        let (OutputKind::ParameterGradient(name), Arg::Value(gradient)) = (&output.kind, &output.arg) else {
            continue;
        };
        let found = joint.graph.inputs().find(|(_, kind, n)| *kind == InputKind::Parameter && n == name);
        let Some((value, _, _)) = found else { continue };
        let dtype = joint.graph.meta(value).map_or(DType::F32, |m| m.dtype);
        if !dtype.is_float() {
            let what = format!(
                "cannot update parameter `{name}`: it is {dtype}; optimizers take floating-point parameters"
            );
            return Err(OpError::Invalid { op: "optimizer".into(), what });
        }
        list.push(Trained { name: name.clone(), value, gradient: *gradient, dtype });
    }
    Ok(list)
}

/// The graph under construction.
struct Update {
    graph: Graph,
    numbers: Vec<NumberInput>,
    slots: Vec<Slot>,
    /// If this is false, the step changes no parameter and none of the optimizer's tensors: they are written in place, so
    /// the graph itself must keep their values.
    keep: Option<ValueId>,
}

impl Update {
    fn builder(&mut self, name: &str) -> Builder<'_> {
        Builder::new(&mut self.graph, name, OriginId(0))
    }

    /// A placeholder after the others.
    fn placeholder(&mut self, kind: InputKind, name: &str, meta: TensorMeta) -> ValueId {
        let at = self.graph.inputs().count();
        let v = self.graph.placeholder(kind, name, name, ValueType::Tensor(meta));
        if let Some(node) = self.graph.order.pop() {
            self.graph.order.insert(at, node);
        }
        v
    }

    /// The number of this name and dtype.
    fn number(&mut self, name: &'static str, dtype: DType) -> ValueId {
        if let Some(found) = self.numbers.iter().find(|n| n.name == name && n.dtype == dtype) {
            return found.value;
        }
        let value = self.placeholder(InputKind::User, name, TensorMeta::contiguous(dtype, []));
        self.numbers.push(NumberInput { value, name, dtype });
        value
    }

    /// Whether every element of every gradient is finite: one truth value.
    fn finite(&mut self, gradients: &[ValueId]) -> Result<Option<ValueId>, OpError> {
        let mut b = self.builder("finite");
        let mut largest = None;
        for &g in gradients {
            let g = b.cast(g, DType::F32)?;
            let magnitude = b.abs(g)?;
            let dims: Vec<usize> = (0..b.rank(magnitude)?).collect();
            if b.sizes(magnitude)?.iter().any(|s| s.as_const() == Some(0)) {
                continue;
            }
            let top = b.reduce(kernel_ir::ReduceOp::Max, magnitude, &dims, false)?;
            largest = Some(match largest {
                None => top,
                Some(other) => b.maximum(other, top)?,
            });
        }
        let finite = |v| b.lt(v, Scalar::Float(f64::INFINITY));
        largest.map(finite).transpose()
    }

    fn unscale(&mut self, trained: &[Trained], gradients: &mut [ValueId]) -> Result<(), OpError> {
        for (t, g) in trained.iter().zip(gradients) {
            let inverse = self.number("inverse_scale", t.dtype.compute());
            let mut b = self.builder("unscale");
            let wide = b.cast(*g, t.dtype.compute())?;
            let unscaled = b.mul(wide, inverse)?;
            *g = b.cast(unscaled, t.dtype)?;
        }
        Ok(())
    }

    /// Sets the condition for an update: no update where a scaled gradient is not finite, or where the gradients' norm is
    /// not and that is an error; in the latter case the program's buffers keep their values too.
    fn guard(
        &mut self,
        clip: Option<Clip>,
        norm: Option<ValueId>,
        finite: Option<ValueId>,
    ) -> Result<(), OpError> {
        self.keep = finite;
        let Some(Clip::Norm { error_if_nonfinite: true, .. }) = clip else { return Ok(()) };
        let Some(norm) = norm else { return Ok(()) };
        let mut b = self.builder("guard");
        let good = b.lt(norm, Scalar::Float(f64::INFINITY))?;
        let (updates, advances) = match finite {
            None => (good, good),
            Some(finite) => {
                let left_out = b.not(finite)?;
                (b.and(good, finite)?, b.or(good, left_out)?)
            }
        };
        self.keep = Some(updates);
        for n in 0..self.graph.outputs.len() {
            let Some((new, old)) = self.advanced(n) else { continue };
            let guarded = self.builder("guard").select(advances, new, old)?;
            self.graph.outputs[n].arg = Arg::Value(guarded);
        }
        Ok(())
    }

    /// The new and the old value of the program's buffer that output `n` is a new value of.
    fn advanced(&self, n: usize) -> Option<(ValueId, ValueId)> {
        let Output { kind: OutputKind::BufferMutation(name), arg: Arg::Value(new) } = &self.graph.outputs[n]
        else {
            return None;
        };
        let kept = |kind: InputKind| !matches!(kind, InputKind::User | InputKind::Seed);
        let (old, _, _) = self.graph.inputs().find(|(_, kind, other)| kept(*kind) && other == name)?;
        Some((*new, old))
    }

    /// Clips the gradients; returns the norm of all of them where that is used for clipping.
    fn clip(&mut self, clip: Option<Clip>, gradients: &mut [ValueId]) -> Result<Option<ValueId>, OpError> {
        match clip {
            None => Ok(None),
            Some(Clip::Value(limit)) => {
                let mut b = self.builder("clip");
                for g in gradients {
                    let low = b.maximum(*g, Scalar::Float(-limit))?;
                    *g = b.minimum(low, Scalar::Float(limit))?;
                }
                Ok(None)
            }
            Some(Clip::Norm { max, .. }) => self.clip_norm(max, gradients),
        }
    }

    /// `torch.nn.utils.clip_grad_norm_` with the 2-norm.
    fn clip_norm(&mut self, max: f64, gradients: &mut [ValueId]) -> Result<Option<ValueId>, OpError> {
        let mut b = self.builder("clip");
        let mut sum = None;
        for &g in gradients.iter() {
            let norm = b.call1("aten.linalg_vector_norm.default", vec![g.into()])?;
            let norm = if b.dtype(norm)? == DType::F64 { norm } else { b.cast(norm, DType::F32)? };
            let norm = match sum {
                Some(sum) if b.dtype(sum)? != b.dtype(norm)? => b.cast(norm, b.dtype(sum)?)?,
                _ => norm,
            };
            let square = b.mul(norm, norm)?;
            sum = Some(match sum {
                None => square,
                Some(sum) => b.add(sum, square)?,
            });
        }
        let Some(sum) = sum else { return Ok(None) };
        let norm = b.sqrt(sum)?;
        let above = b.add(norm, Scalar::Float(1e-6))?;
        let factor = b.full(&[], Scalar::Float(max), b.dtype(norm)?)?;
        let factor = b.div(factor, above)?;
        let factor = b.minimum(factor, Scalar::Float(1.0))?;
        for g in gradients {
            let dtype = b.dtype(*g)?;
            let wide = b.cast(*g, dtype.compute())?;
            let own = b.cast(factor, dtype.compute())?;
            let clipped = b.mul(wide, own)?;
            *g = b.cast(clipped, dtype)?;
        }
        Ok(Some(norm))
    }

    /// The update of one parameter, which keeps its value if the step must not change anything.
    fn parameter(&mut self, optimizer: &Optimizer, t: &Trained, gradient: ValueId) -> Result<(), OpError> {
        let compute = t.dtype.compute();
        let names = optimizer.numbers(0.0, 1);
        let numbers: Vec<(&str, ValueId)> =
            names.iter().map(|(n, _)| (*n, self.number(n, compute))).collect();
        let meta = self.graph.meta(t.value).cloned();
        let mut state = vec![(t.name.clone(), t.value)];
        for slot in optimizer.slots() {
            // Row-major, whatever the parameter's strides are.
            let meta = meta.as_ref().map(|m| TensorMeta::contiguous(t.dtype, m.sizes.iter().cloned()));
            let Some(meta) = meta else { continue };
            let name = slot_name(slot, &t.name);
            let value = self.placeholder(InputKind::Buffer { persistent: true }, &name, meta.clone());
            self.slots.push(Slot { name: name.clone(), parameter: t.name.clone(), meta });
            state.push((name, value));
        }
        let olds: Vec<ValueId> = state.iter().map(|(_, v)| *v).collect();
        let lookup = |name: &str| numbers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let mut b = self.builder(optimizer.name());
        let news =
            optimizer.update(&mut Math::new(&mut b, t.dtype, &lookup), t.value, gradient, &olds[1..])?;
        for ((name, old), new) in state.into_iter().zip(news) {
            let new = match self.keep {
                Some(keep) => self.builder("guard").select(keep, new, old)?,
                None => new,
            };
            let kind = OutputKind::BufferMutation(name);
            self.graph.outputs.push(Output { kind, arg: Arg::Value(new) });
        }
        Ok(())
    }
}
