//! Sorting. Rows that fit into shared memory are sorted there, short ones several to a block; longer ones in pieces that
//! are merged two by two, with scratch memory between. Stable: the order among items is total, positions break ties.

pub(crate) mod ordered;

use ir_core::{DType, SymExpr};
use kernel_ir::{ExternCall, ExternOp, Operand, Program};

use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, blocks_of, element, unravel, volume};
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, THREADS, Target, Variant};

/// Items that a block sorts at once where rows are short.
const MIN_ITEMS: i64 = 1024;
/// Bytes of shared memory that a block's items take at most.
const SHARED: i64 = 32 * 1024;
/// Items that a block merges at once.
const TILE: i64 = 2048;
/// Rows of unknown length are taken to be this long at most: positions have 32 bits.
const MAX_LENGTH: i64 = 1 << 32;

/// The ways of computing it, the best by rule first.
pub(crate) fn variants(program: &Program, k: &ExternCall, _: &Target) -> Result<Vec<Variant>, GenError> {
    let sort = Sort::of(program, k)?;
    let most = sort.length.range(&program.bounds()).1.unwrap_or(MAX_LENGTH);
    if most > MAX_LENGTH {
        let what = format!("{}: rows of more than {MAX_LENGTH} elements are not sorted", k.name);
        return Err(GenError::Routine(what));
    }
    if most <= sort.merging().capacity() {
        return Ok(vec![Variant::single("block", sort.in_shared_memory(most)?)]);
    }
    let merging = sort.merging();
    let mut uses = merging.uses();
    let make = sort.make(&mut uses);
    let mut kernels = vec![merging.pieces(&sort.writer(), uses, &make)?];
    kernels.extend(merging.merges(&sort.writer(), most)?);
    kernels.push(sort.finish(&merging)?);
    Ok(vec![Variant { name: "merge".into(), kernels, scratch: merging.scratch() }])
}

/// A sort and how its items look.
struct Sort<'a> {
    program: &'a Program,
    dim: usize,
    descending: bool,
    input: &'a Operand,
    values: &'a Operand,
    positions: &'a Operand,
    length: &'a SymExpr,
    /// The dimensions with the sorted one as 1: their volume is the number of rows.
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
        Ok(Sort { program, dim, descending, input, values, positions, length, others, item, item_bytes })
    }

    fn writer(&self) -> BodyWriter<'_> {
        let extents = &self.input.sizes;
        BodyWriter { program: self.program, extents, prefix: "", guard: None, store_guard: None }
    }

    /// An element of the row that the loop variables say.
    fn at(&self, operand: &Operand, along: &str, uses: &mut Uses) -> String {
        let names: Vec<String> = (0..self.input.sizes.len())
            .map(|d| if d == self.dim { along.to_owned() } else { format!("i{d}") })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        element(&self.writer(), operand, &names, uses)
    }

    /// Makes the item of position `at` of row `row`.
    fn make(&self, uses: &mut Uses) -> String {
        let rows = unravel(&self.writer(), &self.others, 0, "row", uses);
        let x = self.at(self.input, "at", uses);
        format!("{rows}item = sort_item<{}, {}>({x}, (u32)at);\n", self.descending, self.item)
    }

    /// Writes the element that comes to `at` of row `row`.
    fn write(&self, uses: &mut Uses) -> String {
        let rows = unravel(&self.writer(), &self.others, 0, "row", uses);
        let x = self.at(self.input, "from", uses);
        let (value, position) = (self.at(self.values, "at", uses), self.at(self.positions, "at", uses));
        for operand in [self.values, self.positions] {
            uses.written.insert(self.program.root(operand.buf));
        }
        format!("{rows}const idx from = (idx)item_position(item);\n{value} = {x};\n{position} = (i64)from;\n")
    }

    /// Numbers of rows and of elements of a row, as text.
    fn counts(&self, uses: &mut Uses) -> (String, String) {
        let writer = self.writer();
        (writer.expr(&volume(&self.others), uses), writer.expr(self.length, uses))
    }

    /// Whole rows in shared memory, `most` long or shorter.
    fn in_shared_memory(&self, most: i64) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let n = (most.max(2) as u64).next_power_of_two() as i64;
        let all = n.max(MIN_ITEMS);
        let (together, threads) = (all / n, (all / 2).min(512));
        let (rows, length) = self.counts(&mut uses);
        let (make, write) = (self.make(&mut uses), self.write(&mut uses));
        // Neighbouring threads take what lies side by side in memory.
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
if (row < {rows} && at < {length}) {{
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

    fn merging(&self) -> Merging {
        let (rows, length) = (volume(&self.others), self.length.clone());
        Merging { rows, length, item: self.item, item_bytes: self.item_bytes, values: None }
    }

    /// Values and positions from the items.
    fn finish(&self, merging: &Merging) -> Result<Kernel, GenError> {
        let mut uses = merging.uses();
        let (rows, length) = self.counts(&mut uses);
        let (write, item) = (self.write(&mut uses), self.item);
        let body = format!(
            "{sorted}for (idx p = blockIdx.x * (idx){THREADS} + threadIdx.x; p < {rows} * {length}; p += (idx)gridDim.x * {THREADS}) {{
const idx row = p / {length}, at = p % {length};
const {item} item = sorted[p];
{write}}}
",
            sorted = merging.sorted(&length)
        );
        let points = volume(&self.input.sizes);
        let launch = Launch::flat(blocks_of(&points, i64::from(THREADS)), THREADS);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }
}

/// Rows of items that are sorted in pieces, which are then merged two by two. Runs double until one is as long as the row;
/// where rows are shorter than they may be, the last passes do nothing.
pub(crate) struct Merging {
    pub(crate) rows: SymExpr,
    pub(crate) length: SymExpr,
    /// The type of an item, and its size.
    pub(crate) item: &'static str,
    pub(crate) item_bytes: i64,
    /// The type of what is kept beside each item in the third scratch buffer, and its size.
    pub(crate) values: Option<(&'static str, i64)>,
}

impl Merging {
    /// Items of a piece.
    pub(crate) fn capacity(&self) -> i64 {
        SHARED / self.item_bytes
    }

    /// What every kernel begins with: two buffers of items, by turns the one that is read.
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

    /// Sorted pieces of rows, in the first scratch buffer. `make` gives the variable `item` its value for the element `at`
    /// of row `row`; it is that of nothing before.
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

    /// The passes for rows of `most` items at most.
    pub(crate) fn merges(&self, writer: &BodyWriter<'_>, most: i64) -> Result<Vec<Kernel>, GenError> {
        let passes = (0..32).find(|p| self.capacity() << p >= most).unwrap_or(32);
        (0..passes).map(|pass| self.merge(writer, pass)).collect()
    }

    /// Runs of `capacity << pass` items, two by two, to the other scratch buffer.
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

    /// The variable `sorted`: the buffer that the last pass which did something left.
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
