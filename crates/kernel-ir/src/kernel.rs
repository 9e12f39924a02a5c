//! Kernels: fused loop nests and templates. The steps of a program are a list of these.

use ir_core::{Atom, Bounds, DType, Shape, SymExpr, SymId};
use serde::{Deserialize, Serialize};

use crate::{AccId, BufId, Collective, Groups, Inst, LinalgOp, ReduceOp, Together};

/// One step of the execution plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// A fused loop nest.
    Loop(LoopKernel),
    /// A matrix product with its epilogue.
    Matmul(Matmul),
    /// A convolution with its epilogue.
    Conv(Conv),
    /// Scaled dot-product attention with its epilogue.
    Attention(Attention),
    /// A routine that is not a loop nest (sort).
    Extern(ExternCall),
    /// Gives a size symbol its value, read from memory.
    Bind(Bind),
    /// Ends the call where a truth value in memory is false.
    Assert(Assert),
    /// One of two lists of steps.
    Cond(Cond),
    /// Repeats steps for every value of a counter.
    For(For),
    /// Repeats steps while a truth value in memory holds.
    While(While),
    /// Steps that may run at once.
    Together(Together),
}

/// Binds an unbacked symbol for all steps that run afterwards. A value outside of the symbol's range is an error of
/// the call. Buffers whose size mentions the symbol lose their memory and get new memory when they are next written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bind {
    /// Name.
    pub name: String,
    /// The symbol.
    pub symbol: SymId,
    /// One element of an integer or `bool` dtype.
    pub from: Operand,
}

/// A condition on its data that the program states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assert {
    /// Name.
    pub name: String,
    /// One element, `bool`.
    pub pred: Operand,
    /// The message where it is false.
    pub message: String,
}

/// `if pred { then } else { otherwise }`. Symbols that both branches bind are bound after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cond {
    /// Name.
    pub name: String,
    /// Names of the graph nodes in it.
    pub origins: Vec<String>,
    /// One element, `bool`.
    pub pred: Operand,
    /// The steps where it is true.
    pub then: Vec<Step>,
    /// The steps where it is false.
    pub otherwise: Vec<Step>,
}

/// `for symbol in 0..count { body }`: the symbol is a size symbol (unbacked) that the body's shapes and indices use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct For {
    /// Name.
    pub name: String,
    /// Names of the graph nodes in it.
    pub origins: Vec<String>,
    /// The counter.
    pub symbol: SymId,
    /// How often; evaluated once.
    pub count: SymExpr,
    /// The steps that are repeated.
    pub body: Vec<Step>,
}

/// `loop { cond; if !pred { break } body }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct While {
    /// Name.
    pub name: String,
    /// Names of the graph nodes in it.
    pub origins: Vec<String>,
    /// Steps that compute the condition.
    pub cond: Vec<Step>,
    /// One element, `bool`.
    pub pred: Operand,
    /// The steps that are repeated.
    pub body: Vec<Step>,
}

/// A fused loop nest. For every point of `outer` (all points independent) the stages run in order; each stage runs its
/// body for every point of its own inner domain and may read the accumulators of earlier stages.
///
/// `outer[d]` is the extent of loop variable `i{d}`; the inner variables of a stage are numbered on from there.
/// A value stored by one stage and loaded by a later one of the same kernel is loaded at the same outer point only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoopKernel {
    /// Name, from the operators in it.
    pub name: String,
    /// Names of the graph nodes that were fused.
    pub origins: Vec<String>,
    /// Extents of the outer domain.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub outer: Shape,
    /// Accumulators of all stages.
    pub accs: Vec<AccDecl>,
    /// What happens at each outer point.
    pub stages: Vec<Stage>,
}

/// An accumulator of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AccDecl {
    /// How values are combined.
    pub op: ReduceOp,
    /// Dtype of the combined values (the result of `argmax` and `argmin` is `i64`).
    pub dtype: DType,
}

/// A loop nest at one outer point.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stage {
    /// Extents of the inner domain; empty runs the body once.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub inner: Shape,
    /// The body.
    pub insts: Vec<Inst>,
}

/// A strided view of a buffer as a template reads it; strides and offset in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operand {
    /// The buffer.
    pub buf: BufId,
    /// Sizes of the view.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub sizes: Shape,
    /// Strides of the view; 0 where a dimension is broadcast.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub strides: Shape,
    /// Element of the buffer's memory that index 0 names.
    pub offset: SymExpr,
}

/// The epilogue of a template: a body over the output's dimensions (`i0…`) which reads the result with `InstKind::Template`
/// and stores it. It runs exactly once for each output point.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epilogue {
    /// Sizes of the template's output.
    #[serde(deserialize_with = "crate::wire::bounded")]
    pub ranges: Shape,
    /// The body; at least one store.
    pub insts: Vec<Inst>,
}

/// `out[…, m, n] = Σ_k (a[…, m, k] - zero) * b[…, k, n]`, accumulated in `acc` dtype. Operands of 8-bit integers with sums in
/// `i32` are an integer product ([`crate::is_integer_product`]): its sums are exact, and the operands may differ in sign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matmul {
    /// Name.
    pub name: String,
    /// Names of the graph nodes that were fused.
    pub origins: Vec<String>,
    /// `[batch…, m, k]`.
    pub a: Operand,
    /// `[batch…, k, n]`, the same batch sizes (stride 0 where broadcast).
    pub b: Operand,
    /// Dtype of the product that the epilogue sees.
    pub acc: DType,
    /// What is subtracted from each element of `a`: the zero point of an integer product, a number of `a`'s dtype; 0 in all
    /// other products. Since 1.8.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zero: i64,
    /// What `b` stands for where it is quantized. Since 1.9, left out where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dequant: Option<Dequant>,
    /// Groups of rows, or of what is summed over, that the call's data tells. Since 1.10, left out where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Groups>,
    /// Over `[batch…, m, n]`.
    pub epilogue: Epilogue,
}

/// Quantized weights: element `(k, n)` of a product's `b`, of `i8` or `u8`, stands for
/// `(b[k, n] - zero[k / l, n]) * factor[k / l, n]`, where `l` is the number of rows that share a factor: `k` in total, divided by the
/// rows of `factor`. `b` is the same for all batch entries. How these numbers are rounded before they are multiplied is the
/// backend's choice, between the dtype of `a` and no rounding at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dequant {
    /// `[groups, n]` of `f32`; `groups` divides `k`.
    pub factor: Operand,
    /// The same sizes, of `f32`; none is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero: Option<Operand>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// Convolution (cross-correlation) in 1 to 3 spatial dimensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// Name.
    pub name: String,
    /// Names of the graph nodes that were fused.
    pub origins: Vec<String>,
    /// `[n, c, spatial…]`.
    pub input: Operand,
    /// `[o, c / groups, window…]`; transposed: `[c, o / groups, window…]`.
    pub weight: Operand,
    /// Step of the window in each spatial dimension.
    pub stride: Vec<i64>,
    /// Zeros added before and after each spatial dimension; a negative number leaves out this many elements instead.
    pub padding: Vec<(i64, i64)>,
    /// Distance of the window's points.
    pub dilation: Vec<i64>,
    /// Groups of channels.
    pub groups: i64,
    /// Whether this is the transposed convolution.
    pub transposed: bool,
    /// Dtype of the sum that the epilogue sees.
    pub acc: DType,
    /// What is subtracted from each element of `input`, as for [`Matmul::zero`]; padding is zero afterwards. Since 1.8.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zero: i64,
    /// Over `[n, o, spatial…]`.
    pub epilogue: Epilogue,
}

/// `softmax(q kᵀ · scale + mask) v` over the last two dimensions, without storing the scores.
///
/// Rows in which every key is masked yield zeros, as in PyTorch's `scaled_dot_product_attention`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Name.
    pub name: String,
    /// Names of the graph nodes that were fused.
    pub origins: Vec<String>,
    /// `[b, hq, lq, d]`.
    pub q: Operand,
    /// `[b, hkv, lk, d]`; `hq` is a multiple of `hkv`.
    pub k: Operand,
    /// `[b, hkv, lk, dv]`.
    pub v: Operand,
    /// `[b, hq, lq, lk]` by broadcast strides: `bool` (true means attend) or a float that is added.
    pub mask: Option<Operand>,
    /// `[b, hq, lq]` of dtype `acc`, written: the log-sum-exp of each row's scores, minus infinity where every key is
    /// masked. The gradients recompute the weights from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<Operand>,
    /// Weights that are dropped after the softmax. Since 1.11.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<Dropout>,
    /// What a backend made of the mask; no part of a program that crosses the boundary.
    #[serde(skip)]
    pub visibility: Option<Box<Visibility>>,
    /// Position `i` attends to positions up to `i` (aligned at the start, as in PyTorch).
    pub causal: bool,
    /// Factor on the scores.
    pub scale: f64,
    /// Dtype of the result that the epilogue sees.
    pub acc: DType,
    /// Over `[b, hq, lq, dv]`.
    pub epilogue: Epilogue,
}

/// Dropout of the weights of an [`Attention`]: the result is the sum of the values by `weight · factor` where a weight is kept. The
/// sums are those of all weights. Since 1.11.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// `i32[b, hq, lq, words]` by broadcast strides, a word for each [`Dropout::KEYS`] keys: the weight of key `j` is kept where
    /// bit `j % 32` of word `j / 32` is set.
    pub kept: Operand,
    /// Factor on the weights that are kept.
    pub factor: f64,
}

impl Dropout {
    /// Keys of a word.
    pub const KEYS: i64 = 32;
}

/// What a backend makes of the mask of an [`Attention`], so that its kernels compute the mask and skip what it hides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Visibility {
    /// The mask as a function of batch, head of queries, query and key (`i0` to `i3`), in place of its elements: the last
    /// value is `bool` or a float. Empty where the mask is read.
    pub function: Vec<Inst>,
    /// The blocks of scores by queries, as a [`MaskTable`] leaves them.
    pub rows: Option<Operand>,
    /// The same by keys, for gradients.
    pub columns: Option<Operand>,
}

/// Notes which blocks of 64 queries and 64 keys a mask hides. The first output is `i32[b, hq, own blocks, 2 words]`, by
/// broadcast strides: for each block of queries (or of keys) the blocks of the other side, 32 in a word. The first half of the
/// words has a bit for each block in which some score is shown, the second half one for each in which all are, unchanged. An
/// optional second output is the mask in bits, `i32[b, hq, lq, lk / 32]` (rounded up), the first key in the lowest bit.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskTable {
    /// `[b, hq, lq, lk]`; 1 where the mask is the same along a dimension and the outputs have a stride of 0.
    pub sizes: Shape,
    /// The mask, as [`Visibility::function`].
    pub function: Vec<Inst>,
    /// Whether a row of the table is of keys.
    pub by_keys: bool,
}

/// A routine that is not a loop nest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExternCall {
    /// Name.
    pub name: String,
    /// Names of the graph nodes that were fused.
    pub origins: Vec<String>,
    /// Which routine.
    pub op: ExternOp,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// What it writes.
    pub outputs: Vec<Operand>,
}

/// The routines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ExternOp {
    /// Sorts along `dim`: values and positions (`i64`). Always stable; `NaN` counts as largest.
    Sort {
        /// Dimension.
        dim: u32,
        /// Largest first.
        descending: bool,
    },
    /// A matrix routine.
    Linalg {
        /// Which one.
        op: LinalgOp,
        /// Its matrices are complex: each number is a pair of real ones, `[…, 2]`.
        complex: bool,
    },
    /// The gradients of an [`Attention`], without storing scores. With `s = q kᵀ · scale + mask`, weights
    /// `p = exp(s - sums)` (zero where every key is masked) and `ds = p (g vᵀ - deltas)` they are `dq = ds k · scale`,
    /// `dk = dsᵀ q · scale`, `dv = pᵀ g`; heads of queries that share a head of keys are added up. With dropout, `m` the factor
    /// of a kept weight or 0, `ds` is `p (m (g vᵀ) - deltas)` and `dv` is `(p m)ᵀ g`.
    ///
    /// Inputs: cotangent `g` `[b, hq, lq, dv]`; `q`, `k`, `v` and an optional last one, `mask`, as those of the attention;
    /// before the mask `sums` and `deltas`, both `[b, hq, lq]` in the dtype of arithmetic. `deltas` is the sum of
    /// `g · result` over a row, less the cotangent of `sums`. Behind them, with dropout, the words of [`Dropout::kept`]. Outputs:
    /// `dq`, `dk`, `dv`.
    AttentionBackward {
        /// Position `i` attends to positions up to `i`.
        causal: bool,
        /// Factor on the scores.
        scale: f64,
        /// Factor on the weights that are kept, where some are dropped: then the last input says which. Since 1.11.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dropout: Option<f64>,
        /// What a backend made of the mask; no part of a program that crosses the boundary.
        #[serde(skip)]
        visibility: Option<Box<Visibility>>,
    },
    /// A discrete Fourier transform along a dimension, of a length that [`is_length`](crate::is_length). Since 1.12. Takes
    /// real and imaginary parts, or real numbers alone, and gives both parts, of all results or of the first `n / 2 + 1`
    /// (where the operand is real), or real results alone (out of the first `n / 2 + 1` numbers): [`Fourier`](crate::Fourier)
    /// says which. All are `f32` or all `f64`.
    Fourier {
        /// Dimension.
        dim: u32,
        /// The exponent is negative.
        forward: bool,
        /// Factor on the results.
        scale: f64,
    },
    /// What a backend adds for the masks of attention; no part of a program that crosses the boundary.
    #[serde(skip)]
    MaskTable(Box<MaskTable>),
    /// An exchange between the ranks of a group. Since 1.7. Takes one tensor and gives one, of the same dtype.
    Collective(Collective),
    /// Waits for an exchange that an earlier step of the same list started: takes what that step took and gives what it
    /// gave. Since 1.7.
    Wait,
}

impl Step {
    /// Name of the kernel.
    pub fn name(&self) -> &str {
        match self {
            Step::Loop(k) => &k.name,
            Step::Matmul(k) => &k.name,
            Step::Conv(k) => &k.name,
            Step::Attention(k) => &k.name,
            Step::Extern(k) => &k.name,
            Step::Bind(k) => &k.name,
            Step::Assert(k) => &k.name,
            Step::Cond(k) => &k.name,
            Step::For(k) => &k.name,
            Step::While(k) => &k.name,
            Step::Together(k) => &k.name,
        }
    }
    /// The kind, as its text form begins: `loop`, `matmul`, `cond`.
    pub fn kind(&self) -> &'static str {
        match self {
            Step::Loop(_) => "loop",
            Step::Matmul(_) => "matmul",
            Step::Conv(_) => "conv",
            Step::Attention(_) => "attention",
            Step::Extern(_) => "extern",
            Step::Bind(_) => "bind",
            Step::Assert(_) => "assert",
            Step::Cond(_) => "cond",
            Step::For(_) => "for",
            Step::While(_) => "while",
            Step::Together(_) => "together",
        }
    }
    /// Names of the graph nodes in it; members of a [`Together`] have their own.
    pub fn origins(&self) -> &[String] {
        match self {
            Step::Loop(k) => &k.origins,
            Step::Matmul(k) => &k.origins,
            Step::Conv(k) => &k.origins,
            Step::Attention(k) => &k.origins,
            Step::Extern(k) => &k.origins,
            Step::Bind(_) | Step::Assert(_) | Step::Together(_) => &[],
            Step::Cond(k) => &k.origins,
            Step::For(k) => &k.origins,
            Step::While(k) => &k.origins,
        }
    }
    /// The nested lists of steps, in the order in which they are printed.
    pub fn nested(&self) -> Vec<&[Step]> {
        match self {
            Step::Cond(k) => vec![&k.then, &k.otherwise],
            Step::For(k) => vec![&k.body],
            Step::While(k) => vec![&k.cond, &k.body],
            Step::Together(k) => vec![&k.steps],
            _ => Vec::new(),
        }
    }
    /// The same lists, mutable.
    pub fn nested_mut(&mut self) -> Vec<&mut Vec<Step>> {
        match self {
            Step::Cond(k) => vec![&mut k.then, &mut k.otherwise],
            Step::For(k) => vec![&mut k.body],
            Step::While(k) => vec![&mut k.cond, &mut k.body],
            Step::Together(k) => vec![&mut k.steps],
            _ => Vec::new(),
        }
    }
    /// The strided operands that the step itself reads.
    pub fn operands(&self) -> Vec<&Operand> {
        match self {
            Step::Loop(_) => Vec::new(),
            Step::Matmul(k) => {
                let quantized = k.dequant.iter().flat_map(Dequant::operands);
                [&k.a, &k.b].into_iter().chain(quantized).chain(k.groups.iter().map(|g| &g.ends)).collect()
            }
            Step::Conv(k) => vec![&k.input, &k.weight],
            Step::Attention(k) => {
                let tables = k.visibility.iter().flat_map(|v| v.tables());
                let kept = k.dropout.iter().map(|d| &d.kept);
                [&k.q, &k.k, &k.v].into_iter().chain(&k.mask).chain(kept).chain(tables).collect()
            }
            Step::Extern(k) => {
                k.inputs.iter().chain(k.visibility().into_iter().flat_map(Visibility::tables)).collect()
            }
            Step::Bind(k) => vec![&k.from],
            Step::Assert(k) => vec![&k.pred],
            Step::Cond(k) => vec![&k.pred],
            Step::For(_) | Step::Together(_) => Vec::new(),
            Step::While(k) => vec![&k.pred],
        }
    }
    /// The strided operands that the step itself writes; stores of its bodies are not among them.
    pub fn results(&self) -> Vec<&Operand> {
        match self {
            Step::Attention(k) => k.sums.iter().collect(),
            Step::Extern(k) => k.outputs.iter().collect(),
            _ => Vec::new(),
        }
    }
    /// The bodies of the step, with the extents of their loop variables; not those of nested steps.
    pub fn bodies(&self) -> Vec<(Shape, &[Inst])> {
        match self {
            Step::Loop(k) => k
                .stages
                .iter()
                .map(|s| (k.outer.iter().chain(&s.inner).cloned().collect(), &s.insts[..]))
                .collect(),
            Step::Matmul(k) => vec![(k.epilogue.ranges.clone(), &k.epilogue.insts)],
            Step::Conv(k) => vec![(k.epilogue.ranges.clone(), &k.epilogue.insts)],
            Step::Attention(k) => {
                let scores: Shape = k.q.sizes[..3].iter().chain(k.k.sizes.get(2)).cloned().collect();
                let function = k.visibility.iter().map(|v| (scores.clone(), &v.function[..]));
                std::iter::once((k.epilogue.ranges.clone(), &k.epilogue.insts[..])).chain(function).collect()
            }
            Step::Extern(k) => match &k.op {
                ExternOp::AttentionBackward { visibility: Some(v), .. } => {
                    let scores = k.inputs[1].sizes[..3].iter().chain(k.inputs[2].sizes.get(2));
                    vec![(scores.cloned().collect(), &v.function)]
                }
                ExternOp::MaskTable(table) => vec![(table.sizes.clone(), &table.function)],
                _ => Vec::new(),
            },
            Step::Bind(_)
            | Step::Assert(_)
            | Step::Cond(_)
            | Step::For(_)
            | Step::While(_)
            | Step::Together(_) => Vec::new(),
        }
    }
    /// The instructions of the same bodies, mutable.
    pub fn bodies_mut(&mut self) -> Vec<&mut Vec<Inst>> {
        match self {
            Step::Loop(k) => k.stages.iter_mut().map(|s| &mut s.insts).collect(),
            Step::Matmul(k) => vec![&mut k.epilogue.insts],
            Step::Conv(k) => vec![&mut k.epilogue.insts],
            Step::Attention(k) => {
                let function = k.visibility.iter_mut().map(|v| &mut v.function);
                std::iter::once(&mut k.epilogue.insts).chain(function).collect()
            }
            Step::Extern(k) => match &mut k.op {
                ExternOp::AttentionBackward { visibility: Some(v), .. } => vec![&mut v.function],
                ExternOp::MaskTable(table) => vec![&mut table.function],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
    /// The buffers that the step reads and writes, nested steps included.
    pub fn accesses(&self) -> (Vec<BufId>, Vec<BufId>) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        reads.extend(self.operands().iter().map(|o| o.buf));
        for (_, insts) in self.bodies() {
            for inst in insts {
                match &inst.kind {
                    crate::InstKind::Load { buf, .. } => reads.push(*buf),
                    crate::InstKind::Store { buf, .. } => writes.push(*buf),
                    _ => {}
                }
            }
        }
        writes.extend(self.results().iter().map(|o| o.buf));
        for step in self.nested().into_iter().flatten() {
            let (r, w) = step.accesses();
            reads.extend(r);
            writes.extend(w);
        }
        for list in [&mut reads, &mut writes] {
            list.sort();
            list.dedup();
        }
        (reads, writes)
    }
}

impl Visibility {
    /// The tables that there are.
    pub fn tables(&self) -> impl Iterator<Item = &Operand> {
        self.rows.iter().chain(&self.columns)
    }
}

impl Attention {
    /// Whether there is a mask, to be read or to be computed.
    pub fn is_masked(&self) -> bool {
        self.mask.is_some() || self.visibility.as_ref().is_some_and(|v| !v.function.is_empty())
    }
}

impl ExternCall {
    /// The mask and the dropout of an attention's gradients.
    pub fn mask_and_dropout(&self) -> (Option<&Operand>, Option<Dropout>) {
        let ExternOp::AttentionBackward { dropout, .. } = &self.op else { return (None, None) };
        let optional = self.inputs.get(6..).unwrap_or_default();
        match (dropout, optional) {
            (Some(factor), [mask @ .., kept]) => {
                (mask.first(), Some(Dropout { kept: kept.clone(), factor: *factor }))
            }
            _ => (optional.first(), None),
        }
    }

    /// What a backend made of the mask of an attention's gradients.
    pub fn visibility(&self) -> Option<&Visibility> {
        match &self.op {
            ExternOp::AttentionBackward { visibility, .. } => visibility.as_deref(),
            _ => None,
        }
    }
}

impl LoopKernel {
    /// Declares an accumulator.
    pub fn add_acc(&mut self, op: ReduceOp, dtype: DType) -> AccId {
        self.accs.push(AccDecl { op, dtype });
        AccId((self.accs.len() - 1) as u32)
    }
}

/// Ranges for simplifying index expressions inside a loop nest: the extents of `i0…`, and the sizes' ranges.
pub struct LoopBounds<'a> {
    /// Extents, outermost first.
    pub extents: &'a [SymExpr],
    /// Ranges of size symbols.
    pub symbols: &'a dyn Bounds,
}

impl Bounds for LoopBounds<'_> {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        self.symbols.range(leaf)
    }
    fn extent(&self, loop_var: u32) -> Option<SymExpr> {
        self.extents.get(loop_var as usize).cloned()
    }
}
