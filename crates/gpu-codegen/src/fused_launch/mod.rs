//! Several kernels as one launch: each becomes a function of the device, equal ones once, and the blocks of the launch are
//! dealt out to them in ranges.
//!
//! Which steps may run at once is said by the program (`kernel_ir::Together`); which of them do is the runtime's choice.

pub(crate) mod chain;

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::Program;

use crate::loops::hint;
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::assemble;
use crate::{ENTRY, GenError, Kernel, Launch, Target};

/// Parameters of a launch at most: half of the 4 KiB that every driver takes.
const MAX_PARAMETERS: usize = 256;
/// Kernels of a launch at most: a longer text compiles slowly.
const MAX_KERNELS: usize = 64;
/// Static shared memory of a launch at most, of the 48 KiB that every block has.
const MAX_SHARED: u32 = 32 * 1024;
/// A kernel of more blocks a multiprocessor than these keeps the device busy for some ten microseconds: that it is launched
/// on its own takes no time then, and it keeps registers of its own.
const MAX_BLOCKS_EACH: i64 = 16;

/// Kernels that can be one launch.
#[derive(Default)]
pub struct LaunchGroup<'a> {
    kernels: Vec<&'a Kernel>,
    uses: Uses,
}

impl<'a> LaunchGroup<'a> {
    /// Adds a kernel; `false` where it has to be launched otherwise: it is of another shape than those that are there, or
    /// there is no room.
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

/// Whether a kernel can share its launch with others and gains by it.
fn can_share_launch(program: &Program, kernel: &Kernel, target: &Target) -> bool {
    let Launch { blocks: [x, y, z], shared, .. } = &kernel.launch;
    let uses = &kernel.text_parts.uses;
    // A kernel that changed its own head, or that holds shared memory nobody counted, stays as it is.
    let plain = kernel.source.starts_with(&entry_head(kernel))
        && (uses.shared > 0 || !kernel.text_parts.body.contains("__shared__"));
    let alone = *y == SymExpr::ONE && *z == SymExpr::ONE && *shared == 0;
    let small = hint(program, x) <= MAX_BLOCKS_EACH * i64::from(target.multiprocessors);
    plain && alone && small && uses.scratch.is_empty() && uses.maps.is_empty() && !uses.tickets
}

/// How the text of a kernel begins that is as it was assembled.
fn entry_head(kernel: &Kernel) -> String {
    format!("extern \"C\" __global__ void __launch_bounds__({}) {ENTRY}(", kernel.launch.threads)
}

/// What both use; shared memory of both is there at once.
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

/// One kernel that does what all of them do, its launch as large as theirs together; `None` where they are fewer than two.
///
/// # Errors
/// As for the kernels themselves.
pub fn fuse_launches(program: &Program, group: &LaunchGroup<'_>) -> Result<Option<Kernel>, GenError> {
    let [first, _, ..] = &group.kernels[..] else { return Ok(None) };
    let mut uses = group.uses.clone();
    uses.waits = group.kernels.iter().all(|k| k.text_parts.uses.waits);
    // What is dealt out is known by the first block that comes after it.
    let (mut functions, mut ends, mut calls) = (Vec::<String>::new(), String::new(), Vec::new());
    let writer = BodyWriter { program, extents: &[], prefix: "", guard: None, store_guard: None };
    let (mut blocks, mut checks) = (SymExpr::ZERO, 0);
    for (n, kernel) in group.kernels.iter().enumerate() {
        let text = format!("{}) {{\n{}}}\n", kernel.text_parts.declared, kernel.text_parts.body);
        let function = functions.iter().position(|f| *f == text).unwrap_or_else(|| {
            functions.push(text);
            functions.len() - 1
        });
        let own = &kernel.launch.blocks[0];
        let (from, count) =
            (if n == 0 { "0".into() } else { format!("end{}", n - 1) }, writer.expr(own, &mut uses));
        let _ = writeln!(ends, "const idx end{n} = {from} + ({count});");
        let mut arguments = format!("{{(u32)(blockIdx.x - {from}), 0}}, {{(u32)(end{n} - {from}), 1}}");
        for buf in &kernel.text_parts.uses.buffers {
            let _ = write!(arguments, ", {}", uses.memory(*buf));
        }
        if !kernel.checks.is_empty() {
            let _ = write!(arguments, ", faults, first_check + {checks}");
            checks += kernel.checks.len();
        }
        for symbol in &kernel.text_parts.uses.symbols {
            let _ = write!(arguments, ", {symbol}_");
        }
        calls.push(format!("member{function}_{ENTRY}({arguments});\n"));
        blocks = blocks + own;
    }
    let body = ends + &dispatch(&calls, 0);
    let launch = Launch::flat(blocks, first.launch.threads);
    let mut kernel = assemble(program, ENTRY, &uses, launch, &body)?;
    let head = |(n, text): (usize, &String)| {
        // The parameters hide the launch's own numbers: a member sees its own blocks alone.
        let comma = if text.starts_with(')') { "" } else { ", " };
        format!(
            "static __device__ void member{n}_{ENTRY}(const Dealt blockIdx, const Dealt gridDim{comma}{text}"
        )
    };
    kernel.source = functions.iter().enumerate().map(head).collect::<String>() + &kernel.source;
    Ok(Some(kernel))
}

/// Statements that call the member whose blocks the block belongs to; the first call is that of member `first`.
fn dispatch(calls: &[String], first: usize) -> String {
    match calls {
        [] => String::new(),
        [call] => call.clone(),
        _ => {
            let (low, high) = calls.split_at(calls.len() / 2);
            let last = first + low.len() - 1;
            format!(
                "if (blockIdx.x < end{last}) {{\n{}}} else {{\n{}}}\n",
                dispatch(low, first),
                dispatch(high, first + low.len())
            )
        }
    }
}
