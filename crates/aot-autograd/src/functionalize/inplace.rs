//! In-place operators: they are replaced by their out-of-place counterparts by PyTorch's naming rule, so that none has an
//! entry of its own.

use fx_ir::{Arg, Graph, Node, NodeId, OriginId, ValueId, ValueType};
use ir_core::{DType, TensorMeta};
use prims::Builder;

use super::{Binding, FunctionalizeProblem, Pass, Step, views};

/// Names that PyTorch's rule (`relu_` writes back `relu`) does not derive.
const IRREGULAR: &[(&str, &str)] = &[
    ("aten.normal_.default", "aten.normal_functional.default"),
    ("aten.bernoulli_.float", "aten.bernoulli.p"),
];

/// Whether the operator writes an operand: by its name, or by its schema in the operator table (`Tensor(a!)`).
pub(super) fn mutates(target: &str) -> bool {
    counterpart(target).is_some() || prims::lookup(target).is_some_and(|op| op.schema.mutates())
}

/// The out-of-place counterpart of an in-place operator; `None` for any other operator.
///
/// `aten.relu_.default` gives `aten.relu.default`, `aten.__iadd__.Tensor` gives `aten.__add__.Tensor`.
pub(super) fn counterpart(target: &str) -> Option<String> {
    if let Some((_, to)) = IRREGULAR.iter().find(|(from, _)| *from == target) {
        return Some(to.to_string());
    }
    let mut parts = target.splitn(3, '.');
    let (namespace, name, overload) = (parts.next()?, parts.next()?, parts.next().unwrap_or("default"));
    if matches!(namespace, "prims" | "higher_order" | "operator" | "_operator" | "math") {
        return None;
    }
    let base = match name.strip_prefix("__i").filter(|n| n.ends_with("__")) {
        // `__iand__`, but not `__int__` or `__index__`.
        Some(rest)
            if matches!(
                rest,
                "add__" | "sub__" | "mul__" | "and__" | "or__" | "xor__" | "lshift__" | "rshift__"
            ) =>
        {
            format!("__{rest}")
        }
        _ if name.ends_with("__") => return None,
        _ if is_out_variant(target) => name.to_string(),
        _ => name.strip_suffix('_').filter(|base| !base.is_empty())?.to_string(),
    };
    Some(format!("{namespace}.{base}.{overload}"))
}

/// The operator that returns the operands that this one writes, after its own results: by ATen's naming rule
/// `_batch_norm_with_update` has `_batch_norm_with_update_functional`. That of an in-place operator returns the new value
/// of its first operand.
pub(super) fn returning_form(target: &str) -> Option<(&'static prims::Op, &'static prims::Op)> {
    let op = prims::lookup(target).filter(|op| op.schema.mutates())?;
    let mut parts = target.splitn(3, '.');
    let (namespace, name, overload) = (parts.next()?, parts.next()?, parts.next()?);
    let name = name.trim_end_matches('_');
    Some((op, prims::lookup(&format!("{namespace}.{name}_functional.{overload}"))?))
}

/// Whether the operator writes to an operand `out`.
pub(super) fn is_out_variant(target: &str) -> bool {
    let overload = target.splitn(3, '.').nth(2).unwrap_or("");
    target.starts_with("aten.") && (overload == "out" || overload.ends_with("_out"))
}

impl Pass<'_> {
    /// A call that writes operands which it does not return becomes its functional form, whose last results are the
    /// operands'
    /// new values in schema order.
    pub(super) fn returning(
        &mut self,
        node: &Node,
        form: (&'static prims::Op, &'static prims::Op),
        args: &[Arg],
    ) -> Step<()> {
        let (op, functional) = form;
        let written = op
            .schema
            .args
            .iter()
            .zip(args)
            .filter(|(a, _)| a.alias.as_ref().is_some_and(|(_, write)| *write));
        let mut views: Vec<_> =
            written.filter_map(|(_, arg)| self.viewed(std::slice::from_ref(arg))).collect();
        let result_of =
            if op.schema.name.ends_with('_') && !views.is_empty() { Some(views.remove(0)) } else { None };
        let new_args = self.read_args(args)?;
        // Only the batch norms have such a form; they keep the statistics of 16-bit inputs in float32.
        let computed = |n: usize, ty: &ValueType| match ty {
            ValueType::Tensor(m) if n > 0 => ValueType::Tensor(m.with_dtype(m.dtype.compute())),
            other => other.clone(),
        };
        let olds = node.outputs.iter().map(|&v| &self.old.values[v]).enumerate();
        let results = olds.map(|(n, value)| (value.name.as_str(), computed(n, &value.ty)));
        let metas = views.iter().map(|v| ValueType::Tensor(self.storages.view(*v).meta.clone()));
        let types: Vec<_> = results.chain(metas.map(|m| ("written", m))).collect();
        let outs = self.out.call(functional.target.as_str(), new_args, types, node.origin);
        let (results, values) = outs.split_at(node.outputs.len());
        for (&view, &value) in views.iter().zip(values) {
            self.write(view, value, node.origin)?;
        }
        if let (Some(view), [result]) = (result_of, results) {
            self.write(view, *result, node.origin)?;
            node.outputs.iter().for_each(|&v| self.bindings[v] = Some(Binding::View(view)));
            return Ok(());
        }
        for (&old, &new) in node.outputs.iter().zip(results) {
            self.bindings[old] = Some(match self.old.meta(old) {
                Some(meta) => {
                    let name = &self.old.values[old].name;
                    let new = self.cast(new, meta, name, node.origin);
                    Binding::View(self.storages.add(new, meta.clone(), name, None))
                }
                None => Binding::Plain(new),
            });
        }
        Ok(())
    }

    /// `x.op_(…)`: the counterpart's result is the new value of `x`, and the call's result is `x`.
    pub(super) fn in_place(&mut self, id: NodeId, node: &Node, functional: &str, args: &[Arg]) -> Step<()> {
        if let Some(Arg::List(items)) = args.first() {
            return self.in_place_list(node, functional, args, items);
        }
        let Some(view) = self.viewed(args) else { return Err(FunctionalizeProblem::NoOperand) };
        let new_args = self.read_args(args)?;
        let meta = self.storages.view(view).meta.clone();
        let out_meta = node.outputs.first().and_then(|&v| self.old.meta(v)).unwrap_or(&meta).clone();
        // `detach_`, `squeeze_`, `transpose_` change the metadata of the tensor and no element.
        let rule = views::view_rule(functional, &new_args, &meta, &[&out_meta], 0);
        let name = functional.split('.').nth(1).unwrap_or(functional).to_string();
        if let Some(rule) = rule {
            let now = self.derive(view, rule, None, &out_meta, (self.old.node_name(id), node.origin))?;
            // All names of the tensor change with it: `y = x.relu_(); x.squeeze_()` squeezes `y`.
            for (_, binding) in self.bindings.iter_mut() {
                if matches!(binding, Some(Binding::View(v)) if *v == view) {
                    *binding = Some(Binding::View(now));
                }
            }
            node.outputs.iter().take(1).for_each(|&v| self.bindings[v] = Some(Binding::View(now)));
            return Ok(());
        }
        if out_meta.sizes != meta.sizes {
            return Err(FunctionalizeProblem::Resized);
        }
        let new = self.new_value(functional, &name, new_args, &meta, node.origin);
        self.write(view, new, node.origin)?;
        node.outputs.iter().take(1).for_each(|&v| self.bindings[v] = Some(Binding::View(view)));
        Ok(())
    }

    /// `_foreach_add_(tensors, …)`: one result a tensor, each written back.
    fn in_place_list(&mut self, node: &Node, functional: &str, args: &[Arg], items: &[Arg]) -> Step<()> {
        let mut written = Vec::new();
        for item in items {
            written.push(self.viewed(std::slice::from_ref(item)).ok_or(FunctionalizeProblem::NoOperand)?);
        }
        let new_args = self.read_args(args)?;
        let name = functional.split('.').nth(1).unwrap_or(functional);
        let types: Vec<ValueType> =
            written.iter().map(|&v| ValueType::Tensor(self.storages.view(v).meta.clone())).collect();
        let outs = self.out.call(functional, new_args, types.into_iter().map(|t| (name, t)), node.origin);
        for (&view, &new) in written.iter().zip(&outs) {
            self.write(view, new, node.origin)?;
        }
        for (&old, &view) in node.outputs.iter().zip(&written) {
            self.bindings[old] = Some(Binding::View(view));
        }
        Ok(())
    }

    /// Calls the counterpart; its result is converted to the written tensor's dtype where promotion gave another.
    fn new_value(
        &mut self,
        functional: &str,
        name: &str,
        args: Vec<Arg>,
        meta: &TensorMeta,
        origin: OriginId,
    ) -> ValueId {
        let dtype = result_dtype(&self.out, functional, &args).unwrap_or(meta.dtype);
        let ty = ValueType::Tensor(TensorMeta { dtype, ..meta.clone() });
        let new = self.out.call(functional, args, [(name, ty)], origin)[0];
        self.cast(new, meta, name, origin)
    }

    /// The value with the dtype of `meta`; itself where it has it.
    pub(super) fn cast(
        &mut self,
        value: ValueId,
        meta: &TensorMeta,
        name: &str,
        origin: OriginId,
    ) -> ValueId {
        let Some(now) = self.out.meta(value).filter(|m| m.dtype != meta.dtype) else { return value };
        let ty = ValueType::Tensor(now.with_dtype(meta.dtype));
        let args = vec![value.into(), meta.dtype.into(), false.into(), false.into(), Arg::None];
        self.out.call("aten.to.dtype", args, [(name, ty)], origin)[0]
    }
}

/// The dtype by the operator's own rules: the call is built in a scratch graph, whose types the table infers.
/// `None` where the table does not know the operator or refuses the call (`prims::decompose` will report it).
fn result_dtype(graph: &Graph, target: &str, args: &[Arg]) -> Option<DType> {
    let mut scratch = Graph::new("scratch");
    scratch.share_symbols(graph);
    let mut args = args.to_vec();
    for arg in &mut args {
        arg.for_each_value_mut(&mut |v| {
            let ty = graph.values.get(*v).map_or(ValueType::None, |value| value.ty.clone());
            *v = scratch.placeholder(fx_ir::InputKind::User, "operand", "operand", ty);
        });
    }
    let mut builder = Builder::new(&mut scratch, "scratch", OriginId(0));
    let outs = prims::decompose_call(&mut builder, target, args).ok()?;
    scratch.meta(*outs.first()?).map(|m| m.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_pytorchs_rule() {
        let check =
            |target: &str, expected: Option<&str>| assert_eq!(counterpart(target).as_deref(), expected);
        check("aten.relu_.default", Some("aten.relu.default"));
        check("aten._index_put_impl_.default", Some("aten._index_put_impl.default"));
        check("aten.__iand__.Tensor", Some("aten.__and__.Tensor"));
        check("aten.normal_.default", Some("aten.normal_functional.default"));
        check("aten.__and__.Tensor", None);
        check("aten.add.Tensor", None);
        check("higher_order.cond", None);
        assert!(is_out_variant("aten.add.out") && !is_out_variant("aten.add.Tensor"));
        assert!(mutates("aten.add.out"));
    }
}
