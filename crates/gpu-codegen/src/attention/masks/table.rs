//! Which blocks of scores a mask hides. A mask that is computed from positions, as models build it, hides whole blocks of 64
//! queries and 64 keys: a triangle, what lies outside of a window, another document, padding. A small kernel looks at the mask
//! once per call and notes for each block whether it shows some score and whether it shows all unchanged, a bit each; every
//! attention with that mask visits the blocks that are shown, and does not look at the mask where all is shown. The same kernel
//! leaves a mask that is given as truth values in bits, words of 32 keys: from bytes the mask of a score takes more instructions
//! than the score itself.
//!
//! Not here: which masks get what (`masks`), and what kernels make of the bits (`scores`).

use ir_core::{DType, SymExpr};
use kernel_ir::{ExternCall, ExternOp, MaskTable, Operand, Program};

use crate::attention::Operands;
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{EpilogueEffects, assemble, element};
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, Target, Variant};

/// Queries and keys of a block.
pub(crate) const BLOCK: i64 = 64;
/// Keys, or blocks, of a word.
pub(crate) const WORD: i64 = 32;
/// Blocks that a block of threads looks at: the bits of a byte.
const GROUP: i64 = 8;
/// Threads of a block.
const THREADS: i64 = 1024;

/// The words for the blocks of `length` queries or keys.
pub(super) fn words(length: &SymExpr) -> SymExpr {
    length.ceil_div(&SymExpr::from_i64(BLOCK * WORD))
}

/// The candidates of the step that makes a table.
pub(crate) fn variants(program: &Program, k: &ExternCall, target: &Target) -> Result<Vec<Variant>, GenError> {
    let (ExternOp::MaskTable(table), [to, bits @ ..]) = (&k.op, &k.outputs[..]) else {
        return Err(GenError::Malformed(format!("{}: operands of another routine", k.name)));
    };
    Ok(vec![Variant::single("blocks", generate(program, table, (to, bits.first()), target)?)])
}

fn generate(
    program: &Program,
    table: &MaskTable,
    (to, bits): (&Operand, Option<&Operand>),
    target: &Target,
) -> Result<Kernel, GenError> {
    let mut uses = Uses::default();
    let writer = BodyWriter { program, extents: &table.sizes, prefix: "m", guard: None, store_guard: None };
    let [batches, heads, rows, keys] = &table.sizes[..] else {
        return Err(GenError::Malformed("a mask has four dimensions".into()));
    };
    let (own, far) = if table.by_keys { (keys, rows) } else { (rows, keys) };
    let (own_blocks, words) = (own.ceil_div(&SymExpr::from_i64(BLOCK)), words(far));
    let groups = &words * SymExpr::from_i64(WORD / GROUP);
    let count = batches * heads * &own_blocks * &groups;
    let mut text = |e: &SymExpr| writer.expr(e, &mut uses);
    let [count_text, heads, rows, keys, own_blocks, groups, words] =
        [&count, heads, rows, keys, &own_blocks, &groups, &words].map(&mut text);
    let insts = writer.write(&table.function, &EpilogueEffects { result: "" }, &mut uses)?;
    let value = writer.name(kernel_ir::Val(table.function.len() as u32 - 1));
    let number = table.function.last().is_some_and(|inst| inst.dtype != DType::Bool);
    let (shown, unchanged) = match number {
        true => (format!("to<float>({value}) != -INF32"), format!("to<float>({value}) == 0.0f")),
        false => (value.clone(), value),
    };
    let wave = target.lanes();
    let parts = THREADS / wave / GROUP;
    let (row_block, key_block) = if table.by_keys { ("far", "own") } else { ("own", "far") };
    let mut written = |operand: &Operand, index: [&str; 4]| {
        uses.written.insert(program.root(operand.buf));
        element(&writer, operand, &index, &mut uses)
    };
    let place = written(to, ["i0", "i1", "own", "threadIdx.x * words"]);
    let bits = bits.map_or(String::new(), |bits| {
        let word = written(bits, ["i0", "i1", "q", "word"]);
        format!(
            "const u64 seen = wave_ballot(shown);
const idx word = (key - lane) / {WORD} + lane;
if (lane < {per_wave} && q < {rows} && word * {WORD} < {keys}) {word} = (int)(u32)(seen >> lane * {WORD});
",
            per_wave = wave / WORD,
        )
    });
    let body = format!(
        "__shared__ int some_of[{waves}], all_of[{waves}];
const int lane = {lane}, wave = threadIdx.x / {wave};
for (idx block = blockIdx.x; block < {count_text}; block += gridDim.x) {{
const idx words = {words}, group = block % {groups}, own = block / {groups} % {own_blocks}, head = block / {groups} / {own_blocks};
const idx i1 = head % {heads}, i0 = head / {heads}, far = group * {GROUP} + wave / {parts};
const idx row0 = {row_block} * {BLOCK} + wave % {parts} * {each}, key0 = {key_block} * {BLOCK};
(void)i0;
(void)i1;
bool some = false, all = true;
#pragma unroll 4
for (int n = 0; n < {turns}; ++n) {{
const idx q = row0 + n / {halves}, key = key0 + n % {halves} * {wave} + lane;
const bool inside = q < {rows} && key < {keys};
bool shown, unchanged;
{{
const idx i2 = imin<idx>(q, {rows} - 1), i3 = imin<idx>(key, {keys} - 1);
(void)i2;
(void)i3;
{insts}shown = inside && {shown};
unchanged = !inside || {unchanged};
}}
some |= shown;
all &= unchanged;
{bits}}}
some = wave_ballot(some) != 0;
all = wave_ballot(!all) == 0;
block_sync();
if (lane == 0) {{
some_of[wave] = some;
all_of[wave] = all;
}}
block_sync();
if (threadIdx.x < 2) {{
int byte = 0;
for (int n = 0; n < {waves}; ++n) byte |= (threadIdx.x == 0 ? some_of[n] : 1 - all_of[n]) << n / {parts};
((u8 *)&{place})[group] = (u8)(threadIdx.x == 0 ? byte : ~byte);
}}
}}
",
        waves = THREADS / wave,
        lane = target.lane(),
        each = BLOCK / parts,
        halves = BLOCK / wave,
        turns = BLOCK / parts * (BLOCK / wave),
    );
    let launch = Launch::flat(count.sym_min(&SymExpr::from_i64(MAX_BLOCKS)), THREADS as u32);
    assemble(program, ENTRY, &uses, launch, &body)
}

/// What a kernel visits of a mask's table.
pub(crate) struct Shown<'a> {
    /// The table, by the kernel's own rows.
    pub(crate) table: &'a Operand,
    /// Rows of a block of the kernel, and rows of a streamed tile.
    pub(crate) own: i64,
    pub(crate) far: i64,
    /// The number of heads of queries that are visited one after another, and the head number `line` of them, as text.
    pub(crate) lines: &'a str,
    pub(crate) head: &'a str,
    /// The first streamed row, and the one behind the last, as text.
    pub(crate) first: &'a str,
    pub(crate) end: &'a str,
}

impl Shown<'_> {
    /// Declares `names`, iterators over the tiles in which the mask shows some score (`ShownTiles`). `i0`, `row0` and `warp` are in
    /// scope.
    pub(crate) fn text(&self, o: &Operands<'_>, names: &[&str], uses: &mut Uses) -> String {
        let Shown { table, own, far, lines, head, first, end } = self;
        let shown = o.element(table, ["i0", "i1", "own", "word"], uses);
        let whole = o.element(table, ["i0", "i1", "own", "(words + word)"], uses);
        let blocks = o.text(&table.sizes[2], uses);
        let words = o.text(&table.sizes[3].floor_div(&SymExpr::from_i64(2)), uses);
        let per = far / BLOCK;
        let lanes = BLOCK * WORD;
        let mut text = format!(
            "const idx words = {words};
(void)words;
auto shown_word = [&](int line, int word) {{
const idx i1 = {head};
(void)i1;
u32 bits = 0;
for (idx own = row0 / {BLOCK}; own < imin<idx>((row0 + {own}) / {BLOCK}, {blocks}); ++own) bits |= (u32){shown};
return bits & bits_between((int)(({first}) / {BLOCK}) - word * {WORD}, (int)((({end}) + {BLOCK} - 1) / {BLOCK}) - word * {WORD});
}};
auto whole_word = [&](int line, int word) {{
const idx i1 = {head}, own = imin<idx>(row0 / {BLOCK} + warp / 4, {blocks} - 1);
(void)i1;
(void)own;
return (u32){whole};
}};
"
        );
        for name in names {
            text += &format!(
                "ShownTiles<{per}, decltype(shown_word), decltype(whole_word)> {name}(shown_word, whole_word, (int)({lines}), (int)(({first}) / {lanes}), (int)((({end}) + {lanes} - 1) / {lanes}));\n"
            );
        }
        text
    }
}
