//! Depthwise windows of 8-bit integers by `vpdpbusd`, which multiplies four bytes for each channel: those of four rows of the window in one
//! column. A column is brought into that order once for all windows of some pixels that it belongs to, 64 channels at a time.
//!
//! Not here: lines with their padding, and windows of floats (`depthwise`).

use std::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_maskz_loadu_epi8,
    _mm512_or_si512, _mm512_permutexvar_epi32, _mm512_set_epi32, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_storeu_si512, _mm512_unpackhi_epi8, _mm512_unpackhi_epi16,
    _mm512_unpacklo_epi8, _mm512_unpacklo_epi16,
};

use super::dot::{GROUP, PANEL};

/// Panels whose bytes are one register.
pub(super) const PANELS: usize = 4;
/// Pixels whose sums are in registers at once.
const PIXELS: usize = 4;
/// Rows of a window that are multiplied at once.
const ROWS: usize = 4;

/// The windows of a convolution: sizes and distances are those of the padded lines.
pub(super) struct Windows {
    /// Rows and columns.
    pub(super) window: [usize; 2],
    /// Bytes from row to row of a window, and from column to column of the image.
    pub(super) line: usize,
    pub(super) column: usize,
    /// Columns of the image from window to window, and from column to column of a window.
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// For each column that the windows of [`PIXELS`] pixels reach, which column of each pixel's window it is.
    places: Vec<[Option<usize>; PIXELS]>,
}

impl Windows {
    pub(super) fn new(
        window: [usize; 2],
        [line, column]: [usize; 2],
        [stride, dilation]: [usize; 2],
    ) -> Windows {
        let reach = (PIXELS - 1) * stride + (window[1] - 1) * dilation + 1;
        let place = |at: usize, pixel: usize| {
            let within = at.checked_sub(pixel * stride)?;
            let place = within / dilation;
            (within.is_multiple_of(dilation) && place < window[1]).then_some(place)
        };
        let places = (0..reach).map(|at| std::array::from_fn(|pixel| place(at, pixel))).collect();
        Windows { window, line, column, stride, dilation, places }
    }

    /// Groups of rows.
    fn groups(&self) -> usize {
        self.window[0].div_ceil(ROWS)
    }

    /// Bytes of the weights of a panel in the order that is multiplied.
    pub(super) fn weight_bytes(&self) -> usize {
        self.groups() * self.window[1] * GROUP
    }

    /// Joins weights of 32 bits, taps of one panel in order, to those of [`Windows::sums`]: for each group of rows and each column
    /// of the window `count` panels, of which this is number `n`.
    ///
    /// # Safety
    /// AVX-512; `from` has a group for each tap, `to` has `count` times [`Windows::weight_bytes`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn join(&self, from: *const u8, to: *mut u8, [n, count]: [usize; 2]) {
        let [rows, columns] = self.window;
        let low = _mm512_set1_epi32(0xff);
        for group in 0..self.groups() {
            for column in 0..columns {
                let row = |i: usize| {
                    let row = group * ROWS + i;
                    if row >= rows {
                        return _mm512_setzero_si512();
                    }
                    // SAFETY: the tap is one of the window.
                    let w = unsafe { _mm512_loadu_si512(from.add((row * columns + column) * GROUP).cast()) };
                    _mm512_and_si512(w, low)
                };
                let pair = |i| _mm512_or_si512(row(i), _mm512_slli_epi32::<8>(row(i + 1)));
                let joined = _mm512_or_si512(pair(0), _mm512_slli_epi32::<16>(pair(2)));
                // SAFETY: the caller's promise.
                unsafe {
                    let to = to.add(((group * columns + column) * count + n) * GROUP);
                    _mm512_storeu_si512(to.cast(), joined);
                }
            }
        }
    }

    /// The sums of `pixels` windows that follow one another, of `panels` panels (at most [`PANELS`]).
    ///
    /// # Safety
    /// AVX-512 with VNNI; `from` is the first byte of the first window, weights are joined for as many panels, `first` has what their sums begin with,
    /// and `to` has place for rows of sums that are `ld` apart.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn line(
        &self,
        from: *const u8,
        (weights, first): (*const u8, *const u32),
        (to, ld): (*mut u32, usize),
        [pixels, panels]: [usize; 2],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match panels {
                1 => self.pixels::<1>(from, (weights, first), (to, ld), pixels),
                2 => self.pixels::<2>(from, (weights, first), (to, ld), pixels),
                3 => self.pixels::<3>(from, (weights, first), (to, ld), pixels),
                _ => self.pixels::<PANELS>(from, (weights, first), (to, ld), pixels),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn pixels<const N: usize>(
        &self,
        from: *const u8,
        given: (*const u8, *const u32),
        (to, ld): (*mut u32, usize),
        pixels: usize,
    ) {
        let step = self.stride * self.column;
        // SAFETY: the caller's promise.
        unsafe {
            let whole = pixels / PIXELS * PIXELS;
            for x in (0..whole).step_by(PIXELS) {
                self.sums::<N, PIXELS>(from.wrapping_add(x * step), given, (to.wrapping_add(x * ld), ld));
            }
            for x in whole..pixels {
                self.sums::<N, 1>(from.wrapping_add(x * step), given, (to.wrapping_add(x * ld), ld));
            }
        }
    }

    /// The sums of `P` windows of `N` panels.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn sums<const N: usize, const P: usize>(
        &self,
        from: *const u8,
        (weights, first): (*const u8, *const u32),
        (to, ld): (*mut u32, usize),
    ) {
        let [rows, columns] = self.window;
        let reach = (P - 1) * self.stride + (columns - 1) * self.dilation + 1;
        // SAFETY: the caller's promise.
        unsafe {
            let begin: [__m512i; N] =
                std::array::from_fn(|n| _mm512_loadu_si512(first.add(n * PANEL).cast()));
            let mut sums = [begin; P];
            for group in 0..self.groups() {
                let from = from.wrapping_add(group * ROWS * self.line);
                let weights = weights.wrapping_add(group * columns * N * GROUP);
                let rows = (rows - group * ROWS).min(ROWS);
                for (at, places) in self.places[..reach].iter().enumerate() {
                    if places[..P].iter().all(Option::is_none) {
                        continue;
                    }
                    let column = column::<N>(from.wrapping_add(at * self.column), self.line, rows);
                    for p in 0..P {
                        let Some(place) = places[p] else { continue };
                        let w = weights.wrapping_add(place * N * GROUP);
                        for n in 0..N {
                            let w = _mm512_loadu_si512(w.add(n * GROUP).cast());
                            sums[p][n] = _mm512_dpbusd_epi32(sums[p][n], column[n], w);
                        }
                    }
                }
            }
            for (p, sums) in sums.iter().enumerate() {
                for (n, sum) in sums.iter().enumerate() {
                    _mm512_storeu_si512(to.add(p * ld + n * PANEL).cast(), *sum);
                }
            }
        }
    }
}

/// One column of up to four rows that are `line` bytes apart, of `N` panels: for each channel the bytes of all rows, 0 for those that
/// are not there.
///
/// # Safety
/// AVX-512; every row has `N` panels of bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn column<const N: usize>(from: *const u8, line: usize, rows: usize) -> [__m512i; N] {
    // Interleaving works within quarters of a register: quarter `j` gets the four bytes `j` of each panel.
    let order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    let row = |i: usize| {
        if i >= rows {
            return _mm512_setzero_si512();
        }
        let from = from.wrapping_add(i * line).cast();
        // SAFETY: the caller's promise; of a part of a register no more is read than its panels.
        let bytes = unsafe {
            match N {
                PANELS => _mm512_loadu_si512(from),
                _ => _mm512_maskz_loadu_epi8((1u64 << (N * PANEL)) - 1, from.cast()),
            }
        };
        _mm512_permutexvar_epi32(order, bytes)
    };
    let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
    let low = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
    let high = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
    std::array::from_fn(|n| match n {
        0 => _mm512_unpacklo_epi16(low.0, low.1),
        1 => _mm512_unpackhi_epi16(low.0, low.1),
        2 => _mm512_unpacklo_epi16(high.0, high.1),
        _ => _mm512_unpackhi_epi16(high.0, high.1),
    })
}
