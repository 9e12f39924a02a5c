//! Gradients of attention: the choice of kernels, what they share, and the fallback, in which a warp computes the gradient
//! of one row: first of every query, then of every key and its value. The weights are recomputed from the saved logarithms
//! of the softmax sums, so scores never reach memory. Every sum has a fixed order.

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{Attention, Epilogue, ExternCall, ExternOp, Operand, Program};

use crate::attention::Operands;
use crate::attention::backward_flash;
use crate::attention::backward_tma;
use crate::text::body::Uses;
use crate::text::template::{assemble, compute_type, element, volume};
use crate::text::types::{memory_type, number};
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, Target, Variant};

/// Elements of a gradient's row that a lane accumulates at a time; longer rows take several iterations.
const PER_LANE: i64 = 4;
/// Warps per block.
const WARPS: i64 = 4;

/// Returns the candidate implementations, best first by rule.
pub(crate) fn variants(program: &Program, k: &ExternCall, target: &Target) -> Result<Vec<Variant>, GenError> {
    let backward = Backward::of(program, k)?;
    let mut all = backward_tma::variants(program, &backward, target)?;
    all.extend(backward_flash::variants(program, &backward, target)?);
    let kernels = vec![backward.of_queries(program, target)?, backward.of_keys(program, target)?];
    all.push(Variant { name: "simple".into(), kernels, scratch: Vec::new() });
    Ok(all)
}

/// The tensors whose gradients a kernel computes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Side {
    Queries,
    Keys,
}

/// The operands of the routine by name.
pub(crate) struct Backward {
    /// Queries, keys, values, mask and sums. Its epilogue states the sizes of the result and has no body.
    pub(crate) attention: Attention,
    /// The cotangent of the result, `[b, hq, lq, dv]`.
    pub(crate) g: Operand,
    /// The logarithms of the softmax sums, `[b, hq, lq]`.
    pub(crate) sums: Operand,
    pub(crate) deltas: Operand,
    pub(crate) dq: Operand,
    pub(crate) dk: Operand,
    pub(crate) dv: Operand,
}

impl Backward {
    fn of(program: &Program, k: &ExternCall) -> Result<Backward, GenError> {
        let (
            ExternOp::AttentionBackward { causal, scale, visibility, .. },
            [g, q, key, v, sums, deltas, ..],
            [dq, dk, dv],
        ) = (&k.op, &k.inputs[..], &k.outputs[..])
        else {
            return Err(GenError::Malformed(format!("{}: operands of another routine", k.name)));
        };
        let acc = program.buffers[q.buf].dtype.compute();
        let (mask, dropout) = k.mask_and_dropout();
        let ranges: Shape = q.sizes.iter().take(3).chain(v.sizes.last()).cloned().collect();
        let attention = Attention {
            name: k.name.clone(),
            origins: Vec::new(),
            q: q.clone(),
            k: key.clone(),
            v: v.clone(),
            mask: mask.cloned(),
            sums: None,
            dropout,
            visibility: visibility.clone(),
            causal: *causal,
            scale: *scale,
            acc,
            epilogue: Epilogue { ranges, insts: Vec::new() },
        };
        let [g, sums, deltas, dq, dk, dv] = [g, sums, deltas, dq, dk, dv].map(Clone::clone);
        Ok(Backward { attention, g, sums, deltas, dq, dk, dv })
    }

    /// Returns a statement that stores `value` in a gradient.
    pub(crate) fn store(
        &self,
        o: &Operands<'_>,
        (to, index): (&Operand, [&str; 4]),
        value: &str,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let program = o.writer.program;
        let ty = memory_type(program.buffers[to.buf].dtype)?;
        uses.written.insert(program.root(to.buf));
        Ok(format!("{} = to<{ty}>({value});\n", o.element(to, index, uses)))
    }

    /// Returns the value that `of` has for the query row at `i0`, `i1`, `i2`.
    pub(crate) fn of_row(&self, o: &Operands<'_>, of: &Operand, uses: &mut Uses) -> String {
        element(&o.writer, of, &["i0", "i1", "i2"], uses)
    }

    /// Returns statements that compute `weight` and `ds` of query `i2` and key `j` where both are `seen`; both are zero
    /// otherwise.
    fn weigh(&self, o: &Operands<'_>, uses: &mut Uses) -> Result<String, GenError> {
        let a = &self.attention;
        let acc = compute_type(a.acc)?;
        let q = o.element(&a.q, ["i0", "i1", "i2", "d"], uses);
        let key = o.element(&a.k, ["i0", "kv", "j", "d"], uses);
        let g = o.element(&self.g, ["i0", "i1", "i2", "d"], uses);
        let value = o.element(&a.v, ["i0", "kv", "j", "d"], uses);
        let (depth, width) = (o.text(&a.q.sizes[3], uses), o.text(&a.v.sizes[3], uses));
        let mask = o.mask_of("score", uses)?;
        let causal = if a.causal { "seen = seen && j <= i2;\n" } else { "" };
        let (infinity, exp) = if acc == "double" { ("INF64", "exp") } else { ("INF32", "expf") };
        let scale = number(ir_core::Scalar::Float(a.scale), a.acc)?;
        let (drop_cotangent, drop_weight) = match o.is_kept(uses) {
            Some(kept) => {
                let factor = o.by_kept_factor()?;
                (
                    format!("const bool kept = {kept};\ndp = kept ? dp{factor} : 0;\n"),
                    format!("weight = kept ? weight{factor} : 0;\n"),
                )
            }
            None => Default::default(),
        };
        Ok(format!(
            "{acc} weight = 0, ds = 0;
{causal}if (seen) {{
const {acc} sum = {sum}, delta = {delta};
{acc} score = 0, dp = 0;
for (idx d = 0; d < {depth}; ++d) score += to<{acc}>({q}) * to<{acc}>({key});
score *= {scale};
{mask}if (seen && sum != -{infinity}) {{
for (idx d = 0; d < {width}; ++d) dp += to<{acc}>({g}) * to<{acc}>({value});
weight = {exp}(score - sum);
{drop_cotangent}ds = weight * (dp - delta) * {scale};
{drop_weight}}}
}}
",
            sum = self.of_row(o, &self.sums, uses),
            delta = self.of_row(o, &self.deltas, uses),
        ))
    }

    /// The kernel in which a warp computes the gradient of a query: lanes share the keys, then the elements of the
    /// gradient.
    fn of_queries(&self, program: &Program, target: &Target) -> Result<Kernel, GenError> {
        let a = &self.attention;
        let mut uses = Uses::default();
        let o = Operands::of(program, a, &mut uses);
        let acc = compute_type(a.acc)?;
        let rows = volume(&a.q.sizes[..3]);
        let (count, depth) = (o.text(&rows, &mut uses), o.text(&a.q.sizes[3], &mut uses));
        let limit = if a.causal { format!("imin<idx>({}, i2 + 1)", o.keys) } else { o.keys.clone() };
        let weigh = self.weigh(&o, &mut uses)?;
        let key = o.element(&a.k, ["i0", "kv", "at", "e"], &mut uses);
        let store = self.store(&o, (&self.dq, ["i0", "i1", "i2", "e"]), "out[u]", &mut uses)?;
        let body = format!(
            "const int lane = {lane};
for (idx row = blockIdx.x * (idx){WARPS} + threadIdx.x / {wave}; row < {count}; row += (idx)gridDim.x * {WARPS}) {{
const idx i2 = row % {length}, i1 = row / {length} % {heads}, i0 = row / {length} / {heads};
const idx kv = i1 / {group}, limit = {limit};
for (idx e0 = 0; e0 < {depth}; e0 += {columns}) {{
{acc} out[{PER_LANE}] = {{}};
for (idx j0 = 0; j0 < limit; j0 += {wave}) {{
const idx j = j0 + lane;
bool seen = j < limit;
{weigh}const int many = (int)imin<idx>({wave}, limit - j0);
for (int t = 0; t < many; ++t) {{
const {acc} x = shuffle(ds, t);
const idx at = j0 + t;
#pragma unroll
for (int u = 0; u < {PER_LANE}; ++u) {{
const idx e = e0 + lane + {wave} * u;
if (e < {depth}) out[u] += x * to<{acc}>({key});
}}
}}
}}
#pragma unroll
for (int u = 0; u < {PER_LANE}; ++u) {{
const idx e = e0 + lane + {wave} * u;
if (e < {depth}) {{
{store}}}
}}
}}
}}
",
            length = o.rows,
            heads = o.heads,
            group = o.group,
            lane = target.lane(),
            wave = target.wave,
            columns = target.lanes() * PER_LANE,
        );
        assemble(program, ENTRY, &uses, warps(&rows, target), &body)
    }

    /// The kernel in which a warp computes the gradients of a key and its value: lanes share the queries of all heads that
    /// read it.
    fn of_keys(&self, program: &Program, target: &Target) -> Result<Kernel, GenError> {
        let a = &self.attention;
        let mut uses = Uses::default();
        let o = Operands::of(program, a, &mut uses);
        let acc = compute_type(a.acc)?;
        let rows = volume(&a.k.sizes[..3]);
        let kv_heads = o.text(&a.k.sizes[1], &mut uses);
        let (count, depth) = (o.text(&rows, &mut uses), o.text(&a.q.sizes[3], &mut uses));
        let width = o.text(&a.v.sizes[3], &mut uses);
        let first = if a.causal { "j" } else { "0" };
        let weigh = self.weigh(&o, &mut uses)?;
        let q = o.element(&a.q, ["i0", "i1", "at", "e"], &mut uses);
        let g = o.element(&self.g, ["i0", "i1", "at", "e"], &mut uses);
        let store_k = self.store(&o, (&self.dk, ["i0", "kv", "j", "e"]), "of_key[u]", &mut uses)?;
        let store_v = self.store(&o, (&self.dv, ["i0", "kv", "j", "e"]), "of_value[u]", &mut uses)?;
        let body = format!(
            "const int lane = {lane};
for (idx row = blockIdx.x * (idx){WARPS} + threadIdx.x / {wave}; row < {count}; row += (idx)gridDim.x * {WARPS}) {{
const idx j = row % {keys}, kv = row / {keys} % {kv_heads}, i0 = row / {keys} / {kv_heads};
for (idx e0 = 0; e0 < {depth} || e0 < {width}; e0 += {columns}) {{
{acc} of_key[{PER_LANE}] = {{}}, of_value[{PER_LANE}] = {{}};
for (idx i1 = kv * {group}; i1 < (kv + 1) * {group}; ++i1) {{
for (idx from = {first}; from < {length}; from += {wave}) {{
const idx i2 = from + lane;
bool seen = i2 < {length};
{weigh}const int many = (int)imin<idx>({wave}, {length} - from);
for (int t = 0; t < many; ++t) {{
const {acc} w = shuffle(weight, t), x = shuffle(ds, t);
const idx at = from + t;
#pragma unroll
for (int u = 0; u < {PER_LANE}; ++u) {{
const idx e = e0 + lane + {wave} * u;
if (e < {depth}) of_key[u] += x * to<{acc}>({q});
if (e < {width}) of_value[u] += w * to<{acc}>({g});
}}
}}
}}
}}
#pragma unroll
for (int u = 0; u < {PER_LANE}; ++u) {{
const idx e = e0 + lane + {wave} * u;
if (e < {depth}) {{
{store_k}}}
if (e < {width}) {{
{store_v}}}
}}
}}
}}
",
            keys = o.keys,
            length = o.rows,
            group = o.group,
            lane = target.lane(),
            wave = target.wave,
            columns = target.lanes() * PER_LANE,
        );
        assemble(program, ENTRY, &uses, warps(&rows, target), &body)
    }
}

/// A launch with one warp per row.
fn warps(rows: &SymExpr, target: &Target) -> Launch {
    let blocks = rows.ceil_div(&SymExpr::from_i64(WARPS)).sym_min(&SymExpr::from_i64(MAX_BLOCKS));
    Launch::flat(blocks, target.wave * WARPS as u32)
}

/// Whether a dtype has 16 bits and tensor cores multiply it.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}
