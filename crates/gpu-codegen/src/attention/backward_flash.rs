//! Gradients of attention of 16-bit numbers on matrix cores, in two kernels that have one form: a warp keeps 16 or 32 rows of its
//! own side (queries, or keys with values) and goes over tiles of the far side; scores and cotangents of weights stay in
//! registers, where they are turned into factors of the next products.
//!
//! The first kernel makes the gradients of queries, the second those of keys and values, in which the heads of queries that
//! share a head of keys come one after another: no sum depends on the order in which blocks end.
//!
//! Of long rows a block computes a section of the columns of its gradients, and all scores: registers have no room for more.
//!
//! How fragments lie is data of the dialect; the kernels of waves of AMD's, whose tiles are brought otherwise, are written in
//! `backward_waves` with the parts that stand here.

use ir_core::{DType, SymExpr};
use kernel_ir::{Operand, Program};

use crate::attention::backward::{Backward, Side, is_half};
use crate::attention::flash::grain;
use crate::attention::{Operands, backward_waves};
use crate::dialect::fragments::Fragments;
use crate::text::body::Uses;
use crate::text::template::{assemble, volume};
use crate::text::types::value_type;
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, Target, Variant};

/// Elements between the ends of two rows in shared memory: eight rows then lie in different banks.
pub(crate) const PAD: i64 = 8;
/// The longest rows whose gradients of keys and values a warp keeps in registers, and those of queries alone.
const MAX_COLUMNS: i64 = 128;
const MAX_QUERY_COLUMNS: i64 = 256;
/// The longest rows.
const MAX_WIDTH: i64 = 1024;

/// The ways of computing them; none where there are no matrix cores, or operands cannot be read 16 bytes at once.
pub(crate) fn variants(
    program: &Program,
    backward: &Backward,
    target: &Target,
) -> Result<Vec<Variant>, GenError> {
    let Some(fragments) = Fragments::of(target) else { return Ok(Vec::new()) };
    let Some(flash) = Flash::of(program, backward, fragments) else { return Ok(Vec::new()) };
    if fragments.turned() && !backward_waves::held(&flash) {
        return Ok(Vec::new());
    }
    let fits = |warps: &i64| flash.shared(*warps) <= i64::from(target.lds);
    let order: &[i64] = if flash.is_long() { &[4, 2, 1] } else { &[4, 8, 2] };
    order.iter().copied().filter(fits).map(|warps| flash.variant(warps)).collect()
}

pub(crate) struct Flash<'a> {
    pub(crate) program: &'a Program,
    pub(crate) backward: &'a Backward,
    pub(crate) fragments: Fragments,
    pub(crate) dtype: DType,
    /// Elements of a query and of a key, of a value; in shared memory both are filled up to multiples of 16.
    pub(crate) depth: i64,
    pub(crate) width: i64,
    /// Elements that a thread copies at once.
    grain: i64,
}

pub(crate) fn round_up_16(n: i64) -> i64 {
    (n + 15) / 16 * 16
}

/// What dropout makes of the weight `w` and of its cotangent `grad[n][e]`, of a query `i2` and a key `j` that are `seen`, as text.
pub(crate) struct Dropped {
    /// Declares what the others need.
    pub(crate) kept: String,
    pub(crate) weight: String,
    pub(crate) cotangent: String,
}

impl Dropped {
    pub(crate) fn of(o: &Operands<'_>, uses: &mut Uses) -> Result<Dropped, GenError> {
        let Some(kept) = o.is_kept(uses) else {
            return Ok(Dropped { kept: String::new(), weight: "w".into(), cotangent: "grad[n][e]".into() });
        };
        let factor = o.by_kept_factor()?;
        Ok(Dropped {
            kept: format!("const bool kept = seen && {kept};\n"),
            weight: format!("(kept ? w{factor} : 0.0f)"),
            cotangent: format!("(kept ? grad[n][e]{factor} : 0.0f)"),
        })
    }
}

/// A copy of rows to shared memory.
struct Tile<'a> {
    to: &'a str,
    operand: &'a Operand,
    head: &'a str,
    /// The variable of the row, its first value, and the end of all rows.
    row: &'a str,
    from: &'a str,
    limit: &'a str,
    elements: i64,
    count: i64,
}

impl<'a> Flash<'a> {
    fn of(program: &'a Program, backward: &'a Backward, fragments: Fragments) -> Option<Flash<'a>> {
        let a = &backward.attention;
        let dtype = program.buffers[a.q.buf].dtype;
        let read = [&a.q, &a.k, &a.v, &backward.g];
        let same = read.iter().all(|o| program.buffers[o.buf].dtype == dtype);
        let (depth, width) = (a.q.sizes[3].as_const()?, a.v.sizes[3].as_const()?);
        let most = if fragments.turned() { MAX_COLUMNS } else { MAX_WIDTH };
        let grain = grain(&read, [depth, width], most, &fragments)?;
        (same && is_half(dtype)).then_some(Flash { program, backward, fragments, dtype, depth, width, grain })
    }

    fn is_long(&self) -> bool {
        self.depth.max(self.width) > MAX_COLUMNS
    }

    /// In how many sections the columns of a side's gradients are computed.
    fn sections(&self, side: Side) -> i64 {
        let (elements, most) = match side {
            Side::Queries => (self.depth, MAX_QUERY_COLUMNS),
            Side::Keys => (self.depth.max(self.width), MAX_COLUMNS),
        };
        (elements + most - 1) / most
    }

    /// Columns of a section of rows of so many elements.
    fn columns(&self, side: Side, elements: i64) -> i64 {
        let sections = self.sections(side);
        round_up_16((elements + sections - 1) / sections)
    }

    /// Elements of a row in shared memory, of whole sections, with padding.
    fn pitch(&self, side: Side, elements: i64) -> i64 {
        self.columns(side, elements) * self.sections(side) + PAD
    }

    /// The first column of the block's section of rows of so many elements, to be added to, as text.
    fn first_column(&self, side: Side, elements: i64) -> String {
        match self.sections(side) {
            1 => String::new(),
            _ => format!("section * {} + ", self.columns(side, elements)),
        }
    }

    /// Rows of a tile of the far side: with long rows fewer scores leave room in the registers, and fewer rows in shared memory.
    pub(crate) fn tile(&self) -> i64 {
        if self.is_long() {
            return 16;
        }
        let short = self.fragments.turned() && self.fragments.wave == 32;
        if self.depth.max(self.width) <= 64 && !short { 64 } else { 32 }
    }

    /// Bytes of shared memory: the stationary rows, two tiles of the streamed side, and two numbers per streamed row.
    fn shared(&self, warps: i64) -> i64 {
        if self.fragments.turned() {
            return backward_waves::shared(self);
        }
        let both = |side| self.pitch(side, self.depth) + self.pitch(side, self.width);
        let elements = both(Side::Queries).max(both(Side::Keys));
        2 * elements * (warps * self.fragments.own + 2 * self.tile()) + 2 * 2 * self.tile() * 4
    }

    fn variant(&self, warps: i64) -> Result<Variant, GenError> {
        let kernels = vec![self.kernel(warps, Side::Queries)?, self.kernel(warps, Side::Keys)?];
        let name = format!("flash_{}x{}", warps * self.fragments.own, self.tile());
        Ok(Variant { name, kernels, scratch: Vec::new() })
    }

    /// Returns the copies of a tile, up to 16 bytes per thread. Rows beyond the last one are filled with zeros.
    fn load(
        &self,
        o: &Operands<'_>,
        (kernel, tile): (Side, &Tile<'_>),
        warps: i64,
        uses: &mut Uses,
    ) -> String {
        let pitch = self.pitch(kernel, tile.elements);
        let at = format!("at_{}", tile.row);
        let source = o.element(tile.operand, ["i0", tile.head, &at, "d"], uses);
        format!(
            "for (int t = threadIdx.x; t < {count} * {chunks}; t += {threads}) {{
const int line = t / {chunks}, part = t % {chunks} * {grain};
const idx {row} = {from} + line;
const bool there = {row} < {limit} && part < {elements};
const idx {at} = there ? {row} : 0;
const idx d = there ? part : 0;
cp_async_{bytes}({to} + line * {pitch} + part, &{source}, there ? {bytes} : 0);
}}
",
            count = tile.count,
            grain = self.grain,
            bytes = 2 * self.grain,
            chunks = (pitch - PAD) / self.grain,
            threads = 32 * warps,
            row = tile.row,
            from = tile.from,
            limit = tile.limit,
            elements = tile.elements,
            to = tile.to,
        )
    }

    /// Returns the copies of both matrices of one side, queries with cotangents or keys with values, the kernel's own or the far one.
    fn load_side(&self, o: &Operands<'_>, side: Side, far: bool, warps: i64, uses: &mut Uses) -> String {
        let (b, a) = (self.backward, &self.backward.attention);
        let (operands, head, row, limit) = match side {
            Side::Queries => ([&a.q, &b.g], "i1", "i2", &o.rows),
            Side::Keys => ([&a.k, &a.v], "kv", "j", &o.keys),
        };
        let (names, from, count) = if far {
            (["to1", "to2"], "from", self.tile())
        } else {
            (["own1", "own2"], "row0", warps * self.fragments.own)
        };
        let sizes = [self.depth, self.width];
        let kernel = match (side, far) {
            (Side::Queries, false) | (Side::Keys, true) => Side::Queries,
            _ => Side::Keys,
        };
        let one = |n: usize, uses: &mut Uses| {
            let (to, operand, elements) = (names[n], operands[n], sizes[n]);
            let tile = Tile { to, operand, head, row, from, limit, elements, count };
            self.load(o, (kernel, &tile), warps, uses)
        };
        let first = one(0, uses);
        first + &one(1, uses)
    }

    /// Returns statements that load the tile of iteration `next`: its copies and, for queries, the two numbers of each
    /// row.
    fn prefetch(&self, o: &Operands<'_>, side: Side, warps: i64, uses: &mut Uses) -> String {
        let tile = self.tile();
        let places = format!(
            "{ty} *to1 = far1 + next % 2 * {tile} * {dp}, *to2 = far2 + next % 2 * {tile} * {wp};\n",
            ty = self.ty(),
            dp = self.pitch(side, self.depth),
            wp = self.pitch(side, self.width),
        );
        match side {
            Side::Queries => {
                let copies = self.load_side(o, Side::Keys, true, warps, uses);
                format!("const idx from = next * {tile};\n{places}{copies}")
            }
            Side::Keys => {
                let copies = self.load_side(o, Side::Queries, true, warps, uses);
                let sum = self.backward.of_row(o, &self.backward.sums, uses);
                let delta = self.backward.of_row(o, &self.backward.deltas, uses);
                format!(
                    "const idx i1 = kv * {group} + next / tiles_far, from = (first_tile + next % tiles_far) * {tile};
{places}{copies}for (int t = threadIdx.x; t < {tile}; t += {threads}) {{
const idx i2 = from + t;
far_sums[next % 2 * {tile} + t] = i2 < {rows} ? {sum} : -INF32;
far_deltas[next % 2 * {tile} + t] = i2 < {rows} ? {delta} : 0.0f;
}}
",
                    group = o.group,
                    rows = o.rows,
                    threads = 32 * warps,
                )
            }
        }
    }

    pub(crate) fn ty(&self) -> &'static str {
        if self.dtype == DType::BF16 { "bf16" } else { "f16" }
    }

    /// Statements before the turns: how many there are, and with queries the numbers of the own rows.
    pub(crate) fn bounds(&self, o: &Operands<'_>, side: Side, warps: i64, uses: &mut Uses) -> String {
        let (a, tile) = (&self.backward.attention, self.tile());
        match side {
            Side::Queries => {
                let limit = if a.causal {
                    format!("imin<idx>({}, row0 + {})", o.keys, warps * self.fragments.own)
                } else {
                    o.keys.clone()
                };
                let sum = self.backward.of_row(o, &self.backward.sums, uses);
                let delta = self.backward.of_row(o, &self.backward.deltas, uses);
                format!(
                    "const idx i1 = head, kv = i1 / {group}, turns = ({limit} + {tile} - 1) / {tile};
float own_sums[{slots}], own_deltas[{slots}];
#pragma unroll
for (int r = 0; r < {slots}; ++r) {{
const idx i2 = first + r * 8;
own_sums[r] = i2 < {rows} ? {sum} : -INF32;
own_deltas[r] = i2 < {rows} ? {delta} : 0.0f;
}}
",
                    group = o.group,
                    rows = o.rows,
                    slots = self.fragments.slots,
                )
            }
            Side::Keys => {
                let first = if a.causal { format!("row0 / {tile}") } else { "0".into() };
                format!(
                    "const idx kv = head, first_tile = {first}, last_tile = ({rows} + {tile} - 1) / {tile};
const idx tiles_far = last_tile > first_tile ? last_tile - first_tile : 0, turns = tiles_far * {group};
",
                    group = o.group,
                    rows = o.rows,
                )
            }
        }
    }

    /// Returns statements that replace `score` and `grad` of an element by the weight and the cotangent of the score.
    fn weigh(&self, o: &Operands<'_>, side: Side, uses: &mut Uses) -> Result<String, GenError> {
        let tile = self.tile();
        let places = match side {
            Side::Queries => format!(
                "const idx i2 = row, j = turn * {tile} + column;\nconst float sum = own_sums[e >> 1], delta = own_deltas[e >> 1];\n"
            ),
            Side::Keys => format!(
                "const idx j = row, i1 = kv * {group} + turn / tiles_far, i2 = (first_tile + turn % tiles_far) * {tile} + column;
const float sum = far_sums[turn % 2 * {tile} + column], delta = far_deltas[turn % 2 * {tile} + column];
",
                group = o.group
            ),
        };
        let causal = if self.backward.attention.causal { " && j <= i2" } else { "" };
        let Dropped { kept, weight, cotangent } = Dropped::of(o, uses)?;
        Ok(format!(
            "const idx row = first + (e >> 1) * 8;
const int column = n * 8 + pair * 2 + (e & 1);
{places}bool seen = i2 < {rows} && j < {keys}{causal};
float sc = score[n][e] * {scale};
if (seen) {{
{mask}}}
seen = seen && sum != -INF32;
const float w = seen ? exp2f((sc - sum) * 1.4426950408889634f) : 0.0f;
{kept}score[n][e] = {weight};
grad[n][e] = seen ? w * ({cotangent} - delta) : 0.0f;
",
            rows = o.rows,
            keys = o.keys,
            scale = o.scale,
            mask = o.mask_of("sc", uses)?,
        ))
    }

    /// Computes `out (+)= factors · tile`. The factors are the warp's values of its rows by the tile's rows, rounded to 16
    /// bits.
    fn product(&self, side: Side, [factors, tile, out]: [&str; 3], elements: i64) -> String {
        let half = if self.dtype == DType::BF16 { "bf16" } else { "f16" };
        format!(
            "#pragma unroll
for (int n = 0; n < {nt}; n += 2) {{
const u32 a[4] = {{ pack_{half}({factors}[n][0], {factors}[n][1]), pack_{half}({factors}[n][2], {factors}[n][3]),
pack_{half}({factors}[n + 1][0], {factors}[n + 1][1]), pack_{half}({factors}[n + 1][2], {factors}[n + 1][3]) }};
#pragma unroll
for (int t = 0; t < {et}; t += 2) {{
u32 b[4];
ldmatrix_x4_trans(b, {tile} + (n * 8 + (lane & 15)) * {pitch} + {column}t * 8 + (lane >> 4) * 8);
const u32 b0[2] = {{b[0], b[1]}}, b1[2] = {{b[2], b[3]}};
mma_{half}({out}[t], a, b0);
mma_{half}({out}[t + 1], a, b1);
}}
}}
",
            nt = self.tile() / 8,
            et = self.columns(side, elements) / 8,
            column = self.first_column(side, elements),
            pitch = self.pitch(side, elements),
        )
    }

    /// Computes `out = own · tileᵀ`.
    fn scores(&self, side: Side, [own, tile, out]: [&str; 3], elements: i64) -> String {
        let half = if self.dtype == DType::BF16 { "bf16" } else { "f16" };
        format!(
            "#pragma unroll
for (int s = 0; s < {steps}; ++s) {{
u32 a[4];
ldmatrix_x4(a, {own} + (warp * 16 + (lane & 15)) * {pitch} + s * 16 + (lane >> 4) * 8);
#pragma unroll
for (int n = 0; n < {nt}; n += 2) {{
u32 b[4];
ldmatrix_x4(b, {tile} + (n * 8 + (lane & 7) + (lane >> 4) * 8) * {pitch} + s * 16 + (lane >> 3 & 1) * 8);
const u32 b0[2] = {{b[0], b[1]}}, b1[2] = {{b[2], b[3]}};
mma_{half}({out}[n], a, b0);
mma_{half}({out}[n + 1], a, b1);
}}
}}
",
            steps = round_up_16(elements) / 16,
            nt = self.tile() / 8,
            pitch = self.pitch(side, elements),
        )
    }

    /// Statements that store a gradient of the own rows, or the columns of the block's section.
    pub(crate) fn store(
        &self,
        o: &Operands<'_>,
        (to, head, limit): (&Operand, &str, &str),
        (from, factor, elements): (&str, &str, i64),
        (side, uses): (Side, &mut Uses),
    ) -> Result<String, GenError> {
        let f = &self.fragments;
        let value = format!("{from}[t][e]{factor}");
        let store = self.backward.store(o, (to, ["i0", head, "row", "column"]), &value, uses)?;
        Ok(format!(
            "#pragma unroll
for (int t = 0; t < {et}; ++t)
#pragma unroll
for (int e = 0; e < {parts}; ++e) {{
const idx row = first + {own_row}, column = {column}t * {far} + {far_row};
if (row < {limit} && column < {elements}) {{
{store}}}
}}
",
            et = (self.columns(side, elements) + f.far - 1) / f.far,
            column = self.first_column(side, elements),
            parts = f.parts,
            own_row = f.own_row,
            far = f.far,
            far_row = f.far_row,
        ))
    }

    fn kernel(&self, warps: i64, side: Side) -> Result<Kernel, GenError> {
        if self.fragments.turned() {
            return backward_waves::kernel(self, warps, side);
        }
        let (b, a) = (self.backward, &self.backward.attention);
        let mut uses = Uses::default();
        let o = Operands::of(self.program, a, &mut uses);
        let own = if side == Side::Queries { &a.q } else { &a.k };
        let tiles = own.sizes[2].ceil_div(&SymExpr::from_i64(warps * self.fragments.own));
        let sections = self.sections(side);
        let count = volume(&own.sizes[..2]) * &tiles * SymExpr::from_i64(sections);
        let (tiles, all) = (o.text(&tiles, &mut uses), o.text(&count, &mut uses));
        let heads = o.text(&own.sizes[1], &mut uses);
        let load_own = self.load_side(&o, side, false, warps, &mut uses);
        let bounds = self.bounds(&o, side, warps, &mut uses);
        let prefetch = self.prefetch(&o, side, warps, &mut uses);
        let weigh = self.weigh(&o, side, &mut uses)?;
        let scale = format!(" * {}", o.scale);
        let (mut products, mut stores, mut sums) = (String::new(), String::new(), String::new());
        let (depth, width) = (self.depth, self.width);
        match side {
            Side::Queries => {
                sums += &format!("float of_query[{}][4] = {{}};\n", self.columns(side, depth) / 8);
                products += &self.product(side, ["grad", "tile1", "of_query"], depth);
                let from = ("of_query", scale.as_str(), depth);
                stores += &self.store(&o, (&b.dq, "i1", &o.rows), from, (side, &mut uses))?;
            }
            Side::Keys => {
                sums += &format!(
                    "float of_key[{}][4] = {{}}, of_value[{}][4] = {{}};\n",
                    self.columns(side, depth) / 8,
                    self.columns(side, width) / 8
                );
                products += &self.product(side, ["score", "tile2", "of_value"], width);
                products += &self.product(side, ["grad", "tile1", "of_key"], depth);
                let (key, value) = (("of_key", scale.as_str(), depth), ("of_value", "", width));
                stores += &self.store(&o, (&b.dk, "kv", &o.keys), key, (side, &mut uses))?;
                stores += &self.store(&o, (&b.dv, "kv", &o.keys), value, (side, &mut uses))?;
            }
        }
        let (of, section) = match sections {
            1 => ("block".to_owned(), String::new()),
            n => (format!("(block / {n})"), format!("const idx section = block % {n};\n")),
        };
        let body = format!(
            "DYNAMIC_SHARED(memory);
{ty} *own1 = ({ty} *)memory, *own2 = own1 + {block_rows} * {dp}, *far1 = own2 + {block_rows} * {wp}, *far2 = far1 + 2 * {tile} * {dp};
float *far_sums = (float *)(far2 + 2 * {tile} * {wp}), *far_deltas = far_sums + 2 * {tile};
(void)far_deltas;
const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, line4 = lane >> 2, pair = lane & 3;
for (idx block = blockIdx.x; block < {all}; block += gridDim.x) {{
const idx row0 = {of} % {tiles} * {block_rows}, head = {of} / {tiles} % {heads}, i0 = {of} / {tiles} / {heads};
{section}const idx first = row0 + warp * 16 + line4;
{bounds}{load_own}if (turns > 0) {{ const idx next = 0;
{prefetch}}}
cp_async_commit();
{sums}for (idx turn = 0; turn < turns; ++turn) {{
if (turn + 1 < turns) {{ const idx next = turn + 1;
{prefetch}}}
cp_async_commit();
cp_async_wait<1>();
block_sync();
const {ty} *tile1 = far1 + turn % 2 * {tile} * {dp}, *tile2 = far2 + turn % 2 * {tile} * {wp};
float score[{nt}][4] = {{}}, grad[{nt}][4] = {{}};
{scores}{grads}#pragma unroll
for (int n = 0; n < {nt}; ++n)
#pragma unroll
for (int e = 0; e < 4; ++e) {{
{weigh}}}
{products}block_sync();
}}
{stores}cp_async_wait<0>();
block_sync();
}}
",
            ty = value_type(self.dtype)?,
            block_rows = warps * self.fragments.own,
            dp = self.pitch(side, depth),
            wp = self.pitch(side, width),
            tile = self.tile(),
            nt = self.tile() / 8,
            scores = self.scores(side, ["own1", "tile1", "score"], depth),
            grads = self.scores(side, ["own2", "tile2", "grad"], width),
        );
        let mut launch = Launch::flat(count.sym_min(&SymExpr::from_i64(MAX_BLOCKS)), 32 * warps as u32);
        launch.shared = self.shared(warps) as u32;
        assemble(self.program, ENTRY, &uses, launch, &body)
    }
}
