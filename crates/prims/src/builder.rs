//! Builds calls into a graph: a prim is appended with the types of its meta rule, a composite is replaced by its
//! decomposition at once. So only prims are ever appended, whatever a rule calls.

use std::ops::RangeBounds;

use fx_ir::{Arg, Graph, OriginId, Symbol, ValueId, ValueType};
use ir_core::{DType, Guard, Origin, Scalar, Shape, SymExpr, TensorMeta};
use kernel_ir::{ReduceOp, ScalarOp};
use smallvec::SmallVec;

use crate::{Call, DecomposeCx, Kind, MetaCx, Op, OpError, Outs, SchemaDefault, lookup};

/// Limit of the decomposition depth: only a rule that calls itself exceeds it.
const MAX_DEPTH: u32 = 64;
/// Limit of the prims of one call: only a call that a wrong number unrolls too often exceeds it.
pub(crate) const MAX_PRIMS: usize = 1 << 16;

/// Appends operator calls to a graph, all with one origin and name.
pub struct Builder<'g> {
    graph: &'g mut Graph,
    origin: OriginId,
    name: String,
    depth: u32,
    /// Nodes of the graph before the call.
    before: usize,
    /// What the program states about the results of the decomposed call, where it is known: the dtypes of those that are tensors.
    expected: Option<SmallVec<[Option<DType>; 4]>>,
    /// Random tensors drawn so far.
    draws: u16,
    /// Tensors without dimensions that represent numbers of the program.
    numbers: Vec<ValueId>,
    /// The composite of the program that is being decomposed.
    caller: Option<&'static str>,
    /// What decompositions may assume of where the program will run.
    cx: DecomposeCx,
}

impl<'g> Builder<'g> {
    /// A builder whose values are named `name` and come from `origin`.
    pub fn new(graph: &'g mut Graph, name: impl Into<String>, origin: OriginId) -> Builder<'g> {
        Builder {
            before: graph.nodes.len(),
            graph,
            origin,
            name: name.into(),
            depth: 0,
            expected: None,
            draws: 0,
            numbers: Vec::new(),
            caller: None,
            cx: DecomposeCx::default(),
        }
    }
    /// The same builder, whose decompositions may assume this.
    pub fn within(self, cx: DecomposeCx) -> Builder<'g> {
        Builder { cx, ..self }
    }
    /// What the decomposition may assume of where the program will run.
    pub(crate) fn cx(&self) -> DecomposeCx {
        self.cx
    }
    /// Sets the results that the program states for the next call, each with its dtype if it is a tensor.
    pub fn expect(&mut self, results: impl IntoIterator<Item = Option<DType>>) {
        self.expected = Some(results.into_iter().collect());
    }
    /// How many results of the decomposed call the program uses, for calls whose number of results depends on
    /// sizes.
    pub fn expected(&self) -> Option<usize> {
        self.expected.as_ref().map(SmallVec::len)
    }
    /// The dtype that the program states for a result of the call that is being decomposed, for operators that give other dtypes on
    /// other devices. `None` within the decomposition of a call that a decomposition makes.
    pub fn stated_dtype(&self, result: usize) -> Option<DType> {
        let stated = self.expected.as_ref().filter(|_| self.depth == 1)?;
        stated.get(result).copied().flatten()
    }
    /// Sets which tensors without dimensions are numbers of the program (`item` of a float): type promotion treats them as
    /// numbers.
    pub(crate) fn weigh_as_numbers(&mut self, numbers: &[ValueId]) {
        self.numbers = numbers.to_vec();
    }
    /// Whether a tensor is a number of the program.
    pub(crate) fn is_number(&self, v: ValueId) -> bool {
        self.numbers.contains(&v)
    }
    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        self.graph
    }
    /// Name of the values that are made, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
    /// Where the calls come from.
    pub(crate) fn origin(&self) -> Origin {
        self.graph.origins.get(self.origin).cloned().unwrap_or_default()
    }
    /// Records a guard; [`require`](Builder::require) is how a rule does.
    pub(crate) fn add_guard(&mut self, guard: Guard) {
        self.graph.add_guard(guard);
    }
    /// The meta of a tensor value.
    pub fn meta(&self, v: ValueId) -> Result<&TensorMeta, OpError> {
        let not_tensor =
            || OpError::Invalid { op: self.name.clone(), what: format!("value {v} is not a tensor") };
        self.graph.meta(v).ok_or_else(not_tensor)
    }
    /// Sizes of a tensor value.
    pub fn sizes(&self, v: ValueId) -> Result<Shape, OpError> {
        self.meta(v).map(|m| m.sizes.clone())
    }
    /// Sizes of a tensor value that must have this many dimensions.
    ///
    /// # Errors
    /// It is not a tensor, or has another number of dimensions.
    pub fn sizes_of_rank(&self, v: ValueId, ranks: impl RangeBounds<usize>) -> Result<Shape, OpError> {
        let sizes = self.sizes(v)?;
        if ranks.contains(&sizes.len()) {
            return Ok(sizes);
        }
        let op = self.caller.unwrap_or(&self.name).to_owned();
        Err(OpError::Invalid {
            op,
            what: format!("does not take a tensor of {} dimensions here", sizes.len()),
        })
    }
    /// Element type of a tensor value.
    pub fn dtype(&self, v: ValueId) -> Result<DType, OpError> {
        self.meta(v).map(|m| m.dtype)
    }
    /// Number of dimensions of a tensor value.
    pub fn rank(&self, v: ValueId) -> Result<usize, OpError> {
        self.meta(v).map(TensorMeta::rank)
    }

    /// Calls any operator by name; missing trailing arguments get the schema's defaults.
    pub fn call(&mut self, target: &str, args: Vec<Arg>) -> Result<Outs, OpError> {
        let op = lookup(target).ok_or_else(|| OpError::Unknown(target.into()))?;
        self.call_op(op, args)
    }

    /// Calls an operator with one result.
    pub fn call1(&mut self, target: &str, args: Vec<Arg>) -> Result<ValueId, OpError> {
        let outs = self.call(target, args)?;
        let missing = || OpError::Invalid { op: target.into(), what: "gives no value".into() };
        outs.first().copied().ok_or_else(missing)
    }

    /// Calls an operator of the table.
    pub fn call_op(&mut self, op: &'static Op, args: Vec<Arg>) -> Result<Outs, OpError> {
        let args = complete(op, args)?;
        let call = Call { op, args: &args };
        match &op.def.kind {
            Kind::Composite(decompose) => {
                if self.depth >= MAX_DEPTH {
                    return Err(call.invalid("its decomposition never ends"));
                }
                if self.depth == 0 {
                    self.caller = Some(&op.target);
                }
                self.depth += 1;
                let outs = decompose(self, &call);
                self.depth -= 1;
                if self.depth == 0 {
                    self.caller = None;
                }
                outs
            }
            Kind::Prim { meta, .. } => {
                if let Some(part) = self.known_part(op, &args) {
                    return Ok(SmallVec::from_iter([part]));
                }
                if self.graph.nodes.len() - self.before > MAX_PRIMS {
                    let call = self.caller.unwrap_or(&op.target);
                    return Err(OpError::Unsupported {
                        op: call.to_owned(),
                        what: format!(
                            "a call that takes more than {MAX_PRIMS} prims: loop over its parts instead"
                        ),
                    });
                }
                let cx = MetaCx::new(self.graph);
                let types = meta(&cx, &call)?;
                let needs = cx.needs();
                needs.into_iter().for_each(|need| self.record(need));
                let outputs = types.into_iter().map(|ty| (self.name.as_str(), ty));
                let origin = self.origin;
                let outs = self.graph.call(op.target.as_str(), args.clone(), outputs, origin);
                if crate::site::is_indexing(&op.target) {
                    self.name_operator(outs.first().copied());
                }
                Ok(outs)
            }
        }
    }

    /// Errors of indices name the operator of the program, so the new nodes must record it.
    fn name_operator(&mut self, made: Option<ValueId>) {
        let (Some(operator), Some(v)) = (self.caller, made) else { return };
        let mut origin = self.graph.origins.get(self.origin).cloned().unwrap_or_default();
        if origin.operator.is_empty() {
            origin.operator = operator.into();
            let origin = self.graph.add_origin(origin);
            let node = self.graph.values[v].def;
            self.graph.nodes[node].origin = origin;
        }
    }

    /// Appends a prim with result types that the caller knows, without its meta rule.
    pub(crate) fn append(&mut self, target: &str, args: Vec<Arg>, types: &[ValueType]) -> Outs {
        let outputs = types.iter().map(|ty| (self.name.as_str(), ty.clone()));
        self.graph.call(target, args, outputs, self.origin)
    }

    /// The real or imaginary part of a value that was just composed of two parts: kernels need no complex numbers unless
    /// they leave the graph.
    fn known_part(&self, op: &Op, args: &[Arg]) -> Option<ValueId> {
        let imaginary = match op.target.as_str() {
            "prims.real" => 0,
            "prims.imag" => 1,
            _ => return None,
        };
        let Some(Arg::Value(v)) = args.first() else { return None };
        match self.graph.nodes[self.graph.values[*v].def].as_call()? {
            ("prims.complex", parts) => match parts.get(imaginary) {
                Some(Arg::Value(part)) => Some(*part),
                _ => None,
            },
            _ => None,
        }
    }

    /// A scalar operator on tensors and numbers: operands are broadcast to one shape; all tensors must have the dtype
    /// that the operator's rule requires (cast first). At least one operand is a tensor.
    pub fn scalar_op(&mut self, op: ScalarOp, operands: &[Arg]) -> Result<ValueId, OpError> {
        let tensors: Vec<ValueId> =
            operands.iter().filter_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None }).collect();
        let sizes = self.broadcast_sizes(&tensors)?;
        let mut args = Vec::with_capacity(operands.len());
        for operand in operands {
            args.push(match operand {
                Arg::Value(v) => Arg::Value(self.expand(*v, &sizes)?),
                number => number.clone(),
            });
        }
        self.call1(&format!("prims.{}", op.name()), args)
    }

    /// The shape to which tensors broadcast (NumPy's rule). Two sizes that are not known to be 1 must be equal: a call in which
    /// one of them is 1 and the other is not is refused.
    pub fn broadcast_sizes(&mut self, tensors: &[ValueId]) -> Result<Shape, OpError> {
        let mut result = Shape::new();
        for &v in tensors {
            let sizes = self.sizes(v)?;
            while result.len() < sizes.len() {
                result.insert(0, SymExpr::ONE);
            }
            let skip = result.len() - sizes.len();
            for (have, want) in result[skip..].iter_mut().zip(&sizes) {
                if *have == SymExpr::ONE {
                    *have = want.clone();
                } else if *want != SymExpr::ONE {
                    self.require_equal(want, have, |graph| {
                        format!(
                            "sizes {} and {} do not broadcast",
                            graph.size_text(have),
                            graph.size_text(want)
                        )
                    })?;
                    if want.as_const().is_some() {
                        *have = want.clone();
                    }
                }
            }
        }
        Ok(result)
    }

    /// Broadcasts to `sizes`; nothing where it has them.
    pub fn expand(&mut self, v: ValueId, sizes: &[SymExpr]) -> Result<ValueId, OpError> {
        if self.meta(v)?.sizes[..] == *sizes {
            return Ok(v);
        }
        self.call1("prims.expand", vec![v.into(), sizes.into()])
    }
    /// The same elements in row-major order in another shape; nothing where it has it.
    pub fn reshape(&mut self, v: ValueId, sizes: &[SymExpr]) -> Result<ValueId, OpError> {
        if self.meta(v)?.sizes[..] == *sizes {
            return Ok(v);
        }
        self.call1("prims.reshape", vec![v.into(), sizes.into()])
    }
    /// Reorders dimensions: dimension `d` of the result is `dims[d]` of `v`.
    pub fn permute(&mut self, v: ValueId, dims: &[usize]) -> Result<ValueId, OpError> {
        if dims.iter().enumerate().all(|(i, &d)| i == d) {
            return Ok(v);
        }
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        self.call1("prims.permute", vec![v.into(), dims.as_slice().into()])
    }
    /// `length` elements of dimension `dim` from `start`, every `step`-th.
    pub fn slice(
        &mut self,
        v: ValueId,
        dim: usize,
        start: SymExpr,
        length: SymExpr,
        step: i64,
    ) -> Result<ValueId, OpError> {
        if start == SymExpr::ZERO && step == 1 && self.meta(v)?.sizes.get(dim) == Some(&length) {
            return Ok(v);
        }
        self.call1(
            "prims.slice",
            vec![v.into(), (dim as i64).into(), start.into(), length.into(), step.into()],
        )
    }
    /// Converts to a dtype; nothing where it has it.
    pub fn cast(&mut self, v: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        if self.meta(v)?.dtype == dtype {
            return Ok(v);
        }
        self.call1("prims.convert", vec![v.into(), dtype.into()])
    }
    /// A tensor of one number.
    pub fn full(
        &mut self,
        sizes: &[SymExpr],
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<ValueId, OpError> {
        self.call1("prims.full", vec![sizes.into(), value.into().to_class_of(dtype).into(), dtype.into()])
    }
    /// Inserts a dimension of size 1.
    pub fn unsqueeze(&mut self, v: ValueId, dim: usize) -> Result<ValueId, OpError> {
        let mut sizes = self.sizes(v)?;
        sizes.insert(dim.min(sizes.len()), SymExpr::ONE);
        self.reshape(v, &sizes)
    }
    /// Declares a symbol.
    pub(crate) fn add_symbol(&mut self, symbol: Symbol) -> ir_core::SymId {
        self.graph.add_symbol(symbol)
    }
    /// Appends a call that is not an entry of the table.
    pub(crate) fn effect(&mut self, target: &str, args: Vec<Arg>, ty: Option<ValueType>) {
        let outputs = ty.map(|ty| (self.name.as_str(), ty));
        self.graph.call(target, args, outputs, self.origin);
    }
    /// 64 random bits for each element of a tensor of these sizes, as `i64`: `philox(seed, stream, linear index)`.
    ///
    /// The seed is the graph's placeholder of kind [`fx_ir::InputKind::Seed`], made here at the first use. The stream
    /// is 48 bits of a hash of this builder's name (which is unique among the calls of a graph) and the number of the draw
    /// within the call. So the numbers do not depend on the order of decomposition, or on what else is in the graph.
    pub fn random_bits(&mut self, sizes: &[SymExpr]) -> Result<ValueId, OpError> {
        let seed = self.graph.require_seed();
        let stream = (tensor::formula::fnv1a64(&self.name) << 16 | u64::from(self.draws)) as i64;
        self.draws = self.draws.wrapping_add(1);
        let numel = ir_core::numel(sizes);
        let iota = vec![numel.into(), 0i64.into(), 1i64.into(), DType::I64.into()];
        let index = self.call1("prims.iota", iota)?;
        let index = self.reshape(index, sizes)?;
        self.scalar_op(ScalarOp::Philox, &[seed.into(), stream.into(), index.into()])
    }
    /// Reduces over `dims` (none: over nothing); kept dimensions have size 1. No change of dtype but by `argmax`.
    pub fn reduce(
        &mut self,
        op: ReduceOp,
        v: ValueId,
        dims: &[usize],
        keepdim: bool,
    ) -> Result<ValueId, OpError> {
        if dims.is_empty() {
            return Ok(v);
        }
        let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let sizes = self.sizes(v)?;
        let out =
            self.call1(&format!("prims.{}", reduce_prim(op)), vec![v.into(), list.as_slice().into()])?;
        if !keepdim {
            return Ok(out);
        }
        let kept =
            sizes.into_iter().enumerate().map(|(d, s)| if dims.contains(&d) { SymExpr::ONE } else { s });
        self.reshape(out, &kept.collect::<Shape>())
    }
}

macro_rules! shorthands {
    ($($name:ident $op:ident ($($arg:ident),+) $doc:literal;)*) => {
        impl Builder<'_> {$(
            #[doc = $doc]
            pub fn $name(&mut self, $($arg: impl Into<Arg>),+) -> Result<ValueId, OpError> {
                self.scalar_op(ScalarOp::$op, &[$($arg.into()),+])
            }
        )*}
    };
}

shorthands! {
    add Add (a, b) "`a + b` on one dtype, broadcast.";
    sub Sub (a, b) "`a - b` on one dtype, broadcast.";
    mul Mul (a, b) "`a * b` on one dtype, broadcast.";
    div Div (a, b) "`a / b` on one dtype, broadcast.";
    maximum Max (a, b) "The larger, `NaN` wins.";
    minimum Min (a, b) "The smaller, `NaN` wins.";
    and And (a, b) "Bitwise or logical and.";
    or Or (a, b) "Bitwise or logical or.";
    neg Neg (a) "`-a`.";
    not Not (a) "Bitwise or logical complement.";
    exp Exp (a) "e to the power of `a`.";
    log Log (a) "Natural logarithm.";
    sqrt Sqrt (a) "Square root.";
    rsqrt Rsqrt (a) "`1 / sqrt(a)`.";
    tanh Tanh (a) "Hyperbolic tangent.";
    eq Eq (a, b) "Equal.";
    ne Ne (a, b) "Not equal.";
    lt Lt (a, b) "Less.";
    le Le (a, b) "Less or equal.";
    gt Gt (a, b) "Greater.";
    ge Ge (a, b) "Greater or equal.";
    abs Abs (a) "Magnitude.";
    floor Floor (a) "Rounds down.";
    trunc Trunc (a) "Rounds towards zero.";
    erf Erf (a) "Error function.";
    log1p Log1p (a) "`log(1 + a)`.";
    expm1 Expm1 (a) "`exp(a) - 1`.";
    sin Sin (a) "Sine.";
    cos Cos (a) "Cosine.";
    pow Pow (a, b) "`a` to the power of `b`.";
    rem Rem (a, b) "Remainder with the sign of `a`.";
    xor Xor (a, b) "Bitwise or logical exclusive or.";
    copysign CopySign (a, b) "Magnitude of `a`, sign of `b`.";
    select Select (mask, a, b) "`a` where `mask`, else `b`.";
}

/// Name of the prim that reduces with this operator, without the namespace.
pub(crate) fn reduce_prim(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Prod => "prod",
        ReduceOp::Max => "amax",
        ReduceOp::Min => "amin",
        ReduceOp::Any => "any",
        ReduceOp::All => "all",
        ReduceOp::Xor => "xor_sum",
        ReduceOp::ArgMax => "argmax",
        ReduceOp::ArgMin => "argmin",
    }
}

/// Fills in the schema's defaults for missing trailing arguments.
pub(crate) fn complete(op: &'static Op, mut args: Vec<Arg>) -> Result<Vec<Arg>, OpError> {
    let schema = &op.schema.args;
    if args.len() > schema.len() {
        let what = format!("takes {} arguments, not {}", schema.len(), args.len());
        return Err(OpError::Invalid { op: op.target.clone(), what });
    }
    for arg in &schema[args.len()..] {
        let missing =
            || OpError::Argument { op: op.target.clone(), arg: arg.name.clone(), what: "is missing".into() };
        args.push(match (&arg.default, arg.ty.optional) {
            (Some(default), _) => default_arg(default, &arg.ty),
            (None, true) => Arg::None,
            (None, false) => return Err(missing()),
        });
    }
    Ok(args)
}

/// A schema's default as an argument.
pub(crate) fn default_arg(default: &SchemaDefault, ty: &crate::ArgType) -> Arg {
    match default {
        SchemaDefault::None => Arg::None,
        // `int[2] stride=1`: one number for all.
        SchemaDefault::Scalar(s) if ty.list => Arg::List(vec![Arg::from(*s); ty.length.unwrap_or(1)]),
        SchemaDefault::Scalar(s) => Arg::from(*s),
        SchemaDefault::List(items) => Arg::List(items.iter().map(|s| Arg::from(*s)).collect()),
        SchemaDefault::Name(name) if ty.base == "ScalarType" => name.parse().map_or(Arg::None, Arg::DType),
        SchemaDefault::Name(name) if ty.base == "MemoryFormat" => Arg::MemoryFormat(match name.as_str() {
            "preserve_format" => ir_core::MemoryFormat::Preserve,
            "channels_last" => ir_core::MemoryFormat::ChannelsLast,
            _ => ir_core::MemoryFormat::Contiguous,
        }),
        SchemaDefault::Name(name) => Arg::Str(name.as_str().into()),
    }
}

/// The type of a tensor result: row-major, on the host.
pub(crate) fn tensor(dtype: DType, sizes: impl IntoIterator<Item = SymExpr>) -> SmallVec<[ValueType; 1]> {
    SmallVec::from_iter([ValueType::Tensor(TensorMeta::contiguous(dtype, sizes))])
}
