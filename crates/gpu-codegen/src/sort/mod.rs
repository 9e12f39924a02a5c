//! Sorting. Rows that fit into shared memory are sorted there, several short ones per block. Longer rows are sorted in
//! pieces that are merged pairwise through scratch memory. Where rows are few and not too long, every element's place is counted
//! instead: the number of those before it, which keeps the whole device busy. Where only a few of each row are wanted, they are
//! selected (`selection`). The sort is stable: positions break ties.

mod copies;
pub(crate) mod first;
pub(crate) mod ordered;
mod selection;

use ir_core::{DType, SymExpr};
use kernel_ir::{ExternCall, ExternOp, Operand, Program};

use crate::loops::hint;
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, blocks_of, element, unravel, volume};
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, THREADS, Target, Variant};

/// Minimum number of items per block where rows are short.
const MIN_ITEMS: i64 = 1024;
/// Maximum bytes of shared memory for a block's items.
const SHARED: i64 = 32 * 1024;
/// Items that a block merges.
const TILE: i64 = 2048;
/// Elements of a row from which places are counted, and pairs of elements up to which they are, in rows that a block holds and in
/// longer ones. Measured on an H200, counted and by a block in µs: one row of 4096 `f32` 20 and 34, of 1024 8 and 11; 16 rows of 1024
/// 12 and 11, 128 rows 53 and 11; 1024 rows of 128 14 and 8. A row of 8192 takes 37, by merged pieces 43, of `i64` 29 and 66.
const MIN_COUNTED: i64 = 256;
const MAX_PAIRS: i64 = 1 << 24;
const MAX_LONG_PAIRS: i64 = 1 << 26;
/// Elements whose places a wave counts together.
const COUNTED: i64 = 4;
/// The assumed maximum length of rows of unknown length: positions have 32 bits.
const MAX_LENGTH: i64 = 1 << 32;

/// Returns the candidate implementations, best first by rule.
pub(crate) fn variants(program: &Program, k: &ExternCall, target: &Target) -> Result<Vec<Variant>, GenError> {
    let sort = Sort::of(program, k)?;
    let most = sort.length.range(&program.bounds()).1.unwrap_or(MAX_LENGTH);
    if most > MAX_LENGTH {
        let what = format!("{}: rows of more than {MAX_LENGTH} elements are not sorted", k.name);
        return Err(GenError::Routine(what));
    }
    let mut all = Vec::new();
    let held = most <= sort.merging().capacity();
    if sort.is_counted(held) {
        all.push(Variant::single("count", sort.by_counting(target)?));
    }
    all.push(if held {
        Variant::single("block", sort.in_shared_memory(most)?)
    } else {
        sort.by_merging(most)?
    });
    if let Some(count) = sort.selected() {
        let place = if sort.is_selected(count, target) { 0 } else { all.len() };
        all.insert(place, Variant::single("select", sort.by_selection(count, target)?));
    }
    Ok(all)
}

/// A sort and the representation of its items.
struct Sort<'a> {
    program: &'a Program,
    dim: usize,
    descending: bool,
    input: &'a Operand,
    values: &'a Operand,
    positions: &'a Operand,
    length: &'a SymExpr,
    /// How many of a row's first elements are wanted at most; `None` where all are.
    first: Option<i64>,
    /// The sizes with the sorted dimension as 1: their product is the number of rows.
    others: Vec<SymExpr>,
    item: &'static str,
    item_bytes: i64,
}

impl<'a> Sort<'a> {
    fn of(program: &'a Program, k: &'a ExternCall) -> Result<Sort<'a>, GenError> {
        let (ExternOp::Sort { dim, descending }, [input], [values, positions]) =
            (&k.op, &k.inputs[..], &k.outputs[..])
        else {
            return Err(GenError::Routine(k.name.clone()));
        };
        let dim = *dim as usize;
        let Some(length) = input.sizes.get(dim) else {
            return Err(GenError::Malformed(format!("sorts along dimension {dim} of {}", input.sizes.len())));
        };
        let mut others: Vec<SymExpr> = input.sizes.to_vec();
        others[dim] = SymExpr::ONE;
        let wide = matches!(program.buffers[input.buf].dtype, DType::F64 | DType::I64);
        let (item, item_bytes) = if wide { ("LongItem", 16) } else { ("u64", 8) };
        let descending = *descending;
        let counts = [values, positions].map(|o| o.sizes.get(dim).filter(|n| *n != length)?.as_const());
        let first = counts[0].zip(counts[1]).map(|(a, b)| a.max(b));
        Ok(Sort {
            program,
            dim,
            descending,
            input,
            values,
            positions,
            length,
            first,
            others,
            item,
            item_bytes,
        })
    }

    fn writer(&self) -> BodyWriter<'_> {
        let extents = &self.input.sizes;
        BodyWriter { program: self.program, extents, prefix: "", guard: None, store_guard: None }
    }

    /// An element of the row that the loop variables determine.
    fn at(&self, operand: &Operand, along: &str, uses: &mut Uses) -> String {
        let names: Vec<String> = (0..self.input.sizes.len())
            .map(|d| if d == self.dim { along.to_owned() } else { format!("i{d}") })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        element(&self.writer(), operand, &names, uses)
    }

    /// Returns statements that make the item of position `at` of row `row`.
    fn make(&self, uses: &mut Uses) -> String {
        let rows = unravel(&self.writer(), &self.others, 0, "row", uses);
        let x = self.at(self.input, "at", uses);
        format!("{rows}item = sort_item<{}, {}>({x}, (u32)at);\n", self.descending, self.item)
    }

    /// Returns statements that write the item at `at` of row `row`, which is before `until`. Results that nothing reads have no
    /// elements and are not written.
    fn write(&self, uses: &mut Uses) -> String {
        let mut out = unravel(&self.writer(), &self.others, 0, "row", uses);
        out.push_str("const idx from = (idx)item_position(item);\n");
        if self.values.sizes.get(self.dim) != Some(&SymExpr::ZERO) {
            let (value, x) = (self.at(self.values, "at", uses), self.at(self.input, "from", uses));
            uses.written.insert(self.program.root(self.values.buf));
            out.push_str(&format!("{value} = {x};\n"));
        }
        if self.positions.sizes.get(self.dim) != Some(&SymExpr::ZERO) {
            let position = self.at(self.positions, "at", uses);
            uses.written.insert(self.program.root(self.positions.buf));
            out.push_str(&format!("{position} = (i64)from;\n"));
        }
        out
    }

    /// The number of elements of a sorted row that are written.
    fn written(&self) -> SymExpr {
        self.first.map_or_else(|| self.length.clone(), |n| self.length.sym_min(&SymExpr::from_i64(n)))
    }

    /// The same as text.
    fn until(&self, uses: &mut Uses) -> String {
        self.writer().expr(&self.written(), uses)
    }

    /// Numbers of rows and of elements per row, as text.
    fn counts(&self, uses: &mut Uses) -> (String, String) {
        let writer = self.writer();
        (writer.expr(&volume(&self.others), uses), writer.expr(self.length, uses))
    }

    /// The kernel for whole rows in shared memory, of at most `most` elements.
    fn in_shared_memory(&self, most: i64) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let n = (most.max(2) as u64).next_power_of_two() as i64;
        let all = n.max(MIN_ITEMS);
        let (together, threads) = (all / n, (all / 2).min(512));
        let (rows, length) = self.counts(&mut uses);
        let (make, write, until) = (self.make(&mut uses), self.write(&mut uses), self.until(&mut uses));
        // Adjacent threads take contiguous elements.
        let along = self.input.strides.get(self.dim) == Some(&SymExpr::ONE);
        let place = match along {
            true => format!("t / {n}, at = t % {n}"),
            false => format!("t % {together}, at = t / {together}"),
        };
        let slot = format!("items[(row - first) * {n} + at]");
        let item = self.item;
        let body = format!(
            "__shared__ {item} items[{all}];
for (idx first = blockIdx.x * (idx){together}; first < {rows}; first += (idx)gridDim.x * {together}) {{
for (int t = threadIdx.x; t < {all}; t += {threads}) {{
const idx row = first + {place};
{item} item;
last_item(item);
if (row < {rows} && at < {length}) {{
{make}}}
{slot} = item;
}}
block_sort<{n}, {all}, {threads}>(items);
for (int t = threadIdx.x; t < {all}; t += {threads}) {{
const idx row = first + {place};
if (row < {rows} && at < {until}) {{
const {item} item = {slot};
{write}}}
}}
block_sync();
}}
"
        );
        let blocks = blocks_of(&volume(&self.others), together);
        assemble(self.program, ENTRY, &uses, Launch::flat(blocks, threads as u32), &body)
    }

    /// Whether counting the place of every element takes less than the passes of a sort. `held` says that a block holds a row.
    fn is_counted(&self, held: bool) -> bool {
        let (rows, length) = (hint(self.program, &volume(&self.others)), hint(self.program, self.length));
        let most = if held { MAX_PAIRS } else { MAX_LONG_PAIRS };
        length >= MIN_COUNTED && rows.saturating_mul(length).saturating_mul(length) <= most
    }

    /// The kernel in which a wave counts the items before each of a few: its lanes share the row.
    fn by_counting(&self, target: &Target) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let (rows, length) = self.counts(&mut uses);
        let (make, write, item) = (self.make(&mut uses), self.write(&mut uses), self.item);
        let wanted = match self.first {
            Some(n) => format!(" && at < {n}"),
            None => String::new(),
        };
        let waves = i64::from(THREADS / target.wave);
        let body = format!(
            "const int lane = threadIdx.x % WAVE;
const idx groups = ({length} + {COUNTED} - 1) / {COUNTED};
for (idx unit = blockIdx.x * (idx){waves} + threadIdx.x / WAVE; unit < {rows} * groups; unit += (idx)gridDim.x * {waves}) {{
const idx row = unit / groups, start = unit % groups * {COUNTED};
{item} own[{COUNTED}];
i32 place[{COUNTED}] = {{}};
#pragma unroll
for (int e = 0; e < {COUNTED}; ++e) {{
const idx at = start + e;
{item} item;
last_item(item);
if (at < {length}) {{
{make}}}
own[e] = item;
}}
for (idx at = lane; at < {length}; at += WAVE) {{
{item} item;
{make}#pragma unroll
for (int e = 0; e < {COUNTED}; ++e) place[e] += item_before(item, own[e]);
}}
#pragma unroll
for (int e = 0; e < {COUNTED}; ++e) {{
const idx at = team_combine<SUM, WAVE>(place[e], (void *)0);
if (lane == e && start + e < {length}{wanted}) {{
const {item} item = own[e];
{write}}}
}}
}}
"
        );
        let groups = self.length.ceil_div(&SymExpr::from_i64(COUNTED));
        let blocks = blocks_of(&(volume(&self.others) * groups), waves);
        assemble(self.program, ENTRY, &uses, Launch::flat(blocks, THREADS), &body)
    }

    fn merging(&self) -> Merging {
        let (rows, length) = (volume(&self.others), self.length.clone());
        Merging { rows, length, item: self.item, item_bytes: self.item_bytes, values: None }
    }

    /// The kernels for rows that a block does not hold, of at most `most` elements.
    fn by_merging(&self, most: i64) -> Result<Variant, GenError> {
        let merging = self.merging();
        let mut uses = merging.uses();
        let make = self.make(&mut uses);
        let mut kernels = vec![merging.pieces(&self.writer(), uses, &make)?];
        kernels.extend(merging.merges(&self.writer(), most)?);
        kernels.push(self.finish(&merging)?);
        Ok(Variant { name: "merge".into(), kernels, scratch: merging.scratch() })
    }

    /// The kernel that extracts values and positions from the items.
    fn finish(&self, merging: &Merging) -> Result<Kernel, GenError> {
        let mut uses = merging.uses();
        let (rows, length) = self.counts(&mut uses);
        let (write, until, item) = (self.write(&mut uses), self.until(&mut uses), self.item);
        let body = format!(
            "{sorted}for (idx p = blockIdx.x * (idx){THREADS} + threadIdx.x; p < {rows} * {until}; p += (idx)gridDim.x * {THREADS}) {{
const idx row = p / {until}, at = p % {until};
const {item} item = sorted[row * {length} + at];
{write}}}
",
            sorted = merging.sorted(&length)
        );
        let points = volume(&self.others) * self.written();
        let launch = Launch::flat(blocks_of(&points, i64::from(THREADS)), THREADS);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }
}

/// Rows of items that are sorted in pieces and merged pairwise. Runs double in length until one spans the row; for rows
/// shorter than the maximum the last passes do nothing.
pub(crate) struct Merging {
    pub(crate) rows: SymExpr,
    pub(crate) length: SymExpr,
    /// The C++ type of an item, and its size.
    pub(crate) item: &'static str,
    pub(crate) item_bytes: i64,
    /// The C++ type of the payload of each item in the third scratch buffer, and its size.
    pub(crate) values: Option<(&'static str, i64)>,
}

impl Merging {
    /// Items per piece.
    pub(crate) fn capacity(&self) -> i64 {
        SHARED / self.item_bytes
    }

    /// The declarations of every kernel: two buffers of items, which alternate as the source.
    pub(crate) fn uses(&self) -> Uses {
        let mut scratch = vec![self.item; 2];
        scratch.extend(self.values.map(|(ty, _)| ty));
        Uses { scratch, ..Uses::default() }
    }

    /// Bytes of the scratch buffers.
    pub(crate) fn scratch(&self) -> Vec<SymExpr> {
        let bytes = |size: i64| &self.rows * &self.length * SymExpr::from_i64(size);
        let mut all = vec![bytes(self.item_bytes), bytes(self.item_bytes)];
        all.extend(self.values.map(|(_, size)| bytes(size)));
        all
    }

    /// The kernel that writes sorted pieces of rows to the first scratch buffer. `make` assigns the variable `item` for
    /// the element `at` of row `row`.
    pub(crate) fn pieces(
        &self,
        writer: &BodyWriter<'_>,
        mut uses: Uses,
        make: &str,
    ) -> Result<Kernel, GenError> {
        let (rows, length) = (writer.expr(&self.rows, &mut uses), writer.expr(&self.length, &mut uses));
        let (item, capacity) = (self.item, self.capacity());
        let body = format!(
            "__shared__ {item} items[{capacity}];
const idx pieces = ({length} + {capacity} - 1) / {capacity};
for (idx block = blockIdx.x; block < {rows} * pieces; block += gridDim.x) {{
const idx row = block / pieces, start = block % pieces * {capacity};
for (int t = threadIdx.x; t < {capacity}; t += 512) {{
const idx at = start + t;
{item} item;
last_item(item);
if (at < {length}) {{
{make}}}
items[t] = item;
}}
block_sort<{capacity}, {capacity}, 512>(items);
for (int t = threadIdx.x; t < {capacity} && start + t < {length}; t += 512) scratch0[row * {length} + start + t] = items[t];
block_sync();
}}
"
        );
        let pieces = self.length.ceil_div(&SymExpr::from_i64(capacity));
        let blocks = (&self.rows * pieces).sym_min(&SymExpr::from_i64(MAX_BLOCKS));
        assemble(writer.program, ENTRY, &uses, Launch::flat(blocks, 512), &body)
    }

    /// The merge passes for rows of at most `most` items.
    pub(crate) fn merges(&self, writer: &BodyWriter<'_>, most: i64) -> Result<Vec<Kernel>, GenError> {
        let passes = (0..32).find(|p| self.capacity() << p >= most).unwrap_or(32);
        (0..passes).map(|pass| self.merge(writer, pass)).collect()
    }

    /// The kernel that merges pairs of runs of `capacity << pass` items into the other scratch buffer.
    fn merge(&self, writer: &BodyWriter<'_>, pass: u32) -> Result<Kernel, GenError> {
        let mut uses = self.uses();
        let (rows, length) = (writer.expr(&self.rows, &mut uses), writer.expr(&self.length, &mut uses));
        let (width, item) = (self.capacity() << pass, self.item);
        let (from, to) = (pass % 2, (pass + 1) % 2);
        let body = format!(
            "__shared__ {item} items[{TILE}];
__shared__ i64 bounds[2];
const i64 width = {width}, length = {length};
if (width >= length) return;
const i64 tiles = (length + {TILE} - 1) / {TILE};
for (i64 block = blockIdx.x; block < {rows} * tiles; block += gridDim.x) {{
const i64 row = block / tiles, start = block % tiles * {TILE};
merge_tile<{TILE}, {THREADS}, i64>(scratch{from} + row * length, scratch{to} + row * length, length, width, start, items, bounds);
}}
"
        );
        let tiles = self.length.ceil_div(&SymExpr::from_i64(TILE));
        let blocks = (&self.rows * tiles).sym_min(&SymExpr::from_i64(MAX_BLOCKS));
        assemble(writer.program, ENTRY, &uses, Launch::flat(blocks, THREADS), &body)
    }

    /// Declares the variable `sorted`: the buffer that the last effective pass wrote.
    pub(crate) fn sorted(&self, length: &str) -> String {
        let (item, capacity) = (self.item, self.capacity());
        format!(
            "const {item} *sorted = scratch0;
bool other = false;
for (i64 width = {capacity}; width < (i64){length}; width *= 2) other = !other;
if (other) sorted = scratch1;
"
        )
    }
}
