//! Products of narrow numbers by AMX: sixteen rows of A times sixteen columns of B, sixteen groups of four bytes of k in one instruction.
//!
//! A tile of B is sixteen groups of a panel as packing leaves them, a tile of A sixteen pieces of 64 bytes of rows, or both are smaller. Rows
//! are whole pieces here, with zeros behind k; `product` sees to that. The eight tile registers hold a square of two by two sums and what it multiplies.

#[cfg(test)]
mod plain;

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _MM_HINT_T1, _mm_prefetch, _xgetbv};
use std::ops::Range;
use std::sync::OnceLock;

use super::Narrow;
use super::dot::{self, BLOCK, PANEL};
use super::pack::Panels;
use super::product::Laid;
use crate::micro::driver::part;

/// Rows of a tile.
const ROWS: usize = dot::TILE_ROWS;
/// Most pieces of k between loading and storing sums. Fewer would leave more of two panels in the first-level cache while all rows are multiplied, but
/// storing sums takes longer than that gains.
const PIECES: usize = 40;

/// Whether this processor has tiles and instructions for both kinds of numbers, and the system lets the process use them.
pub(in crate::micro) fn permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| has_instructions() && saves_tiles() && ask())
}

/// Bits 22, 24 and 25 of what CPUID says of features: `bf16`, tiles, integers.
fn has_instructions() -> bool {
    const WANTED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & WANTED == WANTED
}

/// Whether the system saves the state of tiles: bits 17 and 18 of the register that says what it saves.
fn saves_tiles() -> bool {
    const TILES: u64 = 3 << 17;
    #[target_feature(enable = "xsave")]
    unsafe fn saved() -> u64 {
        // SAFETY: the caller has looked whether the system lets programs read this register.
        unsafe { _xgetbv(0) }
    }
    const OSXSAVE: u32 = 1 << 27;
    // SAFETY: this bit says that the register can be read.
    __cpuid(1).ecx & OSXSAVE != 0 && unsafe { saved() } & TILES == TILES
}

/// Asks Linux for the state of tiles, which is larger than what a process is given unasked (`arch_prctl(2)`). Refused where a signal
/// handler's stack would be too small for it.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and writes nothing.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}

/// Rows of A times panels of B.
pub(in crate::micro) struct Product<'a> {
    pub(in crate::micro) a: &'a Laid<'a>,
    pub(in crate::micro) b: Panels,
    /// They begin with a block of panels.
    pub(in crate::micro) panels: Range<usize>,
    /// Where sums go, with room for the rows of each line up to a multiple of [`ROWS`].
    pub(in crate::micro) c: *mut u32,
    /// Sums from row to row.
    pub(in crate::micro) ldc: usize,
    /// Adds to what is there; rows are then a multiple of [`ROWS`], or fewer.
    pub(in crate::micro) adds: bool,
}

/// Lines of B that are fetched into the second-level cache.
struct Ahead {
    at: *const u8,
    /// How many with each piece.
    lines: usize,
}

const NOTHING: Ahead = Ahead { at: std::ptr::null(), lines: 0 };

impl Ahead {
    /// Fetches the next ones; beyond the end of B that does nothing.
    fn fetch(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: fetching ahead reads nothing and faults nowhere.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// Two by two tiles, or fewer.
struct Square {
    /// Row 0 of both rows of tiles; the second one is not read where there is one.
    a: [*const u8; 2],
    stride: isize,
    b: *const u8,
    /// Bytes from group to group.
    step: usize,
    /// What sums begin with, and the bytes from row to row.
    first: [*const u32; 2],
    first_stride: usize,
    c: [*mut u32; 2],
    /// Bytes from row to row.
    c_stride: usize,
}

/// What sums of two panels begin with where they begin with 0.
#[repr(align(64))]
struct Zeros([u32; 2 * PANEL]);
static ZEROS: Zeros = Zeros([0; 2 * PANEL]);

impl Product<'_> {
    /// Computes all sums.
    ///
    /// # Safety
    /// [`permitted`]; pointers cover the sizes, and rows of A are whole pieces.
    pub(in crate::micro) unsafe fn run(&self) {
        if self.a.count == 0 {
            return;
        }
        let pieces = self.b.steps.div_ceil(self.groups());
        let parts = pieces.div_ceil(PIECES);
        // SAFETY: the caller's promise.
        unsafe {
            if pieces == 0 {
                if !self.adds {
                    self.nothing();
                }
                return;
            }
            configure(self.a.count.min(ROWS), self.a.piece);
            for i in 0..parts {
                self.part_of_k(part(pieces, parts, i));
            }
            release();
            (0..self.a.lines).for_each(|line| self.move_last_rows(line));
        }
    }

    /// Groups of B in a tile.
    fn groups(&self) -> usize {
        self.a.piece / 4
    }

    /// Rows from line to line of C.
    fn pitch(&self) -> usize {
        self.a.count.next_multiple_of(ROWS)
    }

    unsafe fn part_of_k(&self, pieces: Range<usize>) {
        let mut panel = self.panels.start;
        let mut ahead = NOTHING;
        while panel < self.panels.end {
            // Two panels of the same block.
            let count = 2.min(self.panels.end - panel).min(BLOCK - panel % BLOCK);
            if panel.is_multiple_of(BLOCK) {
                ahead = self.ahead(panel + BLOCK, &pieces);
            }
            for line in 0..self.a.lines {
                for row in (0..self.a.count).step_by(2 * ROWS) {
                    let square = self.square([line, row], panel, &pieces);
                    let two = [self.a.count - row > ROWS, count == 2];
                    // SAFETY: the caller's promise; the last rows of tiles have room of their own.
                    unsafe { self.multiply(square, &pieces, two, &mut ahead) };
                }
            }
            panel += count;
        }
    }

    /// What to fetch while a block of panels is multiplied: the same pieces of the next one; behind the last one those that follow of the first,
    /// or the first ones of what another call multiplies. In a network weights are never in a cache, and reading a tile waits for sixteen lines.
    fn ahead(&self, next: usize, pieces: &Range<usize>) -> Ahead {
        let (panel, from) = match pieces.end * self.groups() < self.b.steps {
            _ if next < self.panels.end => (next, pieces.start),
            true => (self.panels.start, pieces.end),
            false if next < self.b.count => (next, 0),
            false => return NOTHING,
        };
        let turns = 2 * self.a.lines * self.a.count.div_ceil(2 * ROWS);
        let at = self.b.panel(panel).wrapping_add(from * self.groups() * self.b.step(panel));
        Ahead { at, lines: (self.groups() * BLOCK).div_ceil(turns) }
    }

    /// The tiles from a row of C on. The last row of tiles begins with an earlier row of A where rows are no multiple of a tile's, so that no
    /// tile reads beyond the last row.
    fn square(&self, [line, row]: [usize; 2], panel: usize, pieces: &Range<usize>) -> Square {
        let a = |row: usize| {
            let row = row.min(self.a.count.saturating_sub(ROWS));
            let line = self.a.first.wrapping_add(line * self.a.line_step);
            line.wrapping_offset(row as isize * self.a.stride)
        };
        let c = |row: usize| {
            self.c.wrapping_add((line * self.pitch() + row) * self.ldc + (panel - self.panels.start) * PANEL)
        };
        let step = self.b.step(panel);
        let c_stride = self.ldc * size_of::<u32>();
        let begun = [c(row), c(row + ROWS)];
        let (first, first_stride) = match self.b.first(panel) {
            _ if self.adds || pieces.start > 0 => (begun.map(<*mut u32>::cast_const), c_stride),
            // The same numbers for each row.
            first if first.is_null() => ([ZEROS.0.as_ptr(); 2], 0),
            first => ([first; 2], 0),
        };
        Square {
            a: [a(row), a(row + ROWS)],
            stride: self.a.stride,
            b: self.b.panel(panel).wrapping_add(pieces.start * self.groups() * step),
            step,
            first,
            first_stride,
            c: begun,
            c_stride,
        }
    }

    /// Adds products of some pieces to the sums of a square of two rows of tiles and two panels, or of one each.
    unsafe fn multiply(&self, mut square: Square, pieces: &Range<usize>, two: [bool; 2], ahead: &mut Ahead) {
        let (runs, each) = self.a.runs;
        let a = square.a;
        // SAFETY: the caller's promise.
        unsafe {
            square.load(two);
            let mut piece = pieces.start;
            while piece < pieces.end {
                let (run, at) = (piece / each, piece % each);
                ahead.fetch();
                square.a = a.map(|a| a.wrapping_add(runs[run] + at * self.a.piece));
                square.add(self.b.numbers, two);
                square.b = square.b.wrapping_add(self.groups() * square.step);
                piece += 1;
            }
            square.store(two);
        }
    }

    /// Sums of nothing.
    unsafe fn nothing(&self) {
        for (i, panel) in self.panels.clone().enumerate() {
            let first = self.b.first(panel);
            let first = if first.is_null() { ZEROS.0.as_ptr() } else { first };
            for row in 0..self.a.lines * self.pitch() {
                let to = self.c.wrapping_add(row * self.ldc + i * PANEL);
                // SAFETY: a panel has this many first sums, and C has room for the row.
                unsafe { std::ptr::copy_nonoverlapping(first, to, PANEL) };
            }
        }
    }

    /// Moves the sums of the last rows to their place, where their tile began with an earlier row.
    unsafe fn move_last_rows(&self, line: usize) {
        let (rows, rest) = (self.a.count, self.a.count % ROWS);
        if rest == 0 || rows < ROWS {
            return;
        }
        let to = self.c.wrapping_add((line * self.pitch() + rows - rest) * self.ldc);
        let from = to.wrapping_add((ROWS - rest) * self.ldc);
        let columns = self.panels.len() * PANEL;
        for row in 0..rest {
            // SAFETY: both rows are among those that C has room for.
            unsafe {
                std::ptr::copy(from.wrapping_add(row * self.ldc), to.wrapping_add(row * self.ldc), columns);
            }
        }
    }
}

/// Tile registers: 0 to 3 are sums, by rows, 4 and 5 rows of A, 6 and 7 panels of B. No other code uses them, so they keep their contents from one
/// block of instructions to the next.
impl Square {
    /// Loads what sums begin with.
    unsafe fn load(&self, [rows, columns]: [bool; 2]) {
        #[cfg(test)]
        if !permitted() {
            // SAFETY: the caller's promise.
            return unsafe { plain::load(self, [rows, columns]) };
        }
        let [f0, f1] = self.first;
        // SAFETY: the pointers cover the tiles, by the caller's promise.
        unsafe {
            asm!("tileloadd tmm0, [{f} + {s}]", f = in(reg) f0, s = in(reg) self.first_stride, out("tmm0") _, options(nostack, readonly));
            if columns {
                asm!("tileloadd tmm1, [{f} + {s} + 64]", f = in(reg) f0, s = in(reg) self.first_stride, out("tmm1") _, options(nostack, readonly));
            }
            if rows {
                asm!("tileloadd tmm2, [{f} + {s}]", f = in(reg) f1, s = in(reg) self.first_stride, out("tmm2") _, options(nostack, readonly));
            }
            if rows && columns {
                asm!("tileloadd tmm3, [{f} + {s} + 64]", f = in(reg) f1, s = in(reg) self.first_stride, out("tmm3") _, options(nostack, readonly));
            }
        }
    }

    unsafe fn store(&self, [rows, columns]: [bool; 2]) {
        #[cfg(test)]
        if !permitted() {
            // SAFETY: the caller's promise.
            return unsafe { plain::store(self, [rows, columns]) };
        }
        let [c0, c1] = self.c;
        // SAFETY: the pointers cover the tiles, by the caller's promise.
        unsafe {
            asm!("tilestored [{c} + {s}], tmm0", c = in(reg) c0, s = in(reg) self.c_stride, options(nostack));
            if columns {
                asm!("tilestored [{c} + {s} + 64], tmm1", c = in(reg) c0, s = in(reg) self.c_stride, options(nostack));
            }
            if rows {
                asm!("tilestored [{c} + {s}], tmm2", c = in(reg) c1, s = in(reg) self.c_stride, options(nostack));
            }
            if rows && columns {
                asm!("tilestored [{c} + {s} + 64], tmm3", c = in(reg) c1, s = in(reg) self.c_stride, options(nostack));
            }
        }
    }

    /// Adds the products of a piece.
    unsafe fn add(&self, numbers: Narrow, two: [bool; 2]) {
        #[cfg(test)]
        if !permitted() {
            // SAFETY: the caller's promise.
            return unsafe { plain::add(self, numbers, two) };
        }
        // SAFETY: the caller's promise.
        unsafe {
            match (numbers, two) {
                (Narrow::Bf16, [true, true]) => self.floats_2x2(),
                (Narrow::Bf16, [true, false]) => self.floats_2x1(),
                (Narrow::Bf16, [false, true]) => self.floats_1x2(),
                (Narrow::Bf16, [false, false]) => self.floats_1x1(),
                (_, [true, true]) => self.integers_2x2(),
                (_, [true, false]) => self.integers_2x1(),
                (_, [false, true]) => self.integers_1x2(),
                (_, [false, false]) => self.integers_1x1(),
            }
        }
    }
}

/// A function of these instructions.
macro_rules! products {
    ($name:ident, $($instruction:expr),+) => {
        impl Square {
            unsafe fn $name(&self) {
                // SAFETY: the pointers cover the tiles, by the caller's promise.
                unsafe {
                    asm!(
                        // Not all of them name the second row of tiles.
                        "/* {a1} */",
                        $($instruction,)+
                        a0 = in(reg) self.a[0],
                        a1 = in(reg) self.a[1],
                        stride = in(reg) self.stride,
                        b = in(reg) self.b,
                        step = in(reg) self.step,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            }
        }
    };
}

/// The four functions of one kind of numbers.
macro_rules! squares {
    ($dot:literal, $two_by_two:ident, $two_by_one:ident, $one_by_two:ident, $one_by_one:ident) => {
        products!(
            $two_by_two,
            "tileloadd tmm6, [{b} + {step}]",
            "tileloadd tmm4, [{a0} + {stride}]",
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{b} + {step} + 64]",
            concat!($dot, " tmm1, tmm4, tmm7"),
            "tileloadd tmm5, [{a1} + {stride}]",
            concat!($dot, " tmm2, tmm5, tmm6"),
            concat!($dot, " tmm3, tmm5, tmm7")
        );
        products!(
            $two_by_one,
            "tileloadd tmm6, [{b} + {step}]",
            "tileloadd tmm4, [{a0} + {stride}]",
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm5, [{a1} + {stride}]",
            concat!($dot, " tmm2, tmm5, tmm6")
        );
        products!(
            $one_by_two,
            "tileloadd tmm4, [{a0} + {stride}]",
            "tileloadd tmm6, [{b} + {step}]",
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{b} + {step} + 64]",
            concat!($dot, " tmm1, tmm4, tmm7")
        );
        products!(
            $one_by_one,
            "tileloadd tmm4, [{a0} + {stride}]",
            "tileloadd tmm6, [{b} + {step}]",
            concat!($dot, " tmm0, tmm4, tmm6")
        );
    };
}

squares!("tdpbf16ps", floats_2x2, floats_2x1, floats_1x2, floats_1x1);
squares!("tdpbusd", integers_2x2, integers_2x1, integers_1x2, integers_1x1);

/// Clears the tile registers, so that nobody saves them.
unsafe fn release() {
    #[cfg(test)]
    if !permitted() {
        return;
    }
    // SAFETY: the processor has tiles, by the caller's promise.
    unsafe { asm!("tilerelease", options(nomem, nostack)) };
}

/// Sizes of the tile registers: sums and rows of A have this many rows, rows of A this many bytes.
unsafe fn configure(rows: usize, piece: usize) {
    #[cfg(test)]
    if !permitted() {
        return plain::configure(rows, piece);
    }
    /// Palette 1: sixteen bytes of it and what is reserved, bytes of a row for each register, rows of each.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        bytes: [u16; 16],
        rows: [u8; 16],
    }
    let mut config = Config { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
    config.bytes[..8].fill(4 * PANEL as u16);
    config.bytes[4..6].fill(piece as u16);
    config.rows[..6].fill(rows as u8);
    config.rows[6..8].fill(piece as u8 / 4);
    // SAFETY: the processor has tiles, by the caller's promise; the sizes are within theirs.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
}
