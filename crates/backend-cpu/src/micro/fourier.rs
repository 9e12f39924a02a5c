//! Fourier transforms of lines in memory: what a step does with a block of neighbouring lines. The transforms themselves are
//! `rustfft`'s, of contiguous complex numbers; here are the ways there and back. A line whose elements lie apart is
//! gathered, several neighbouring lines at once, so that memory is read in whole cache lines. A real line of even length is
//! transformed as one of half as many complex numbers. Not here: which lines a tensor has (`exec::fourier`).

use std::sync::Arc;

use kernel_ir::FourierForm;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection, FftNum, FftPlanner};

use super::scratch;

/// Complex numbers between the beginnings of lines in scratch memory beyond their length: lines of powers of two would
/// otherwise all be in the same few sets of the cache.
const APART: usize = 8;
/// Most bytes of the two copies of a block's lines, which stay in the second-level cache.
const BLOCK: usize = 256 << 10;
/// Most lines of a block: a cache line of 16 numbers.
const LINES: usize = 16;

/// A number that is transformed: `f32` or `f64`.
pub trait Real: FftNum {
    /// The nearest number.
    fn of(x: f64) -> Self;
}

impl Real for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
}

impl Real for f64 {
    fn of(x: f64) -> f64 {
        x
    }
}

/// The real or imaginary parts of a block of lines.
#[derive(Clone, Copy)]
pub struct Part<T> {
    /// The first element of the first line; null where there are no such parts.
    pub ptr: *mut T,
    /// Elements between neighbours of a line.
    pub along: isize,
    /// Elements between the beginnings of neighbouring lines.
    pub across: isize,
}

/// Real and imaginary parts of a block of lines.
pub type Side<T> = [Part<T>; 2];

/// Whether real and imaginary parts of a line lie side by side, without gaps.
fn is_pairs<T>([re, im]: &Side<T>) -> bool {
    im.ptr == re.ptr.wrapping_add(1) && (re.along, im.along) == (2, 2) && re.across == im.across
}

/// A transform that is ready to run.
pub struct FourierPlan<T: Real> {
    form: FourierForm,
    length: usize,
    scale: T,
    fft: Arc<dyn Fft<T>>,
    /// `exp(∓2πi k / n)` of a real transform of even length, for k up to n / 4.
    waves: Vec<Complex<T>>,
}

impl<T: Real> FourierPlan<T> {
    /// A transform of this length, 1 or more.
    pub fn new(form: FourierForm, length: usize, forward: bool, scale: f64) -> FourierPlan<T> {
        let packs = form != FourierForm::Complex && length.is_multiple_of(2);
        let direction = if forward { FftDirection::Forward } else { FftDirection::Inverse };
        let count = if packs { length / 2 } else { length };
        let fft = FftPlanner::new().plan_fft(count.max(1), direction);
        let wave = |k: usize| {
            let sign = if forward { -1.0 } else { 1.0 };
            let (sin, cos) = (sign * std::f64::consts::TAU * k as f64 / length as f64).sin_cos();
            Complex::new(T::of(cos), T::of(sin))
        };
        let waves = if packs { (0..=length / 4).map(wave).collect() } else { Vec::new() };
        FourierPlan { form, length, scale: T::of(scale), fft, waves }
    }

    /// Whether real numbers are transformed as half as many complex ones.
    fn packs(&self) -> bool {
        !self.waves.is_empty()
    }

    /// How many neighbouring lines are gathered at once.
    pub fn lines_at_once(&self) -> usize {
        (BLOCK / (2 * self.room() * size_of::<Complex<T>>())).clamp(1, LINES)
    }

    /// Complex numbers between the beginnings of lines in scratch memory.
    fn room(&self) -> usize {
        self.length + APART
    }

    /// Operations of a line, about.
    pub fn work(&self) -> usize {
        let halvings = usize::BITS - self.length.leading_zeros();
        self.length * halvings as usize
    }

    /// Transforms a block of at most [`FourierPlan::lines_at_once`] lines.
    ///
    /// # Safety
    /// Both sides have so many lines of the plan's form, whose elements are valid, those of `to` for writing by this thread
    /// alone, and do not overlap.
    pub unsafe fn run(&self, from: &Side<T>, to: &Side<T>, lines: usize) {
        let room = self.room();
        let block = lines * room;
        let (complex, single) = (size_of::<Complex<T>>(), size_of::<f32>());
        let more = self.fft.get_outofplace_scratch_len();
        scratch::with((2 * block + more) * (complex / single), |memory| {
            let first = memory.cast::<Complex<T>>();
            // SAFETY: scratch memory of two blocks and of what the transform asks for, aligned to cache lines, is set to zeros
            // before it is seen as numbers: all zeros are numbers.
            let (given, made, more) = unsafe {
                std::ptr::write_bytes(first.add(2 * block), 0, more);
                (first, first.add(block), std::slice::from_raw_parts_mut(first.add(2 * block), more))
            };
            // SAFETY: as the caller says; scratch memory has room for each line.
            unsafe {
                self.gather(from, given, lines);
                for line in 0..lines {
                    let x = given.add(line * room);
                    let y = self.place(to, line).unwrap_or_else(|| made.add(line * room));
                    self.line(x, y, more);
                }
                if self.place(to, 0).is_none() {
                    self.scatter(made, to, lines);
                }
            }
        });
    }

    /// Where a line's results are written at once, where they lie there as the transform leaves them.
    fn place(&self, to: &Side<T>, line: usize) -> Option<*mut Complex<T>> {
        let direct = match self.form {
            FourierForm::Complex => is_pairs(to),
            // Of a line of odd length all results are computed, more than there is room for.
            FourierForm::RealToHalf => self.packs() && is_pairs(to),
            FourierForm::HalfToReal => self.packs() && to[0].along == 1,
        };
        direct.then(|| to[0].ptr.wrapping_offset(line as isize * to[0].across).cast())
    }

    /// How many complex numbers of a line are transformed.
    fn count(&self) -> usize {
        if self.packs() { self.length / 2 } else { self.length }
    }

    /// Transforms a line from scratch memory `x`, which it spoils, to `y`.
    ///
    /// # Safety
    /// `x` has room for the whole line, `y` for the results of the form.
    unsafe fn line(&self, x: *mut Complex<T>, y: *mut Complex<T>, more: &mut [Complex<T>]) {
        let count = self.count();
        let half = self.length / 2;
        if self.form == FourierForm::HalfToReal {
            // SAFETY: `gather` has set the first half of the line, whose other half there is room for.
            let x = unsafe { std::slice::from_raw_parts_mut(x, self.length.max(half + 1)) };
            if self.packs() { self.pack(x) } else { mirror(x) }
        }
        // SAFETY: the line is in scratch memory, and so many results have a place; both are numbers, since `gather` has set the line
        // and any bits are numbers of `y`.
        let (x, y_line) =
            unsafe { (std::slice::from_raw_parts_mut(x, count), std::slice::from_raw_parts_mut(y, count)) };
        self.fft.process_outofplace_with_scratch(x, y_line, more);
        if self.form == FourierForm::RealToHalf && self.packs() {
            // SAFETY: the results are one number more than what was transformed.
            let y = unsafe {
                y.add(half).write(Complex::new(T::zero(), T::zero()));
                std::slice::from_raw_parts_mut(y, half + 1)
            };
            self.unpack(y);
        }
    }

    /// Of the transform `z` of a real line's pairs makes the first half of the line's own: with `e` and `o` the transforms of the
    /// elements with even and odd numbers, element k is `e + w o`, and element `n / 2 - k` the conjugate of `e - w o`.
    fn unpack(&self, z: &mut [Complex<T>]) {
        let m = z.len() - 1;
        let half = T::of(0.5);
        let first = z[0];
        z[0] = Complex::new(first.re + first.im, T::zero());
        z[m] = Complex::new(first.re - first.im, T::zero());
        for k in 1..=m / 2 {
            let (a, b, w) = (z[k], z[m - k], self.waves[k]);
            let (e_re, e_im) = ((a.re + b.re) * half, (a.im - b.im) * half);
            let (o_re, o_im) = ((a.im + b.im) * half, (b.re - a.re) * half);
            let (t_re, t_im) = (w.re * o_re - w.im * o_im, w.re * o_im + w.im * o_re);
            z[k] = Complex::new(e_re + t_re, e_im + t_im);
            z[m - k] = Complex::new(e_re - t_re, t_im - e_im);
        }
    }

    /// The way back, twice as large: pairs whose transform is the real line of which `x` is the first half.
    fn pack(&self, x: &mut [Complex<T>]) {
        let m = self.length / 2;
        let (first, last) = (x[0].re, x[m].re);
        x[0] = Complex::new(first + last, first - last);
        for k in 1..=m / 2 {
            let (a, b, w) = (x[k], x[m - k], self.waves[k]);
            let (e_re, e_im) = (a.re + b.re, a.im - b.im);
            let (d_re, d_im) = (a.re - b.re, a.im + b.im);
            let (o_re, o_im) = (w.re * d_re - w.im * d_im, w.re * d_im + w.im * d_re);
            x[k] = Complex::new(e_re - o_im, e_im + o_re);
            x[m - k] = Complex::new(e_re + o_im, o_re - e_im);
        }
    }

    /// Copies the lines to scratch memory.
    ///
    /// # Safety
    /// Those of [`FourierPlan::run`].
    unsafe fn gather(&self, from: &Side<T>, to: *mut Complex<T>, lines: usize) {
        let count = self.form.counts(self.length as i64).0 as usize;
        let across = 2 * self.room() as isize;
        let to = to.cast::<T>();
        let part = |n: usize, along: isize| Part { ptr: to.wrapping_add(n), along, across };
        // SAFETY: as the caller says; each line has room in scratch memory.
        unsafe {
            if self.form == FourierForm::RealToHalf && self.packs() {
                return copy(&from[0], &part(0, 1), count, lines, self.scale);
            }
            if is_pairs(from) {
                return copy(&Part { along: 1, ..from[0] }, &part(0, 1), 2 * count, lines, self.scale);
            }
            for (n, source) in from.iter().enumerate() {
                match source.ptr.is_null() {
                    false => copy(source, &part(n, 2), count, lines, self.scale),
                    true => fill(&part(n, 2), count, lines),
                }
            }
        }
    }

    /// Copies results from scratch memory to their places.
    ///
    /// # Safety
    /// Those of [`FourierPlan::run`].
    unsafe fn scatter(&self, made: *mut Complex<T>, to: &Side<T>, lines: usize) {
        let count = self.form.counts(self.length as i64).1 as usize;
        let across = 2 * self.room() as isize;
        let from = made.cast::<T>();
        // Pairs of real numbers lie one behind the other.
        let along = if self.form == FourierForm::HalfToReal && self.packs() { 1 } else { 2 };
        for (n, place) in to.iter().enumerate().filter(|(_, place)| !place.ptr.is_null()) {
            let source = Part { ptr: from.wrapping_add(n), along, across };
            // SAFETY: as the caller says.
            unsafe { copy(&source, place, count, lines, T::one()) };
        }
    }
}

/// The second half of a line whose first half is given: conjugates.
fn mirror<T: Real>(x: &mut [Complex<T>]) {
    let n = x.len();
    x[0].im = T::zero();
    for k in 1..n.div_ceil(2) {
        x[n - k] = x[k].conj();
    }
}

/// Copies numbers times `scale`.
///
/// # Safety
/// Both parts are valid for `count` elements of `lines` lines, and do not overlap.
unsafe fn copy<T: Real>(from: &Part<T>, to: &Part<T>, count: usize, lines: usize, scale: T) {
    let (x, y) = (from.ptr.cast_const(), to.ptr);
    // Neighbouring lines together, where they lie closer than the elements of a line.
    let crosswise = lines > 1 && from.along.abs().max(to.along.abs()) > 2;
    if crosswise {
        for j in 0..count as isize {
            let (x, y) = (x.wrapping_offset(j * from.along), y.wrapping_offset(j * to.along));
            for line in 0..lines as isize {
                // SAFETY: an element of a line, as the caller says.
                unsafe { *y.offset(line * to.across) = *x.offset(line * from.across) * scale };
            }
        }
        return;
    }
    for line in 0..lines as isize {
        let (x, y) = (x.wrapping_offset(line * from.across), y.wrapping_offset(line * to.across));
        // SAFETY: elements of a line, as the caller says. Written out for the steps that there mostly are, which the compiler
        // then makes vectors of.
        unsafe {
            match (from.along, to.along) {
                (1, 1) => (0..count).for_each(|j| *y.add(j) = *x.add(j) * scale),
                (1, 2) => (0..count).for_each(|j| *y.add(2 * j) = *x.add(j) * scale),
                (2, 1) => (0..count).for_each(|j| *y.add(j) = *x.add(2 * j) * scale),
                (a, b) => {
                    (0..count as isize).for_each(|j| *y.offset(j * b) = *x.offset(j * a) * scale);
                }
            }
        }
    }
}

/// Writes zeros.
///
/// # Safety
/// The part is valid for `count` elements of `lines` lines.
unsafe fn fill<T: Real>(to: &Part<T>, count: usize, lines: usize) {
    for line in 0..lines as isize {
        for j in 0..count as isize {
            // SAFETY: an element of a line, as the caller says.
            unsafe { *to.ptr.offset(line * to.across + j * to.along) = T::zero() };
        }
    }
}
