//! Gradients of 16-bit attention by the tensor memory accelerator and `wgmma` (`dialect/common/flash.cu`), in two kernels
//! with the structure of `backward_flash`: the first computes the gradients of queries, the second those of keys and
//! values and visits the query heads that share a key head one after another. No sum depends on the order in which blocks
//! end.

use ir_core::SymExpr;
use kernel_ir::{Operand, Program};

use crate::attention::Operands;
use crate::attention::backward::{Backward, Side, is_half};
use crate::attention::masks;
use crate::attention::scores::{ScoreTransform, Scores};
use crate::attention::tma::{BlockOrder, MAX_WIDTH, TileShape, TmaAttention, kernel, load};
use crate::text::body::Uses;
use crate::text::template::volume;
use crate::text::types::memory_type;
use crate::{GenError, Kernel, Target, Variant};

/// Returns the candidates, best first by rule; none where the device has no TMA or an operand does not suit it.
pub(crate) fn variants(
    program: &Program,
    backward: &Backward,
    target: &Target,
) -> Result<Vec<Variant>, GenError> {
    let operands = (&[&backward.g][..], MAX_WIDTH);
    let Some(tma) = TmaAttention::of(program, &backward.attention, operands, target) else {
        return Ok(Vec::new());
    };
    let gradient = Gradient { tma, backward, target };
    let most = i64::from(target.lds);
    let fits = |[queries, keys]: &&TileShapes| {
        gradient.shared(Side::Queries, *queries) <= most && gradient.shared(Side::Keys, *keys) <= most
    };
    let cuts = if gradient.long() { LONG } else { SHORT };
    cuts.iter().filter(fits).map(|cuts| gradient.variant(*cuts)).collect()
}

/// The tile shapes of the two kernels: of queries, and of keys and values.
type TileShapes = [TileShape; 2];

const fn shape(own: i64, far: i64, stages: i64) -> TileShape {
    TileShape { own, far, stages }
}

/// Tile shapes for rows of at most 64 elements, in the order of the times measured on an H200.
const SHORT: &[TileShapes] =
    &[[shape(64, 128, 2), shape(64, 64, 3)], [shape(128, 128, 2), shape(128, 64, 3)]];
/// Tile shapes for longer rows.
const LONG: &[TileShapes] = &[[shape(64, 64, 2), shape(128, 64, 3)], [shape(128, 64, 2), shape(128, 64, 2)]];

struct Gradient<'a> {
    tma: TmaAttention<'a>,
    backward: &'a Backward,
    target: &'a Target,
}

impl Gradient<'_> {
    /// Whether two gradients of 64 rows leave a warpgroup few registers.
    fn long(&self) -> bool {
        self.tma.depth.max(self.tma.width) > 64
    }

    fn variant(&self, [queries, keys]: TileShapes) -> Result<Variant, GenError> {
        let name = format!("wgmma_{}x{}_{}x{}", queries.own, queries.far, keys.own, keys.far);
        let kernels = vec![self.generate(Side::Queries, queries)?, self.generate(Side::Keys, keys)?];
        Ok(Variant { name, kernels, scratch: Vec::new() })
    }

    fn shared(&self, side: Side, shape: TileShape) -> i64 {
        let row: i64 = self.tma.bytes().iter().sum();
        let numbers = if side == Side::Queries { 0 } else { 2 * shape.far };
        shape.shared(shape.own * row, shape.far * row, numbers)
    }

    fn generate(&self, side: Side, shape: TileShape) -> Result<Kernel, GenError> {
        let (program, a) = (self.tma.program, &self.backward.attention);
        let mut uses = Uses::default();
        let o = Operands::of(program, a, &mut uses);
        let own = if side == Side::Queries { &a.q } else { &a.k };
        let tiles = own.sizes[2].ceil_div(&SymExpr::from_i64(shape.own));
        let all_heads = volume(&own.sizes[..2]);
        let count = &all_heads * &tiles;
        let place = self.place(&o, side, shape, (&tiles, &all_heads), &mut uses);
        let name = if side == Side::Queries { "QUERIES" } else { "KEYS_AND_VALUES" };
        let head = format!(
            "typedef FlashGradient<{}, {name}, {}, {}, {}, {}, {}, {}, {}> Flash;\nFlash flash(memory);\n",
            self.tma.ty()?,
            shape.own,
            shape.far,
            self.tma.depth,
            self.tma.width,
            shape.stages,
            self.long() && side == Side::Keys,
            a.dropout.is_some(),
        );
        let bring = self.bring(&o, side, shape, &place, &mut uses)?;
        let multiply = self.multiply(&o, side, shape, &place, &mut uses)?;
        kernel(
            program,
            (shape.consumers(), self.shared(side, shape)),
            (&count, &uses),
            [&head, &bring, &multiply],
        )
    }

    /// Returns the loop over blocks: its own rows and head, the number of iterations, and where the streamed rows of an
    /// iteration begin.
    fn place(
        &self,
        o: &Operands<'_>,
        side: Side,
        TileShape { own, far, .. }: TileShape,
        (tiles, all_heads): (&SymExpr, &SymExpr),
        uses: &mut Uses,
    ) -> String {
        let a = &self.backward.attention;
        let row: i64 = self.tma.bytes().iter().sum();
        let (far_rows, heads) = match side {
            Side::Queries => (&a.k.sizes[2], o.heads.clone()),
            Side::Keys => (&a.q.sizes[2], o.text(&a.k.sizes[1], uses)),
        };
        let order = BlockOrder {
            tiles: o.text(tiles, uses),
            all_heads: o.text(all_heads, uses),
            concurrent_heads: BlockOrder::concurrent_heads(
                self.target,
                far_rows.as_const().unwrap_or(4096) * row,
            ),
            last_first: (a.causal || a.visibility.as_ref().is_some_and(|v| v.rows.is_some()))
                && side == Side::Queries,
            own,
            sections: 1,
            heads: heads.clone(),
        };
        let (rows, keys, group) = (&o.rows, &o.keys, &o.group);
        let table = a
            .visibility
            .as_ref()
            .and_then(|v| if side == Side::Queries { v.rows.as_ref() } else { v.columns.as_ref() });
        let mut shown = |lines: &str, head: &str, [first, end]: [&str; 2]| {
            let table = table?;
            let text = masks::Shown { table, own, far, lines, head, first, end }.text(o, &["shown"], uses);
            Some(text + "const int turns = shown.count();\n")
        };
        let turns = match side {
            Side::Queries => {
                let limit = if a.causal { format!("imin<idx>({keys}, row0 + {own})") } else { keys.clone() };
                let (tiles, at) = match shown("1", &format!("head % {heads}"), ["0", "limit"]) {
                    Some(text) => (text, "shown.at(turn)"),
                    None => (format!("const int turns = (int)((limit + {far} - 1) / {far});\n"), "turn"),
                };
                format!(
                    "const idx i1 = head % {heads}, limit = {limit};
(void)i1;
{tiles}auto far_row = [&](int turn) {{ return (idx){at} * {far}; }};
"
                )
            }
            Side::Keys => {
                let first = if a.causal { format!("row0 / {far} * {far}") } else { "0".into() };
                let tiles = match shown(group, &format!("kv * {group} + line"), ["far0", rows]) {
                    Some(text) => format!(
                        "{text}auto far_row = [&](int turn) {{ return (idx)shown.at(turn) * {far}; }};
auto far_head = [&](int turn) {{ shown.at(turn); return kv * {group} + shown.line; }};
"
                    ),
                    None => format!(
                        "const int tiles_far = (int)({rows} > far0 ? ({rows} - far0 + {far} - 1) / {far} : 0), turns = tiles_far * (int)({group});
auto far_row = [&](int turn) {{ return far0 + (idx)(turn % tiles_far) * {far}; }};
auto far_head = [&](int turn) {{ return kv * {group} + turn / tiles_far; }};
"
                    ),
                };
                format!("const idx kv = head % {heads}, far0 = {first};\n{tiles}")
            }
        };
        order.text() + &turns
    }

    /// Returns the code of the producer warp, which loads tiles.
    fn bring(
        &self,
        o: &Operands<'_>,
        side: Side,
        shape: TileShape,
        place: &str,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let (b, a, program) = (self.backward, &self.backward.attention, self.tma.program);
        let group = format!("i1 / {}", o.group);
        let (own, far, own_head, far_head) = match side {
            Side::Queries => ([&a.q, &b.g], [&a.k, &a.v], "i1", group.as_str()),
            Side::Keys => ([&a.k, &a.v], [&a.q, &b.g], "kv", "far_head(turn)"),
        };
        let mut loads = String::new();
        for operand in own {
            loads += &load(program, (operand, shape.own), ("", "row0", own_head), uses)?;
            loads += ",\n";
        }
        for operand in far {
            loads += &load(program, (operand, shape.far), (", int turn", "far_row(turn)", far_head), uses)?;
            loads += ",\n";
        }
        let number = match side {
            Side::Queries => "[](int, int, int) { return 0.0f; }".to_owned(),
            Side::Keys => format!(
                "[&](int which, int line, int turn) {{
const idx i1 = far_head(turn), i2 = far_row(turn) + line;
if (i2 >= {rows}) return which == 0 ? INF32 : 0.0f;
return which == 0 ? flash_exponent({sum}) : {delta};
}}",
                rows = o.rows,
                sum = b.of_row(o, &b.sums, uses),
                delta = b.of_row(o, &b.deltas, uses),
            ),
        };
        Ok(format!(
            "if (threadIdx.x / 32 == {producer}) {{\nconst int warp = 0;\n(void)warp;\n{place}flash.bring(turns, {loads}{number});\n}}\n}}\n",
            producer = shape.own / 16
        ))
    }

    /// Returns the code of the consumer warpgroups, which multiply.
    fn multiply(
        &self,
        o: &Operands<'_>,
        side: Side,
        shape: TileShape,
        place: &str,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let b = self.backward;
        let numbers = match side {
            Side::Keys => String::new(),
            Side::Queries => format!(
                "#pragma unroll
for (int r = 0; r < 2; ++r) {{
const idx i2 = first + r * 8;
flash.sums[r] = i2 < {rows} ? flash_exponent({sum}) : INF32;
flash.deltas[r] = i2 < {rows} ? {delta} : 0.0f;
}}
",
                rows = o.rows,
                sum = b.of_row(o, &b.sums, uses),
                delta = b.of_row(o, &b.deltas, uses),
            ),
        };
        let ScoreTransform { factor, text } = self.score_transform(o, side, shape, uses)?;
        let (scale, kept_factor) = (format!(" * {}", o.scale), o.by_kept_factor()?);
        let drop = o.kept_of_tile(side, shape.far, uses);
        let stores = match side {
            Side::Queries => {
                self.store(o, (&b.dq, "i1", &o.rows), ("grad1", &scale, self.tma.depth), uses)?
            }
            Side::Keys => {
                self.store(o, (&b.dk, "kv", &o.keys), ("grad1", &scale, self.tma.depth), uses)?
                    + &self.store(o, (&b.dv, "kv", &o.keys), ("grad2", &kept_factor, self.tma.width), uses)?
            }
        };
        Ok(format!(
            "{place}const idx first = row0 + warp * 16 + line4;
{numbers}{drop}flash.turns(turns, {factor}, 1.0f{kept_factor}, {text}, kept_words, kept);
{stores}}}
"
        ))
    }

    fn score_transform(
        &self,
        o: &Operands<'_>,
        side: Side,
        shape: TileShape,
        uses: &mut Uses,
    ) -> Result<ScoreTransform, GenError> {
        let (keys, far) = (&o.keys, shape.far);
        let group0 = "row0 + warp / 4 * 64";
        let (mut whole, mut seen) = match side {
            Side::Queries => (format!("from + {far} <= {keys}"), format!("j < {keys}")),
            // Sums of keys beyond the last one are not stored.
            Side::Keys => ("true".into(), "true".into()),
        };
        if self.backward.attention.causal {
            whole += &match side {
                Side::Queries => format!(" && from + {far} <= {group0} + 1"),
                Side::Keys => format!(" && from >= {group0} + 63"),
            };
            seen += " && j <= i2";
        }
        let noted = self.backward.attention.visibility.as_ref().and_then(|v| v.rows.as_ref());
        let unchanged = noted.map(|_| "shown.is_whole()".to_owned());
        Scores { side, far, tile: far, whole, seen, unchanged }.transform(o, uses)
    }

    /// Returns statements that store a gradient of the block's own rows.
    fn store(
        &self,
        o: &Operands<'_>,
        (to, head, limit): (&Operand, &str, &str),
        (from, factor, elements): (&str, &str, i64),
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let dtype = self.tma.program.buffers[to.buf].dtype;
        let value = |e: &str| format!("flash.{from}[4 * n + 2 * r{e}]{factor}");
        let stores = if is_half(dtype) && crate::product::gemv::aligned(to, 3, 2) {
            uses.written.insert(self.tma.program.root(to.buf));
            let place = o.element(to, ["i0", head, "row", "column"], uses);
            let ty = memory_type(dtype)?;
            format!("*(u32 *)&{place} = pack_halves(Tag<{ty}>(), {}, {});\n", value(""), value(" + 1"))
        } else {
            self.backward.store(o, (to, ["i0", head, "row", "column"]), &value(""), uses)?
                + &self.backward.store(o, (to, ["i0", head, "row", "(column + 1)"]), &value(" + 1"), uses)?
        };
        Ok(format!(
            "#pragma unroll
for (int r = 0; r < 2; ++r) {{
const idx row = first + r * 8;
#pragma unroll
for (int n = 0; n < {}; ++n) {{
const idx column = n * 8 + pair * 2;
if (row < {limit}) {{
{stores}}}
}}
}}
",
            elements / 8,
        ))
    }
}
