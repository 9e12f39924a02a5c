//! Tiled products whose copies go through registers (`dialect/hip/staging.cu`): while a tile is multiplied, the next one is on its
//! way from global memory; it lands in shared memory behind that. Matrix cores leave their sums fragment by fragment
//! (`dialect/hip/products.cu`), so that what passes them on to the epilogue is no larger than the tiles of the factors.

use std::fmt::Write;

use crate::GenError;
use crate::product::tile_text::{Form, Pipeline, Unit, Walk, Writer};
use ir_core::DType;

impl Form {
    /// Rows and columns of sums that pass through shared memory at once; `None` where all of the tile does.
    pub(crate) fn slab(&self) -> Option<(i64, i64)> {
        if self.pipeline != Pipeline::Registers || self.unit == Unit::Plain {
            return None;
        }
        let m = self.fragment();
        Some((self.warps.0 * m, self.warps.1 * m))
    }

    /// Rows and columns of a fragment: as `CoreProduct` has it.
    pub(crate) fn fragment(&self) -> i64 {
        let (pm, pn) = (self.tile.0 / self.warps.0, self.tile.1 / self.warps.1);
        if self.wave == 64 && pm % 32 == 0 && pn % 32 == 0 { 32 } else { 16 }
    }

    /// How a block goes over the sums where they come by slabs.
    pub(crate) fn slabs(&self, rows_first: bool) -> Option<Walk> {
        self.slab()?;
        Some(Walk {
            meet: "#pragma unroll
for (int slab = 0; slab < Core::SLABS; ++slab) {
if (slab > 0) block_sync();
core.template store_slab<PITCH>(sums, slab);
block_sync();",
            place: if rows_first {
                "const int sr = e % Core::HIGH, sc = e / Core::HIGH;
const int r = Core::slab_row(slab, sr), c = Core::slab_column(slab, sc);"
            } else {
                "const int sr = e / (Core::BROAD / LANES), sc = e % (Core::BROAD / LANES) * LANES;
const int r = Core::slab_row(slab, sr), c = Core::slab_column(slab, sc);"
            },
            points: "Core::HIGH * Core::BROAD",
            at: "sr * PITCH + sc",
            end: "}\n",
        })
    }
}

impl Writer<'_> {
    /// The type of a product by matrix cores of parts of `pm` rows and `pn` columns.
    pub(crate) fn core(&self, (pm, pn): (i64, i64)) -> String {
        let ty = match (self.form.unit, self.product.dtype) {
            (Unit::Tf32, _) => "Xf32",
            (_, DType::F16) => "f16",
            (_, DType::F32) => "float",
            _ => "bf16",
        };
        let (wm, wn) = self.form.warps;
        format!("CoreProduct<{ty}, A, B, {pm}, {pn}, {wm}, {wn}, DEPTH>")
    }

    /// Up to the sums, in registers where they come by slabs.
    pub(crate) fn register_sums(&mut self) -> Result<String, GenError> {
        let mut out = self.head()?;
        out.push_str(&self.place("(idx)blockIdx.x"));
        out.push_str(&self.address(0, "a"));
        out.push_str(&self.address(1, "b"));
        let depth = self.deep();
        let fill = |now: &str| {
            let at = self.stage_at(now);
            format!(
                "fill_a.fill(base_a, row0, {at}, a_row, a_inner, a_inside);
fill_b.fill(base_b, col0, {at}, b_row, b_inner, b_inside);"
            )
        };
        let land = "fill_a.land((T *)to);\nfill_b.land((T *)(to + A::BYTES));";
        let [a, b] = [0, 1].map(|side| self.product.reading(side));
        let sums = if self.form.slab().is_some() { "" } else { "core.template store<PITCH>(sums);\n" };
        let _ = write!(
            out,
            "Filler<A, T, S, BM, DEPTH, {wa}, {ma}, THREADS> fill_a;
Filler<B, T, S, BN, DEPTH, {wb}, {mb}, THREADS> fill_b;
fill_a.begin(row0, a_row);
fill_b.begin(col0, b_row);
const int depth = {depth}, share = (depth + PARTS - 1) / PARTS;
const int first = (int)blockIdx.y * share, last = imin<int>(first + share, depth);
Core core;
core.clear();
if (first < last) {{
{fill_first}
u8 *to = memory;
{land}
}}
int stage = 0;
for (int now = first; now < last; ++now) {{
block_sync();
if (now + 1 < last) {{
{fill_next}
}}
const u8 *from = memory + stage * STAGE;
core.step((const T *)from, (const T *)(from + A::BYTES));
if constexpr (STAGES == 1) block_sync();
else stage = stage + 1 == STAGES ? 0 : stage + 1;
if (now + 1 < last) {{
u8 *to = memory + stage * STAGE;
{land}
}}
}}
block_sync();
float *sums = (float *)memory;
{sums}",
            wa = a.width(),
            ma = a.mode(),
            wb = b.width(),
            mb = b.mode(),
            fill_first = fill("first"),
            fill_next = fill("(now + 1)"),
        );
        Ok(out)
    }
}
