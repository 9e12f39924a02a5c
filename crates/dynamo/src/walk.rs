//! The recorded calls that values depend on, in an order in which they can run. What is a leaf is the caller's decision:
//! pieces end where data is, histories of gradients at variables.

use std::sync::Arc;

use crate::body::{self, Outs};
use crate::key::Key;
use crate::node::{Call, Kind, Operand, Value};
use crate::places::Places;
use fx_ir::{Arg, Graph, InputKind, OriginId, Symbol, ValueId, ValueType};
use ir_core::{DType, EntityId, Scalar, SymExpr, TensorMeta};
use prims::{Op, OpError};

type Id = (*const Call, u32);

/// Calls, and the values at which they begin.
pub(crate) struct Walk {
    /// In an order in which they can run.
    pub(crate) calls: Vec<Arc<Call>>,
    /// Those of each call, which reading takes a lock for.
    operands: Vec<Arc<Vec<Operand>>>,
    pub(crate) leaves: Vec<Value>,
    place: Places<*const Call>,
    leaf: Places<Id>,
    /// For every call how many operands of the others are its results.
    pub(crate) uses: Vec<usize>,
    ends: fn(&Value) -> bool,
    /// The value that stands for another one.
    same: fn(&Value) -> &Value,
}

impl Walk {
    /// From `roots` to the values for which `ends` holds; `same` looks through aliases.
    pub(crate) fn new(roots: &[Value], ends: fn(&Value) -> bool, same: fn(&Value) -> &Value) -> Walk {
        let mut walk = Walk {
            calls: Vec::new(),
            operands: Vec::new(),
            leaves: Vec::new(),
            place: Places::default(),
            leaf: Places::default(),
            uses: Vec::new(),
            ends,
            same,
        };
        roots.iter().for_each(|root| walk.visit(root));
        for operands in &walk.operands {
            let mut count = |v: &Value| {
                // What is read through an alias is held by the alias, which the program may hold too.
                if let Some(at) = walk.place.get(&Arc::as_ptr(&v.call)) {
                    walk.uses[at] += 1;
                }
            };
            operands.iter().for_each(|o| o.for_each_value(&mut count));
        }
        walk
    }

    /// Depth first, without recursion: chains may be long.
    fn visit(&mut self, root: &Value) {
        enum Task {
            Enter(Value),
            Leave(Arc<Call>, Arc<Vec<Operand>>),
        }
        let mut tasks = vec![Task::Enter(root.clone())];
        while let Some(task) = tasks.pop() {
            let value = match task {
                Task::Leave(call, operands) => {
                    let at = self.calls.len();
                    if self.place.insert(Arc::as_ptr(&call), at) == Some(usize::MAX) {
                        self.calls.push(call);
                        self.operands.push(operands);
                        self.uses.push(0);
                    }
                    continue;
                }
                Task::Enter(value) => (self.same)(&value).clone(),
            };
            if (self.ends)(&value) {
                if self.leaf.get(&value.id()).is_none() {
                    self.leaf.insert(value.id(), self.leaves.len());
                    self.leaves.push(value);
                }
                continue;
            }
            let address = Arc::as_ptr(&value.call);
            if self.place.get(&address).is_some() {
                continue;
            }
            // Marks it as entered; the place follows when its operands are there.
            self.place.insert(address, usize::MAX);
            let call = Arc::clone(&value.call);
            let operands = call.operands();
            let key = match &call.kind {
                Kind::Operator { key, .. } => key.clone(),
                _ => None,
            };
            tasks.push(Task::Leave(call, Arc::clone(&operands)));
            let first = tasks.len();
            tasks.extend(key.map(Task::Enter));
            operands.iter().for_each(|o| o.for_each_value(&mut |v| tasks.push(Task::Enter(v.clone()))));
            // The first operand is entered first.
            tasks[first..].reverse();
        }
    }

    /// The calls and the types of the leaves, for finding the same computation again.
    pub(crate) fn key(&self) -> Key {
        let mut key = Key::with_room(8 * (self.leaves.len() + self.calls.len()));
        self.leaves.iter().for_each(|leaf| key.meta(leaf.meta()));
        self.structure(key, false)
    }

    /// As [`key`](Walk::key), of leaves of any sizes, and of any floats where asked for.
    pub(crate) fn class(&self, any_float: bool) -> Key {
        let mut key = Key::default();
        self.leaves.iter().for_each(|leaf| key.class(leaf.meta()));
        self.structure(key, any_float)
    }

    /// The floats among the arguments of operators, in the order of the calls.
    pub(crate) fn floats(&self) -> Vec<f64> {
        let operators = self.each_call().filter(|(c, _)| matches!(c.kind, Kind::Operator { .. }));
        operators.flat_map(|(_, operands)| operands.iter().filter_map(Operand::as_float)).collect()
    }

    /// The calls with their operands.
    fn each_call(&self) -> impl Iterator<Item = (&Arc<Call>, &[Operand])> {
        self.calls.iter().zip(self.operands.iter().map(|list| &list[..]))
    }

    fn structure(&self, mut key: Key, any_float: bool) -> Key {
        key.number(self.leaves.len() as u64);
        for (call, operands) in self.each_call() {
            key.kind(&call.kind);
            if let Kind::Operator { key: Some(own), .. } = &call.kind {
                self.reference(&mut key, own);
            }
            let any_float = any_float && matches!(call.kind, Kind::Operator { .. });
            let put = if any_float { Key::operand_class } else { Key::operand };
            for operand in operands {
                put(&mut key, operand, &mut |key, v| self.reference(key, v));
            }
        }
        key
    }

    /// The number of a value within the walk.
    fn reference(&self, key: &mut Key, v: &Value) {
        let v = (self.same)(v);
        match (self.leaf.get(&v.id()), self.place.get(&Arc::as_ptr(&v.call))) {
            (Some(leaf), _) => key.number(leaf as u64),
            (None, Some(place)) => {
                key.number((1 << 40) + place as u64);
                key.number(v.out.into());
            }
            (None, None) => key.number(u64::MAX),
        }
    }

    /// The number of a call; `None` where it is not among them.
    pub(crate) fn place_of(&self, value: &Value) -> Option<usize> {
        self.place.get(&Arc::as_ptr(&(self.same)(value).call))
    }

    /// The calls as a graph of prims whose placeholders are the leaves; also the results of every call. Dimensions of leaves
    /// for which `symbolic` holds (number of the leaf, dimension) are symbols. Floats for which `given` holds (their number among
    /// [`floats`](Walk::floats)) are further placeholders without dimensions, of the results' dtype, where the operator takes them so.
    ///
    /// # Errors
    /// An operator refuses a call, which recording would have found.
    pub(crate) fn graph(
        &self,
        name: &str,
        symbolic: &dyn Fn(usize, usize) -> bool,
        given: &dyn Fn(usize) -> bool,
    ) -> Result<Made, OpError> {
        let mut graph = Graph::new(name);
        let mut leaves: Vec<ValueId> = Vec::with_capacity(self.leaves.len());
        for (n, leaf) in self.leaves.iter().enumerate() {
            let name = format!("x{n}");
            let size = |(d, &size): (usize, &i64)| {
                if !symbolic(n, d) {
                    return SymExpr::from_i64(size);
                }
                let symbol = Symbol {
                    name: format!("{name}.size({d})"),
                    min: 0,
                    max: None,
                    hint: Some(size),
                    unbacked: false,
                };
                SymExpr::sym(graph.add_symbol(symbol))
            };
            let sizes: Vec<SymExpr> = leaf.meta().sizes.iter().enumerate().map(size).collect();
            let ty = ValueType::Tensor(TensorMeta::contiguous(leaf.meta().dtype, sizes));
            leaves.push(graph.placeholder(InputKind::User, name.clone(), &name, ty));
        }
        let mut results: Vec<Outs> = Vec::with_capacity(self.calls.len());
        let mut floats = Floats::default();
        for (n, (call, operands)) in self.each_call().enumerate() {
            let id = |v: &Value, results: &[Outs]| self.id(v, &leaves, results);
            let missing = || OpError::Invalid { op: name.into(), what: "an operand was released".into() };
            let mut args: Vec<Arg> = Vec::new();
            for operand in operands {
                let value = &mut |v: &Value| id(v, &results).ok_or_else(missing);
                args.push(operand.to_arg(value, &|size| size.hint().into())?);
            }
            let outs = match &call.kind {
                Kind::Operator { op, key } => {
                    let key = key.as_ref().and_then(|k| id(k, &results));
                    let short = body::short_name(op);
                    let origin = body::origin(&mut graph, short, call.at);
                    let about = (&*format!("{short}_{n}"), key, origin);
                    match floats.operator(&mut graph, (op, call), &args, (about, given)) {
                        Some(outs) => outs,
                        None => body::operator(&mut graph, op, args, about)?,
                    }
                }
                Kind::Graph(body) => {
                    let values =
                        args.iter().filter_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None });
                    body::inline(&mut graph, body, &values.collect::<Vec<_>>())
                }
                Kind::Data | Kind::Alias { .. } => Outs::new(),
            };
            results.push(outs);
        }
        Ok(Made { graph, leaves, floats: floats.given, results })
    }

    fn id(&self, v: &Value, leaves: &[ValueId], results: &[Outs]) -> Option<ValueId> {
        let v = (self.same)(v);
        match self.leaf.get(&v.id()) {
            Some(leaf) => leaves.get(leaf).copied(),
            None => {
                let place = self.place.get(&Arc::as_ptr(&v.call))?;
                results.get(place)?.get(v.out as usize).copied()
            }
        }
    }
}

/// A graph of recorded calls.
pub(crate) struct Made {
    pub(crate) graph: Graph,
    /// The placeholders of the leaves.
    pub(crate) leaves: Vec<ValueId>,
    /// The floats that are placeholders behind those of the leaves, in their order, and their dtypes.
    pub(crate) floats: Vec<(usize, DType)>,
    /// The results of each call.
    pub(crate) results: Vec<Outs>,
}

/// Floats that become placeholders while calls are put into a graph.
#[derive(Default)]
struct Floats {
    /// Those that were met so far.
    met: usize,
    /// Those that are placeholders, and their dtypes.
    given: Vec<(usize, DType)>,
}

impl Floats {
    /// Appends an operator's call whose floats are placeholders where they are to be given; `None` where none is, and where the
    /// operator wants numbers or would not compute the same with tensors.
    fn operator(
        &mut self,
        graph: &mut Graph,
        (op, call): (&'static Op, &Call),
        args: &[Arg],
        (about, given): ((&str, Option<ValueId>, OriginId), &dyn Fn(usize) -> bool),
    ) -> Option<Outs> {
        let is_float = |a: &&mut Arg| matches!(a, Arg::Scalar(Scalar::Float(_)));
        let floats = args.iter().filter(|a| matches!(a, Arg::Scalar(Scalar::Float(_)))).count();
        // With 16-bit results a tensor would be rounded to 16 bits first, where a number is not.
        let dtype = call.metas.first().map(|m| m.dtype).filter(|d| matches!(d, DType::F32 | DType::F64));
        let Some(dtype) = dtype.filter(|d| call.metas.iter().all(|m| m.dtype == *d)) else {
            self.met += floats;
            return None;
        };
        let before = graph.nodes.len();
        let (mut args, mut made) = (args.to_vec(), Vec::new());
        for arg in args.iter_mut().filter(is_float) {
            self.met += 1;
            let number = self.met - 1;
            if given(number) {
                let ty = ValueType::Tensor(TensorMeta::contiguous(dtype, []));
                let name = format!("float{number}");
                let value = graph.placeholder(InputKind::User, name.clone(), &name, ty);
                body::placed_first(graph, value);
                *arg = Arg::Value(value);
                made.push((number, dtype));
            }
        }
        if made.is_empty() {
            return None;
        }
        let outs = body::operator(graph, op, args, about).ok();
        let same = |outs: &Outs| {
            let dtypes = outs.iter().map(|v| graph.meta(*v).map(|m| m.dtype));
            dtypes.eq(call.metas.iter().map(|m| Some(m.dtype)))
        };
        let outs = outs.filter(same);
        match outs.is_some() {
            true => self.given.extend(made),
            // What was appended has no users.
            false => graph.order.retain(|n| n.index() < before),
        }
        outs
    }
}

impl Operand {
    /// A list of tensors.
    pub fn values(values: impl IntoIterator<Item = Value>) -> Operand {
        Operand::List(values.into_iter().map(Operand::Value).collect())
    }
}
