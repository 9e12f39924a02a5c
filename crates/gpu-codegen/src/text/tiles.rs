//! Tiles of two dimensions of a domain in shared memory: a block reads memory along one dimension and writes along the other, so that
//! both are coalesced.
//!
//! A dimension that is shorter than a tile is in it whole, and the other one is taken so much further: the nine points of a 3×3 window
//! between the channels of a weight, for example. Not here: which dimensions, and what is read (`loops::transpose`,
//! `library::epilogue`).

use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::Program;

use crate::loops::hint;
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{unravel, volume};
use crate::{Launch, MAX_BLOCKS};

/// Rows and columns of a tile between two long dimensions.
const SIDE: i64 = 32;
/// Points of a tile.
const POINTS: i64 = SIDE * SIDE;
/// Threads of a block.
const THREADS: u32 = 256;
/// Dimensions shorter than this are not worth a tile: what neighbouring threads read is nearly one piece.
const SHORTEST: i64 = 4;
/// The least points of a tile that a block is worth.
const LEAST_POINTS: i64 = 128;
/// Long dimensions whose size is not known are tiled where it is estimated to be at least this.
const MIN_EXTENT: i64 = 16;
/// Maximum number of buffers that go through tiles: 8-byte elements then fit into the shared memory that every launch has.
pub(crate) const MAX_TILES: usize = 4;

/// Tiles over two dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// The dimension along which threads read.
    read: usize,
    /// The dimension along which they write.
    written: usize,
    /// Extents of a tile along these.
    sides: (i64, i64),
}

/// The last dimension with stride 1 in an address; dimensions of size 1 do not count.
pub(crate) fn unit(address: &SymExpr, extents: &[SymExpr]) -> Option<usize> {
    let fits = |d: &usize| extents[*d] != SymExpr::ONE && factor(address, *d) == Some(SymExpr::ONE);
    (0..extents.len()).rev().find(fits)
}

/// The coefficient of a loop variable in an address.
pub(crate) fn factor(address: &SymExpr, variable: usize) -> Option<SymExpr> {
    address.affine_in(&Atom::Loop(variable as u32)).map(|(factor, _)| factor)
}

/// Whether a dimension may be one of a tile's.
pub(crate) fn may_tile(program: &Program, extent: &SymExpr) -> bool {
    match extent.as_const() {
        Some(n) => n >= SHORTEST,
        None => hint(program, extent) >= MIN_EXTENT,
    }
}

impl Tiles {
    /// `None` where tiles are not worth it.
    pub(crate) fn of(program: &Program, extents: &[SymExpr], read: usize, written: usize) -> Option<Tiles> {
        if read == written || ![read, written].iter().all(|d| may_tile(program, &extents[*d])) {
            return None;
        }
        let short = |d: usize| extents[d].as_const().filter(|n| *n < SIDE);
        // Whole waves take each row of a long dimension.
        let beside = |n: i64| POINTS / n / SIDE * SIDE;
        let sides = match (short(read), short(written)) {
            (None, None) => (SIDE, SIDE),
            (Some(r), None) => (r, beside(r)),
            (None, Some(w)) => (beside(w), w),
            (Some(r), Some(w)) => (r, w),
        };
        (sides.0 * sides.1 >= LEAST_POINTS).then_some(Tiles { read, written, sides })
    }

    /// Distance between rows of a tile: odd, so that neither way of access meets one bank of shared memory with several threads.
    fn pitch(&self) -> i64 {
        self.sides.0 | 1
    }

    /// The declaration of tile `n` of elements of a type.
    pub(crate) fn declared(&self, n: usize, ty: &str) -> String {
        format!("__shared__ {ty} tile{n}[{}];\n", self.sides.1 * self.pitch())
    }

    /// The element of tile `n` that belongs to a thread's point.
    pub(crate) fn element(&self, n: usize) -> String {
        format!("tile{n}[at_w * {} + at_r]", self.pitch())
    }

    /// The text of the kernel: `fill` stores a point's elements to the declared `tiles`, `body` reads them, both with the loop variables in
    /// scope.
    pub(crate) fn text(
        &self,
        writer: &BodyWriter<'_>,
        (tiles, fill, body): (&str, &str, &str),
        uses: &mut Uses,
    ) -> String {
        let (r, w) = (self.read, self.written);
        let (side_r, side_w) = self.sides;
        let extents = writer.extents;
        let (long, wide) = (writer.expr(&extents[r], uses), writer.expr(&extents[w], uses));
        let others = self.others(extents);
        let count = writer.expr(&volume(&others), uses);
        let rest = unravel(writer, &others, 0, "rest", uses);
        let points = side_r * side_w;
        let phase = |place: &str, inside: &str| {
            format!(
                "#pragma unroll
for (int t = threadIdx.x; t < {points}; t += {THREADS}) {{
{place}const idx i{r} = from_r + at_r, i{w} = from_w + at_w;
if (i{r} < {long} && i{w} < {wide}) {{
{inside}}}
}}
block_sync();
"
            )
        };
        let mut out = format!(
            "{tiles}const idx high = ({long} + {side_r} - 1) / {side_r}, across = ({wide} + {side_w} - 1) / {side_w};
for (idx block = blockIdx.x; block < {count} * high * across; block += gridDim.x) {{
const idx rest = block / across / high, from_r = block / across % high * {side_r}, from_w = block % across * {side_w};
{rest}{{
"
        );
        let along_read = format!("const int at_r = t % {side_r}, at_w = t / {side_r};\n");
        let along_written = format!("const int at_w = t % {side_w}, at_r = t / {side_w};\n");
        let _ = write!(out, "{}{}}}\n}}\n", phase(&along_read, fill), phase(&along_written, body));
        out
    }

    /// The launch over a domain.
    pub(crate) fn launch(&self, extents: &[SymExpr]) -> Launch {
        let tiles = |d: usize, side: i64| extents[d].ceil_div(&SymExpr::from_i64(side));
        let tiles = tiles(self.read, self.sides.0) * tiles(self.written, self.sides.1);
        let blocks = volume(&self.others(extents)) * tiles;
        Launch::flat(blocks.sym_min(&SymExpr::from_i64(MAX_BLOCKS)), THREADS)
    }

    /// The extents with 1 in the place of those that are tiled.
    fn others(&self, extents: &[SymExpr]) -> Vec<SymExpr> {
        let mut others = extents.to_vec();
        (others[self.read], others[self.written]) = (SymExpr::ONE, SymExpr::ONE);
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(read: i64, written: i64) -> Option<(i64, i64)> {
        let extents = [7, read, written].map(SymExpr::from_i64);
        Tiles::of(&Program::default(), &extents, 1, 2).map(|tiles| tiles.sides)
    }

    #[test]
    fn a_short_dimension_is_in_a_tile_whole() {
        assert_eq!(sides(512, 256), Some((32, 32)));
        assert_eq!(sides(9, 512), Some((9, 96)));
        assert_eq!(sides(512, 9), Some((96, 9)));
        assert_eq!(sides(16, 12), Some((16, 12)));
        assert_eq!(sides(3, 512), None, "neighbours read nearly one piece");
        assert_eq!(sides(8, 8), None, "a block has more threads than that");
    }

    /// What every launch has of shared memory holds the most tiles of the widest elements.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for (read, written) in (1..70).flat_map(|r| (1..70).map(move |w| (r, w))) {
            let extents = [read, written].map(SymExpr::from_i64);
            let Some(tiles) = Tiles::of(&Program::default(), &extents, 0, 1) else { continue };
            let bytes = tiles.sides.1 * tiles.pitch() * 8 * MAX_TILES as i64;
            assert!(bytes <= 48 * 1024, "{read} by {written} takes {bytes} bytes");
        }
    }
}
