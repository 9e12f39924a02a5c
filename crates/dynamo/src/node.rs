//! Recorded tensors: a directed graph of calls that share their operands. Nodes never change, except that results are stored
//! in them once they are computed; operands are released then, unless a gradient may need them. Not here: variables, which
//! change ([`crate::Cell`]).

use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fx_ir::Arg;
use ir_core::{DType, Scalar, SymExpr, TensorMeta};
use prims::Op;
use smallvec::SmallVec;
use tensor::Tensor;

use crate::body::Body;
use crate::{Cell, Size, frame};

/// dtype and sizes of a recorded tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// Element type.
    pub dtype: DType,
    /// Number of elements of each dimension.
    pub sizes: SmallVec<[i64; 4]>,
}

impl Meta {
    /// That of a tensor with data.
    pub fn of(tensor: &Tensor) -> Meta {
        Meta { dtype: tensor.dtype(), sizes: tensor.sizes().iter().map(|&s| s as i64).collect() }
    }
    /// As a graph states it: row-major, on the host.
    pub fn to_meta(&self) -> TensorMeta {
        TensorMeta::contiguous(self.dtype, self.sizes.iter().map(|&s| SymExpr::from_i64(s)))
    }
}

/// A recorded tensor: one result of a call. Cheap to clone.
#[derive(Clone)]
pub struct Value {
    pub(crate) call: Arc<Call>,
    pub(crate) out: u32,
}

/// An argument of a recorded call.
#[derive(Clone)]
pub enum Operand {
    /// A tensor.
    Value(Value),
    /// A list, whose items may be of any kind.
    List(Vec<Operand>),
    /// A size, which may be symbolic in the function that is captured.
    Size(Size),
    /// Anything else.
    Arg(Arg),
}

impl Operand {
    /// Calls `visit` for every tensor, lists included.
    pub(crate) fn for_each_value<'a>(&'a self, visit: &mut dyn FnMut(&'a Value)) {
        match self {
            Operand::Value(v) => visit(v),
            Operand::List(items) => items.iter().for_each(|item| item.for_each_value(visit)),
            Operand::Size(_) | Operand::Arg(_) => {}
        }
    }

    /// The number, where it is a float that stands by itself.
    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Operand::Arg(Arg::Scalar(Scalar::Float(x))) => Some(*x),
            _ => None,
        }
    }

    /// The same with numbers in place of symbolic sizes.
    pub(crate) fn concrete(self) -> Operand {
        match self {
            Operand::Size(size) => Operand::Arg(Arg::int(size.hint())),
            Operand::List(items) => Operand::List(items.into_iter().map(Operand::concrete).collect()),
            other => other,
        }
    }

    /// As an argument of a graph, tensors by `value`, sizes by `size`.
    pub(crate) fn to_arg<E>(
        &self,
        value: &mut dyn FnMut(&Value) -> Result<fx_ir::ValueId, E>,
        size: &dyn Fn(&Size) -> SymExpr,
    ) -> Result<Arg, E> {
        Ok(match self {
            Operand::Value(v) => Arg::Value(value(v)?),
            Operand::Size(s) => Arg::Int(size(s)),
            Operand::Arg(arg) => arg.clone(),
            Operand::List(items) => {
                Arg::List(items.iter().map(|item| item.to_arg(value, size)).collect::<Result<_, E>>()?)
            }
        })
    }
}

/// What a node computes.
pub(crate) enum Kind {
    /// Nothing: its tensors are given.
    Data,
    /// Another value. With a slot it is a variable to differentiate with respect to, and the slot is where its gradient is
    /// accumulated. One that is not tracked is detached from what it was computed from.
    Alias { of: Value, slot: Option<Arc<Cell>> },
    /// An operator of the table; `key` seeds the random numbers that it draws.
    Operator { op: &'static Op, key: Option<Value> },
    /// A graph of prims, inlined where it is used.
    Graph(Arc<Body>),
}

/// A recorded call.
pub(crate) struct Call {
    pub(crate) kind: Kind,
    /// None where there are none, or no more.
    operands: Mutex<Option<Arc<Vec<Operand>>>>,
    pub(crate) metas: Arc<[Meta]>,
    data: OnceLock<Box<[Tensor]>>,
    /// Whether a gradient flows through it to a variable.
    pub(crate) tracked: bool,
    /// The longest chain of calls that must run before its results are there.
    pub(crate) pending: u32,
    pub(crate) at: &'static Location<'static>,
}

impl Call {
    #[track_caller]
    pub(crate) fn new(
        kind: Kind,
        operands: Vec<Operand>,
        metas: impl Into<Arc<[Meta]>>,
        tracked: bool,
    ) -> Arc<Call> {
        let mut pending = 0u32;
        let mut count = |v: &Value| pending = pending.max(v.pending());
        operands.iter().for_each(|o| o.for_each_value(&mut count));
        if let Kind::Alias { of, .. } = &kind {
            count(of);
        }
        Arc::new(Call {
            kind,
            operands: Mutex::new((!operands.is_empty()).then(|| Arc::new(operands))),
            metas: metas.into(),
            data: OnceLock::new(),
            tracked,
            pending: pending.saturating_add(1),
            at: Location::caller(),
        })
    }

    /// Its operands; none once they are released.
    pub(crate) fn operands(&self) -> Arc<Vec<Operand>> {
        self.operands.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    pub(crate) fn is_computed(&self) -> bool {
        self.data.get().is_some()
    }

    /// Stores the results; of two threads that computed them the first counts.
    pub(crate) fn store(&self, results: Vec<Tensor>) {
        let _ = self.data.set(results.into());
        if !self.tracked {
            let released = self.operands.lock().unwrap_or_else(PoisonError::into_inner).take();
            // What they hold is released without the lock.
            drop(released);
        }
    }

    pub(crate) fn results(call: &Arc<Call>) -> Vec<Value> {
        (0..call.metas.len() as u32).map(|out| Value { call: Arc::clone(call), out }).collect()
    }
}

/// Long chains are released in a loop, not by recursion.
impl Drop for Call {
    fn drop(&mut self) {
        let mut left: SmallVec<[Arc<Vec<Operand>>; 4]> = self.take_operands().into_iter().collect();
        while let Some(operands) = left.pop() {
            // A shared list belongs to someone else too, who releases it.
            let mut list = Arc::into_inner(operands).unwrap_or_default();
            while let Some(operand) = list.pop() {
                match operand {
                    Operand::List(items) => list.extend(items),
                    Operand::Value(v) => {
                        if let Some(mut call) = Arc::into_inner(v.call) {
                            left.extend(call.take_operands());
                        }
                    }
                    Operand::Size(_) | Operand::Arg(_) => {}
                }
            }
        }
    }
}

impl Call {
    fn take_operands(&mut self) -> Option<Arc<Vec<Operand>>> {
        self.operands.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Value {
    /// A tensor with data.
    #[track_caller]
    pub fn of(tensor: Tensor) -> Value {
        let call = Call::new(Kind::Data, Vec::new(), [Meta::of(&tensor)], false);
        call.store(vec![tensor]);
        Value { call, out: 0 }
    }

    /// A variable with this value: gradients are accumulated in `slot`.
    #[track_caller]
    pub fn variable(of: Value, slot: Arc<Cell>) -> Value {
        let (meta, source) = (of.meta().clone(), of.clone());
        let kind = Kind::Alias { of, slot: Some(slot) };
        let new = Value { call: Call::new(kind, Vec::new(), [meta], true), out: 0 };
        frame::with(|frame| frame.alias(&new, &source, true));
        new
    }

    /// The same value, through which nothing is differentiated.
    #[track_caller]
    pub fn detached(&self) -> Value {
        let (of, meta) = (self.clone(), self.meta().clone());
        let kind = Kind::Alias { of, slot: None };
        let new = Value { call: Call::new(kind, Vec::new(), [meta], false), out: 0 };
        frame::with(|frame| frame.alias(&new, self, true));
        new
    }

    /// dtype and sizes.
    #[inline]
    pub fn meta(&self) -> &Meta {
        &self.call.metas[self.out as usize]
    }

    /// The computed tensor; `None` as long as it is only recorded.
    #[inline]
    pub fn data(&self) -> Option<&Tensor> {
        let own = self.resolved();
        own.call.data.get().and_then(|all| all.get(own.out as usize))
    }

    /// Whether a gradient flows through it to a variable.
    #[inline]
    pub fn is_tracked(&self) -> bool {
        self.call.tracked && self.meta().dtype.is_inexact()
    }

    /// Where its gradient is accumulated, if it is a variable.
    pub fn slot(&self) -> Option<&Arc<Cell>> {
        match &self.call.kind {
            Kind::Alias { slot, .. } => slot.as_ref(),
            _ => None,
        }
    }

    /// The longest chain of calls that must run before it is there; 0 once it is computed.
    pub fn pending(&self) -> u32 {
        if self.call.is_computed() { 0 } else { self.call.pending }
    }

    /// Whether two are the same result of the same call.
    pub fn is(&self, other: &Value) -> bool {
        self.id() == other.id()
    }

    /// The value behind aliases through which gradients flow.
    pub(crate) fn with_history(&self) -> &Value {
        let mut value = self;
        while let Kind::Alias { of, slot: None } = &value.call.kind {
            if !value.call.tracked {
                break;
            }
            value = of;
        }
        value
    }

    /// What two aliases of a value share.
    #[inline]
    pub(crate) fn resolved(&self) -> &Value {
        let mut value = self;
        while let Kind::Alias { of, .. } = &value.call.kind {
            value = of;
        }
        value
    }

    pub(crate) fn id(&self) -> (*const Call, u32) {
        (Arc::as_ptr(&self.call), self.out)
    }
}
