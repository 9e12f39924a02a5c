//! The steps of a transform: the radices of a length, the threads of a line, and the text of what a thread does from one
//! step to the next.

use kernel_ir::FourierForm;

use super::Lines;
use crate::GenError;
use crate::text::types::value_type;

/// Numbers that a thread has in registers, about.
const EACH: i64 = 8;

/// The steps of a line.
pub(super) struct Steps {
    /// How many complex numbers a line has.
    pub(super) length: i64,
    /// The radices, whose product that is.
    pub(super) radices: Vec<i64>,
    /// Threads of a line.
    pub(super) threads: i64,
}

impl Steps {
    /// Those of a length whose factors are all small.
    pub(super) fn of(length: i64) -> Steps {
        let radices = radices(length);
        let largest = radices.iter().copied().max().unwrap_or(1);
        let threads = (length + largest.max(EACH) - 1) / largest.max(EACH);
        Steps { length, radices, threads }
    }

    /// Places of a step: groups of numbers that are transformed together.
    fn places(&self, step: usize) -> i64 {
        self.length / self.radices[step]
    }

    /// Places that a thread takes in a step.
    fn each(&self, step: usize) -> i64 {
        (self.places(step) + self.threads - 1) / self.threads
    }

    /// Elements that are done before a step.
    fn done(&self, step: usize) -> i64 {
        self.radices[..step].iter().product()
    }
}

/// Powers of two by as few steps as possible, of radices as equal as possible; other factors one by one.
fn radices(length: i64) -> Vec<i64> {
    let twos = length.trailing_zeros();
    let (mut rest, mut list) = (length >> twos, Vec::new());
    let count = twos.div_ceil(4);
    for n in 0..count {
        list.push(1i64 << (twos / count + u32::from(n < twos % count)));
    }
    for p in [13, 11, 7, 5, 3] {
        while rest % p == 0 {
            list.push(p);
            rest /= p;
        }
    }
    if list.is_empty() {
        list.push(1);
    }
    list
}

impl Lines<'_> {
    /// What a thread does with its line `row`.
    pub(super) fn work(&self, load: &str, store: &str) -> Result<String, GenError> {
        let ty = value_type(self.dtype)?;
        let steps = &self.steps;
        let mut text = String::new();
        let last = steps.radices.len() - 1;
        for step in 0..=last {
            let (radix, each) = (steps.radices[step], steps.each(step));
            text.push_str(&format!("Complex<{ty}> v{step}[{each}][{radix}];\n"));
            match step {
                0 => text.push_str(&self.loaded(load)),
                _ => text.push_str(&self.exchanged(step)),
            }
            let (done, sign) = (steps.done(step), self.sign());
            let transformed = format!("fourier_step<{radix}, {done}, {sign}>(v{step}[e], j);\n");
            text.push_str(&self.each_place(step, &transformed));
        }
        text.push_str(&match self.pairs && self.call.form == FourierForm::RealToHalf {
            true => self.unpaired(ty, store),
            false => self.stored(store),
        });
        // The memory of this line is free again when all have read it.
        text.push_str(if self.exchanges() { "block_sync();\n" } else { "" });
        Ok(text)
    }

    /// `statements` for each place `j` of a step that a thread has; `e` is its number there.
    fn each_place(&self, step: usize, statements: &str) -> String {
        let (places, each, threads) = (self.steps.places(step), self.steps.each(step), self.steps.threads);
        let guard = if each * threads == places { String::new() } else { format!("if (j < {places}) ") };
        format!(
            "#pragma unroll
for (int e = 0; e < {each}; ++e) {{
const int j = own + e * {threads};
{guard}{{
{statements}}}
}}
"
        )
    }

    /// `statements` for each number `q` of each place.
    fn each_number(&self, step: usize, statements: &str) -> String {
        let radix = self.steps.radices[step];
        let inner = format!("#pragma unroll\nfor (int q = 0; q < {radix}; ++q) {{\n{statements}}}\n");
        self.each_place(step, &inner)
    }

    /// The numbers of the first step, from the operand; lines that are not there are zeros.
    fn loaded(&self, load: &str) -> String {
        let places = self.steps.places(0);
        let one = format!(
            "const int at = j + q * {places};\nauto &z = v0[e][q];\nz = {{0, 0}};\nif (there) {{\n{load}}}\n"
        );
        self.each_number(0, &one)
    }

    /// Where a step leaves its numbers.
    fn left(&self, step: usize) -> String {
        format!("fourier_place<{}, {}>(j, q)", self.steps.radices[step], self.steps.done(step))
    }

    /// The numbers of a step, which those of the step before are exchanged for.
    fn exchanged(&self, step: usize) -> String {
        let (before, places) = (step - 1, self.steps.places(step));
        let (to, from) = (self.slot(&self.left(before)), self.slot(&format!("j + q * {places}")));
        let write = |part: &str, of: &str| {
            self.each_number(before, &format!("shared_{part}[{to}] = v{before}[e][q].{of};\n"))
        };
        let read = |part: &str, of: &str| {
            self.each_number(step, &format!("v{step}[e][q].{of} = shared_{part}[{from}];\n"))
        };
        let sync = "block_sync();\n";
        match self.apart {
            true => [
                &*if step > 1 { sync.to_owned() } else { String::new() },
                &write("re", "re"),
                sync,
                &read("re", "re"),
                sync,
                &write("re", "im"),
                sync,
                &read("re", "im"),
            ]
            .concat(),
            false => [
                &*if step > 1 { sync.to_owned() } else { String::new() },
                &write("re", "re"),
                &write("im", "im"),
                sync,
                &read("re", "re"),
                &read("im", "im"),
            ]
            .concat(),
        }
    }

    /// The results, as the last step leaves them.
    fn stored(&self, store: &str) -> String {
        let last = self.steps.radices.len() - 1;
        let one = format!(
            "const int at = {};\nconst auto z = v{last}[e][q];\nif (there) {{\n{store}}}\n",
            self.left(last)
        );
        self.each_number(last, &one)
    }

    /// The results of a real line, out of the transform of its pairs.
    fn unpaired(&self, ty: &str, store: &str) -> String {
        let (last, length) = (self.steps.radices.len() - 1, self.steps.length);
        let to = self.slot(&self.left(last));
        let write = self.each_number(
            last,
            &format!(
                "const int at = {to};\nshared_re[at] = v{last}[e][q].re;\nshared_im[at] = v{last}[e][q].im;\n"
            ),
        );
        let (a, b) = (
            self.slot(&format!("at < {length} ? at : 0")),
            self.slot(&format!("at > 0 ? {length} - at : 0")),
        );
        let sync = if last > 0 { "block_sync();\n" } else { "" };
        format!(
            "{sync}{write}block_sync();
for (int at = own; at <= {length}; at += {threads}) {{
const int front = {a}, back = {b};
const Complex<{ty}> x = {{shared_re[front], shared_im[front]}}, y = {{shared_re[back], shared_im[back]}};
const Complex<{ty}> z = out_of_pairs<{n}, {sign}>(x, y, at);
if (there) {{
{store}}}
}}
",
            threads = self.steps.threads,
            n = self.call.length,
            sign = self.sign(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radices_make_the_length() {
        for length in (1..=4096).filter(|n| kernel_ir::is_length(*n)) {
            let steps = Steps::of(length);
            assert_eq!(steps.radices.iter().product::<i64>(), length);
            assert!(steps.threads <= 512, "{length}: {} threads", steps.threads);
        }
        assert_eq!(radices(128), [16, 8]);
        assert_eq!(radices(1024), [16, 8, 8]);
        assert_eq!(radices(4096), [16, 16, 16]);
        assert_eq!(radices(360), [8, 5, 3, 3]);
        assert_eq!(radices(1), [1]);
    }
}
