//! The types of the results of a call on numeric sizes, by the operator's own rules: it is decomposed into a graph that is
//! thrown away. Remembered by operator, arguments and types of operands.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fx_ir::{Graph, InputKind, OriginId, ValueId, ValueType};
use ir_core::TensorMeta;
use prims::{Builder, Op, OpError};

use crate::Lru;
use crate::key::Key;
use crate::node::{Meta, Operand, Value};

/// What is known of a call's results.
#[derive(Clone, Debug)]
pub(crate) struct Inferred {
    /// Types of the results; `None` where one is not a tensor, or there are none. A size that only the running program
    /// determines is 0.
    pub(crate) metas: Option<Arc<[Meta]>>,
    /// Whether it draws random numbers.
    pub(crate) random: bool,
    /// Whether all sizes are known before it runs.
    pub(crate) known: bool,
}

/// Calls whose types are remembered.
const REMEMBERED: usize = 4096;

/// The types of a call's results.
///
/// # Errors
/// The operator refuses the call.
pub(crate) fn infer(op: &'static Op, operands: &[Operand]) -> Result<Arc<Inferred>, OpError> {
    static MEMO: OnceLock<Mutex<Lru<Key, Arc<Inferred>>>> = OnceLock::new();
    let memo = MEMO.get_or_init(|| Mutex::new(Lru::new(REMEMBERED)));
    let mut key = Key::with_room(8 * operands.len());
    key.op(op);
    operands.iter().for_each(|o| key.operand(o, &mut |key, v| key.meta(v.meta())));
    if let Some(found) = memo.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(found);
    }
    let found = Arc::new(decomposed(op, operands)?);
    memo.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&found));
    Ok(found)
}

fn decomposed(op: &'static Op, operands: &[Operand]) -> Result<Inferred, OpError> {
    let mut graph = Graph::new("types");
    let mut args = Vec::with_capacity(operands.len());
    for operand in operands {
        let value = &mut |v: &Value| {
            let ty = ValueType::Tensor(v.meta().to_meta());
            Ok::<ValueId, OpError>(graph.placeholder(InputKind::User, "x", "x", ty))
        };
        args.push(operand.to_arg(value, &|size| size.hint().into())?);
    }
    let outs = Builder::new(&mut graph, crate::body::short_name(op), OriginId(0)).call_op(op, args)?;
    let metas: Vec<Option<&TensorMeta>> = outs.iter().map(|v| graph.meta(*v)).collect();
    let known = metas.iter().flatten().all(|m| m.static_sizes().is_some());
    let numbers = |m: &TensorMeta| Meta {
        dtype: m.dtype,
        sizes: m.sizes.iter().map(|s| s.as_const().unwrap_or(0)).collect(),
    };
    let metas: Option<Arc<[Meta]>> = metas.into_iter().map(|m| m.map(numbers)).collect();
    Ok(Inferred { metas: metas.filter(|m| !m.is_empty()), random: graph.seed().is_some(), known })
}
