//! Horizontal fusion of launches: several kernels become one. Each becomes a device function, identical ones only once,
//! and ranges of the launch's blocks run one function each.
//!
//! The program says which steps are independent (`kernel_ir::Together`); the runtime chooses which of them share a launch.

pub(crate) mod chain;

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::Program;

use crate::loops::hint;
use crate::text::body::{BodyWriter, Uses};
use crate::text::index::literal;
use crate::text::template::assemble;
use crate::{ENTRY, GenError, Kernel, Launch, Target};

/// Maximum number of parameters of a launch: half of the 4 KiB that every driver accepts.
const MAX_PARAMETERS: usize = 256;
/// Maximum number of kernels per launch: longer texts compile slowly.
const MAX_KERNELS: usize = 64;
/// Maximum static shared memory of a launch, of the 48 KiB that every block has.
const MAX_SHARED: u32 = 32 * 1024;
/// A kernel with more blocks per multiprocessor than this keeps the device busy for some ten microseconds. Launching it
/// separately then costs nothing, and its register count stays its own.
const MAX_BLOCKS_EACH: i64 = 16;

/// Kernels that can be fused into one launch.
#[derive(Default)]
pub struct LaunchGroup<'a> {
    kernels: Vec<&'a Kernel>,
    uses: Uses,
}

impl<'a> LaunchGroup<'a> {
    /// Adds a kernel. Returns `false` where its shape differs from the kernels so far or there is no room; it then needs a
    /// launch of its own.
    pub fn add(&mut self, program: &Program, kernel: &'a Kernel, target: &Target) -> bool {
        if !can_share_launch(program, kernel, target) {
            return false;
        }
        let uses = merged_uses(&self.uses, &kernel.text_parts.uses);
        let parameters = uses.buffers.len() + uses.symbols.len() + 2 * usize::from(!uses.checks.is_empty());
        let fits = self.kernels.first().is_none_or(|k| k.launch.threads == kernel.launch.threads)
            && self.kernels.len() < MAX_KERNELS
            && parameters <= MAX_PARAMETERS
            && uses.shared <= MAX_SHARED;
        if fits {
            self.kernels.push(kernel);
            self.uses = uses;
        }
        fits
    }
}

/// Whether a kernel can share a launch with others and gains by it.
fn can_share_launch(program: &Program, kernel: &Kernel, target: &Target) -> bool {
    let Launch { blocks: [x, y, z], shared, .. } = &kernel.launch;
    let uses = &kernel.text_parts.uses;
    // A kernel with a head of its own, or with shared memory that is not counted, is not fused.
    let plain = kernel.source.starts_with(&entry_head(kernel))
        && (uses.shared > 0 || !kernel.text_parts.body.contains("__shared__"));
    let alone = *y == SymExpr::ONE && *z == SymExpr::ONE && *shared == 0;
    let small = hint(program, x) <= MAX_BLOCKS_EACH * i64::from(target.multiprocessors);
    plain
        && alone
        && small
        && uses.scratch.is_empty()
        && uses.maps.is_empty()
        && !uses.tickets
        && uses.numbers.is_none()
}

/// The beginning of a kernel's text that was not changed after assembly.
fn entry_head(kernel: &Kernel) -> String {
    format!("extern \"C\" __global__ void __launch_bounds__({}) {ENTRY}(", kernel.launch.threads)
}

/// What both kernels use. Shared memory adds up, since both need it at once.
fn merged_uses(a: &Uses, b: &Uses) -> Uses {
    let mut all = a.clone();
    b.buffers.iter().for_each(|buf| {
        all.memory(*buf);
    });
    all.written.extend(&b.written);
    all.loaded.extend(&b.loaded);
    all.symbols.extend(&b.symbols);
    all.checks.extend(&b.checks);
    all.shared += b.shared;
    all
}

/// Returns one kernel that runs all kernels of the group, with the sum of their blocks; `None` for fewer than two kernels.
///
/// # Errors
/// The errors of the kernels themselves.
pub fn fuse_launches(program: &Program, group: &LaunchGroup<'_>) -> Result<Option<Kernel>, GenError> {
    let [first, _, ..] = &group.kernels[..] else { return Ok(None) };
    let mut uses = group.uses.clone();
    uses.waits = group.kernels.iter().all(|k| k.text_parts.uses.waits);
    let functions = functions(group);
    let writer = BodyWriter { program, extents: &[], prefix: "", guard: None, store_guard: None };
    // `end{n}` is the first block after those of member `n`; members of one function are next to each other.
    let (mut ends, mut calls, mut n) = (String::new(), Vec::new(), 0);
    let mut blocks = SymExpr::ZERO;
    for (number, function) in functions.iter().enumerate() {
        let mut members = Vec::new();
        for member in &function.members {
            let own = &member.kernel.launch.blocks[0];
            let from = if n == 0 { "0".into() } else { format!("end{}", n - 1) };
            let _ = writeln!(ends, "const idx end{n} = {from} + ({});", writer.expr(own, &mut uses));
            blocks = blocks + own;
            members.push(Choice { last: n, text: member.choice(&from, n, &mut uses) });
            n += 1;
        }
        calls.push(Choice { last: n - 1, text: function.call(number, &members) });
    }
    let body = ends + &dispatch(&calls);
    let launch = Launch::flat(blocks, first.launch.threads);
    let mut kernel = assemble(program, ENTRY, &uses, launch, &body)?;
    let heads: String = functions.iter().enumerate().map(|(n, f)| f.definition(n)).collect();
    kernel.source = heads + &kernel.source;
    Ok(Some(kernel))
}

/// A device function of the launch, and the kernels that are this function with arguments of their own.
struct Function<'a> {
    /// Its parameters after the blocks, and its body.
    text: String,
    members: Vec<Member<'a>>,
}

/// One kernel of the group.
struct Member<'a> {
    kernel: &'a Kernel,
    /// The number of its first index check among those of the launch.
    first_check: usize,
}

/// The distinct functions of the group's kernels, in the order of their first member.
fn functions<'a>(group: &LaunchGroup<'a>) -> Vec<Function<'a>> {
    let mut functions: Vec<Function<'a>> = Vec::new();
    let mut first_check = 0;
    for kernel in group.kernels.iter().copied() {
        let text = format!("{}) {{\n{}}}\n", kernel.text_parts.declared, kernel.text_parts.body);
        let member = Member { kernel, first_check };
        first_check += kernel.checks.len();
        match functions.iter_mut().find(|f| f.text == text) {
            Some(known) => known.members.push(member),
            None => functions.push(Function { text, members: vec![member] }),
        }
    }
    functions
}

impl Function<'_> {
    /// The function's definition. The parameters shadow the built-in variables, so that a function sees only its own blocks.
    fn definition(&self, number: usize) -> String {
        let comma = if self.text.starts_with(')') { "" } else { ", " };
        format!(
            "static __device__ void member{number}_{ENTRY}(const Dealt blockIdx, const Dealt gridDim{comma}{}",
            self.text
        )
    }

    /// Statements that choose a member's blocks and arguments and call the function once: a compiler that inlines a call for
    /// each member takes seconds for the fifty of a network's parameters.
    fn call(&self, number: usize, members: &[Choice]) -> String {
        let mut text = "idx from, until;\n".to_owned();
        let mut arguments = "{(u32)(blockIdx.x - from), 0}, {(u32)(until - from), 1}".to_owned();
        let Some(Member { kernel, .. }) = self.members.first() else { return String::new() };
        for (place, pointer) in kernel.text_parts.pointers.iter().enumerate() {
            let _ = writeln!(text, "{pointer}p{place};");
            let _ = write!(arguments, ", p{place}");
        }
        if !kernel.checks.is_empty() {
            text.push_str("i64 check;\n");
            arguments.push_str(", faults, check");
        }
        for symbol in &kernel.text_parts.uses.symbols {
            let _ = write!(arguments, ", {symbol}_");
        }
        for (place, _) in kernel.text_parts.uses.own_slices() {
            let _ = writeln!(text, "i64 start{place};");
            let _ = write!(arguments, ", start{place}");
        }
        text + &dispatch(members) + &format!("member{number}_{ENTRY}({arguments});\n")
    }
}

impl Member<'_> {
    /// Assigns the member's blocks and arguments. It is member `n` of the launch and begins with block `from`.
    fn choice(&self, from: &str, n: usize, uses: &mut Uses) -> String {
        let mut text = format!("from = {from};\nuntil = end{n};\n");
        for (place, buf) in self.kernel.text_parts.uses.buffers.iter().enumerate() {
            let _ = writeln!(text, "p{place} = {};", uses.memory(*buf));
        }
        for (place, start) in self.kernel.text_parts.uses.own_slices() {
            let _ = writeln!(text, "start{place} = {};", literal(start));
        }
        if !self.kernel.checks.is_empty() {
            let _ = writeln!(text, "check = first_check + {};", self.first_check);
        }
        text
    }
}

/// Statements for the blocks up to those of a member.
struct Choice {
    /// The last member that they are for.
    last: usize,
    text: String,
}

/// Returns statements that run the choice whose range contains the block, by binary search.
fn dispatch(choices: &[Choice]) -> String {
    match choices {
        [] => String::new(),
        [choice] => choice.text.clone(),
        _ => {
            let (low, high) = choices.split_at(choices.len() / 2);
            let last = low.last().map_or(0, |choice| choice.last);
            format!("if (blockIdx.x < end{last}) {{\n{}}} else {{\n{}}}\n", dispatch(low), dispatch(high))
        }
    }
}
