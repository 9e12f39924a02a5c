//! Batch normalisation in training mode writes its running statistics although its schema does not say so (`batch_norm`
//! is a composite that hides it). Its functional form returns them.

use fx_ir::{Arg, Node, ValueType};
use ir_core::{Scalar, TensorMeta};

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
        if target == "aten.instance_norm.default" {
            return Err(FunctionalizeProblem::RunningStatistics);
        }
        let (Some(input), Some(mean), Some(var)) =
            (self.viewed(args), self.viewed(&args[3..]), self.viewed(&args[4..]))
        else {
            return Err(FunctionalizeProblem::NoOperand);
        };
        let new_args = self.read_args(args.get(..8).unwrap_or(args), node.origin)?;
        let [input, mean_meta, var_meta] = [input, mean, var].map(|v| self.storages.view(v).meta.clone());
        let first = node.outputs.first().map_or("batch_norm", |&v| self.old.values[v].name.as_str());
        let out = node.outputs.first().and_then(|&v| self.old.meta(v)).unwrap_or(&input).clone();
        // Statistics of 16-bit inputs are kept in float32.
        let saved = TensorMeta::contiguous(input.dtype.compute(), input.sizes.get(1).cloned());
        let saved = TensorMeta { device: input.device.clone(), ..saved };
        let names = [first, "saved_mean", "saved_rstd", "running_mean", "running_var"];
        let metas = [out, saved.clone(), saved, mean_meta, var_meta];
        let types = names.into_iter().zip(metas.into_iter().map(ValueType::Tensor));
        let outs = self.out.call(FUNCTIONAL, new_args, types, node.origin);
        self.write(mean, outs[3], node.origin)?;
        self.write(var, outs[4], node.origin)?;
        for (&old, &new) in node.outputs.iter().zip(&outs[..3]) {
            if let Some(meta) = self.old.meta(old) {
                let view = self.storages.add(new, meta.clone(), &self.old.values[old].name, None);
                self.bindings[old] = Some(Binding::View(view));
            }
        }
        Ok(())
    }
}
