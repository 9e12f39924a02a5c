//! Fourier transforms: a block transforms one line or several in registers and shared memory. A thread takes the numbers of
//! its places, a step of radix R at a time (`dialect/common/fourier.cu`), and between two steps they are exchanged through
//! shared memory. The first step reads the operand and the last one writes the result, so that both are accessed once. Lines
//! whose elements lie apart are taken with their neighbours, so that threads next to each other access elements next to each
//! other. Real lines of even length are transformed as pairs, half as many complex numbers.

mod steps;

use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{ExternCall, Fourier, FourierForm, Operand, Program, is_length};

use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, blocks_of, unravel, volume};
use crate::text::types::{number, value_type};
use crate::{ENTRY, GenError, Kernel, Launch, Target, Variant};
use steps::Steps;

/// Bytes of shared memory that the exchanged numbers of a block may take.
const SHARED: i64 = 48 * 1024;
/// Threads that a block of contiguous lines has about.
const CONTIGUOUS: i64 = 128;
/// Neighbouring lines of a block where elements lie apart: a thread of each accesses 128 bytes together.
const NEIGHBOURS: i64 = 32;
/// Fewer neighbours than this are worth that real and imaginary parts are exchanged one after the other, in half the memory.
const FEW: i64 = 16;
/// Most threads of a block.
const MOST: i64 = 512;

/// Returns the one candidate.
pub(crate) fn variants(program: &Program, k: &ExternCall, _: &Target) -> Result<Vec<Variant>, GenError> {
    let kernel = Lines::of(program, k)?.kernel()?;
    Ok(vec![Variant::single("lines", kernel)])
}

/// A transform and how blocks take its lines.
struct Lines<'a> {
    program: &'a Program,
    call: Fourier<'a>,
    dtype: DType,
    /// The dimensions beside that of the lines, those whose elements lie apart most first, and their sizes.
    order: Vec<usize>,
    others: Vec<SymExpr>,
    /// Whether a line is half as many complex numbers.
    pairs: bool,
    steps: Steps,
    /// Lines of a block.
    together: i64,
    /// Whether threads next to each other take lines next to each other.
    across: bool,
    /// Whether real and imaginary parts are exchanged one after the other.
    apart: bool,
}

impl<'a> Lines<'a> {
    fn of(program: &'a Program, k: &'a ExternCall) -> Result<Lines<'a>, GenError> {
        let malformed = || GenError::Malformed(format!("`{}` is no Fourier transform", k.name));
        let call = Fourier::of(k).filter(|call| is_length(call.length)).ok_or_else(malformed)?;
        let dtype = program.buffers[call.from.0.buf].dtype;
        let same = k.inputs.iter().chain(&k.outputs).all(|o| program.buffers[o.buf].dtype == dtype);
        if !same || !matches!(dtype, DType::F32 | DType::F64) {
            return Err(malformed());
        }
        let strides = &call.from.0.strides;
        let stride = |d: usize| strides[d].as_const().map_or(i64::MAX, i64::abs);
        let mut order: Vec<usize> = (0..strides.len()).filter(|d| *d != call.dim).collect();
        if order.iter().all(|d| strides[*d].as_const().is_some()) {
            order.sort_by_key(|d| std::cmp::Reverse(stride(*d)));
        }
        let others: Vec<SymExpr> = order.iter().map(|d| call.from.0.sizes[*d].clone()).collect();
        let nearest =
            order.iter().filter(|d| call.from.0.sizes[**d] != SymExpr::ONE).map(|d| stride(*d)).min();
        let across = stride(call.dim) > 2 && nearest.is_some_and(|n| n < stride(call.dim));
        let pairs = call.form != FourierForm::Complex && call.length % 2 == 0;
        let steps = Steps::of(if pairs { call.length / 2 } else { call.length });
        let bytes = dtype.size() as i64;
        let fitting = |parts: i64| SHARED * 32 / 33 / (parts * steps.length * bytes);
        let wanted = if across { NEIGHBOURS } else { (CONTIGUOUS / steps.threads).max(1) };
        let wanted = wanted.min(MOST / steps.threads).max(1);
        let final_exchange = pairs && call.form == FourierForm::RealToHalf;
        let apart = !final_exchange && fitting(2) < wanted.min(FEW);
        let most = fitting(if apart { 1 } else { 2 }).min(wanted).max(1) as u64;
        let together = 1i64 << most.ilog2();
        Ok(Lines { program, call, dtype, order, others, pairs, steps, together, across, apart })
    }

    fn writer(&self) -> BodyWriter<'_> {
        BodyWriter {
            program: self.program,
            extents: &self.others,
            prefix: "",
            guard: None,
            store_guard: None,
        }
    }

    /// An element of the line that the loop variables determine.
    fn at(&self, operand: &Operand, along: &str, uses: &mut Uses) -> String {
        let mut names = vec![String::new(); operand.sizes.len()];
        names[self.call.dim] = along.to_owned();
        for (place, d) in self.order.iter().enumerate() {
            names[*d] = format!("i{place}");
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        crate::text::template::element(&self.writer(), operand, &names, uses)
    }

    /// The complex number at `at` of the operand, an expression.
    fn number_at(&self, at: &str, uses: &mut Uses) -> Result<String, GenError> {
        let ty = value_type(self.dtype)?;
        let re = self.at(self.call.from.0, at, uses);
        let im = self.call.from.1.map_or(format!("({ty})0"), |im| self.at(im, at, uses));
        Ok(format!("{{{re}, {im}}}"))
    }

    /// Statements that set `z` to the number at `at` that is transformed.
    fn load(&self, uses: &mut Uses) -> Result<String, GenError> {
        let (ty, n) = (value_type(self.dtype)?, self.call.length);
        let (half, sign) = (n / 2, self.sign());
        Ok(match (self.call.form, self.pairs) {
            (FourierForm::Complex, _) => format!("z = {};\n", self.number_at("at", uses)?),
            (FourierForm::RealToHalf, true) => {
                let (even, odd) = (
                    self.at(self.call.from.0, "2 * at", uses),
                    self.at(self.call.from.0, "2 * at + 1", uses),
                );
                format!("z = {{{even}, {odd}}};\n")
            }
            (FourierForm::RealToHalf, false) => {
                format!("z = {{{}, ({ty})0}};\n", self.at(self.call.from.0, "at", uses))
            }
            (FourierForm::HalfToReal, true) => {
                let (a, b) = (self.number_at("at", uses)?, self.number_at(&format!("{half} - at"), uses)?);
                format!(
                    "Complex<{ty}> a = {a}, b = {b};\nif (at == 0) a.im = b.im = 0;\nz = into_pairs<{n}, {sign}>(a, b, at);\n"
                )
            }
            (FourierForm::HalfToReal, false) => {
                let from = self.number_at("from", uses)?;
                format!(
                    "const int from = at > {half} ? {n} - at : at;\nz = {from};\nif (at == 0) z.im = 0;\nif (at > {half}) z.im = -z.im;\n"
                )
            }
        })
    }

    /// Statements that write `z`, the number at `at` of what the last step leaves.
    fn store(&self, uses: &mut Uses) -> Result<String, GenError> {
        let factor = match self.call.scale {
            1.0 => String::new(),
            scale => format!(" * {}", number(Scalar::Float(scale), self.dtype)?),
        };
        for operand in std::iter::once(self.call.to.0).chain(self.call.to.1) {
            uses.written.insert(self.program.root(operand.buf));
        }
        let half = self.call.length / 2;
        if self.call.form == FourierForm::HalfToReal && self.pairs {
            let (even, odd) =
                (self.at(self.call.to.0, "2 * at", uses), self.at(self.call.to.0, "2 * at + 1", uses));
            return Ok(format!("{even} = z.re{factor};\n{odd} = z.im{factor};\n"));
        }
        let re = self.at(self.call.to.0, "at", uses);
        let mut text = format!("{re} = z.re{factor};\n");
        if let Some(im) = self.call.to.1 {
            text.push_str(&format!("{} = z.im{factor};\n", self.at(im, "at", uses)));
        }
        let guarded = self.call.form == FourierForm::RealToHalf && !self.pairs;
        Ok(if guarded { format!("if (at <= {half}) {{\n{text}}}\n") } else { text })
    }

    fn sign(&self) -> i32 {
        if self.call.forward { -1 } else { 1 }
    }

    /// Where shared memory has the number at `at` of the thread's line.
    fn slot(&self, at: &str) -> String {
        match self.across {
            true => format!("fourier_slot(({at}) * {} + line)", self.together),
            false => format!("fourier_slot(line * {} + ({at}))", self.steps.length),
        }
    }

    fn kernel(&self) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let writer = self.writer();
        let (together, threads) = (self.together, self.steps.threads);
        let rows = writer.expr(&volume(&self.others), &mut uses);
        let (load, store) = (self.load(&mut uses)?, self.store(&mut uses)?);
        let line = unravel(&writer, &self.others, 0, "row", &mut uses);
        let place = match self.across {
            true => format!("line = t % {together}, own = t / {together}"),
            false => format!("line = t / {threads}, own = t % {threads}"),
        };
        let work = self.work(&load, &store)?;
        let body = format!(
            "{shared}const int t = threadIdx.x;
const int {place};
for (idx first = blockIdx.x * (idx){together}; first < {rows}; first += (idx)gridDim.x * {together}) {{
const bool there = first + line < {rows};
const idx row = there ? first + line : first;
{line}{work}}}
",
            shared = self.shared()?,
        );
        let blocks = blocks_of(&volume(&self.others), together);
        let launch = Launch::flat(blocks, (together * threads) as u32);
        assemble(self.program, ENTRY, &uses, launch, &body)
    }

    /// The declaration of shared memory; none where a step is all.
    fn shared(&self) -> Result<String, GenError> {
        if !self.exchanges() {
            return Ok(String::new());
        }
        let (ty, count) = (value_type(self.dtype)?, self.together * self.steps.length);
        let count = count + count / 32;
        Ok(match self.apart {
            true => format!("__shared__ {ty} shared_re[{count}];\n"),
            false => format!("__shared__ {ty} shared_re[{count}], shared_im[{count}];\n"),
        })
    }

    fn exchanges(&self) -> bool {
        self.steps.radices.len() > 1 || self.pairs && self.call.form == FourierForm::RealToHalf
    }
}
