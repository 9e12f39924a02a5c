//! Batch and instance normalisation in training mode write their running statistics although their schemas do not declare
//! it (they are composites that hide it). The functional form returns the statistics.

use fx_ir::{Arg, Node, OriginId, ValueId, ValueType};
use ir_core::{Scalar, SymExpr, TensorMeta};

use super::{Binding, FunctionalizeProblem, Pass, Step};

/// Returns `(output, saved mean, saved 1/std, running mean, running variance)`.
const FUNCTIONAL: &str = "aten._native_batch_norm_legit_functional.default";

/// Operators with arguments `(input, weight, bias, running_mean, running_var, training, momentum, eps, …)`.
pub(super) fn is_norm(target: &str) -> bool {
    matches!(
        target,
        "aten.batch_norm.default"
            | "aten.native_batch_norm.default"
            | "aten.cudnn_batch_norm.default"
            | "aten._native_batch_norm_legit.default"
            | "aten.instance_norm.default"
    )
}

/// Whether the call writes running statistics: it is in training mode and has them.
pub(super) fn mutates(target: &str, args: &[Arg]) -> bool {
    let training = args.get(5).and_then(Arg::as_scalar).is_some_and(Scalar::as_bool);
    let tracked = args.get(3..5).is_some_and(|stats| stats.iter().all(|s| matches!(s, Arg::Value(_))));
    is_norm(target) && training && tracked
}

impl Pass<'_> {
    /// The call in its functional form; the running statistics are written.
    pub(super) fn batch_norm(&mut self, node: &Node, target: &str, args: &[Arg]) -> Step<()> {
        let (Some(input), Some(mean), Some(var)) =
            (self.viewed(args), self.viewed(&args[3..]), self.viewed(&args[4..]))
        else {
            return Err(FunctionalizeProblem::NoOperand);
        };
        let new_args = self.read_args(args.get(..8).unwrap_or(args))?;
        let metas = [input, mean, var].map(|v| self.storages.view(v).meta.clone());
        let name = node.outputs.first().map_or("batch_norm", |&v| self.old.values[v].name.as_str());
        let outs = match target {
            "aten.instance_norm.default" => self.instance_norm(name, new_args, &metas, node.origin),
            _ => self.functional_norm(name, new_args, &metas, node.origin),
        };
        self.write(mean, outs[3], node.origin)?;
        self.write(var, outs[4], node.origin)?;
        for (&old, &new) in node.outputs.iter().zip(&outs[..3]) {
            if let Some(meta) = self.old.meta(old) {
                let name = &self.old.values[old].name;
                // The saved statistics of a 16-bit input may be 16-bit themselves (`native_batch_norm` on a CPU).
                let new = self.cast(new, meta, name, node.origin);
                let view = self.storages.add(new, meta.clone(), name, None);
                self.bindings[old] = Some(Binding::View(view));
            }
        }
        Ok(())
    }

    /// Output, saved mean and 1/std, running mean and variance; `metas` are those of input, running mean and variance.
    fn functional_norm(
        &mut self,
        name: &str,
        args: Vec<Arg>,
        metas: &[TensorMeta; 3],
        origin: OriginId,
    ) -> [ValueId; 5] {
        let [input, mean, var] = metas;
        // The functional form computes the statistics of 16-bit inputs in float32.
        let saved = TensorMeta::contiguous(input.dtype.compute(), input.sizes.get(1).cloned());
        let saved = TensorMeta { device: input.device.clone(), ..saved };
        let names = [name, "saved_mean", "saved_rstd", "running_mean", "running_var"];
        let metas = [input.clone(), saved.clone(), saved, mean.clone(), var.clone()].map(ValueType::Tensor);
        let outs = self.out.call(FUNCTIONAL, args, names.into_iter().zip(metas), origin);
        std::array::from_fn(|n| outs[n])
    }

    /// Instance normalisation is batch normalisation of `[1, N*C, …]`, whose statistics are the mean over `N` of every
    /// instance's (ATen's own definition).
    fn instance_norm(
        &mut self,
        name: &str,
        args: Vec<Arg>,
        metas: &[TensorMeta; 3],
        origin: OriginId,
    ) -> [ValueId; 5] {
        let [input, mean, var] = metas;
        let (n, c) = match &input.sizes[..] {
            [n, c, ..] => (n.clone(), c.clone()),
            _ => (SymExpr::ONE, SymExpr::ONE),
        };
        let mut flat = vec![SymExpr::ONE, n.clone() * &c];
        flat.extend(input.sizes.iter().skip(2).cloned());
        let flat = input.with_sizes(flat);
        let mut flat_args = vec![self.reshaped(name, args[0].clone(), &flat, origin).into()];
        for arg in &args[1..5] {
            flat_args.push(match arg {
                Arg::Value(v) => {
                    let meta = self.out.meta(*v).unwrap_or(mean).with_sizes([n.clone() * &c]);
                    let repeat = vec![arg.clone(), Arg::List(vec![n.clone().into()])];
                    self.one("aten.repeat.default", repeat, name, meta, origin).into()
                }
                absent => absent.clone(),
            });
        }
        flat_args.extend_from_slice(&args[5..]);
        let repeated = [mean, var].map(|m| m.with_sizes([n.clone() * &c]));
        let [mean_n, var_n] = repeated;
        // Its first dimension is no batch, which passes tell by the operator that it comes from.
        let mut own = self.out.origins[origin].clone();
        own.operator = "aten.instance_norm.default".into();
        let own = self.out.add_origin(own);
        let outs = self.functional_norm(name, flat_args, &[flat, mean_n, var_n], own);
        let mut averaged = [outs[3], outs[4]];
        for (value, meta) in averaged.iter_mut().zip([mean, var]) {
            let table =
                self.reshaped(name, (*value).into(), &meta.with_sizes([n.clone(), c.clone()]), origin);
            let dims: &[i64] = &[0];
            let args = vec![table.into(), dims.into(), false.into(), Arg::None];
            *value = self.one("aten.mean.dim", args, "running", meta.clone(), origin);
        }
        let out = self.reshaped(name, outs[0].into(), input, origin);
        [out, outs[1], outs[2], averaged[0], averaged[1]]
    }

    fn reshaped(&mut self, name: &str, value: Arg, meta: &TensorMeta, origin: OriginId) -> ValueId {
        let sizes = Arg::ints(&meta.sizes);
        self.one("aten.reshape.default", vec![value, sizes], name, meta.clone(), origin)
    }

    fn one(
        &mut self,
        target: &str,
        args: Vec<Arg>,
        name: &str,
        meta: TensorMeta,
        origin: OriginId,
    ) -> ValueId {
        self.out.call(target, args, [(name, ValueType::Tensor(meta))], origin)[0]
    }
}
