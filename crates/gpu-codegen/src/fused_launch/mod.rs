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
    plain && alone && small && uses.scratch.is_empty() && uses.maps.is_empty() && !uses.tickets
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
    // `end{n}` is the first block after those of kernel `n`.
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
        // The parameters shadow the built-in variables, so that a function sees only its own blocks.
        let comma = if text.starts_with(')') { "" } else { ", " };
        format!(
            "static __device__ void member{n}_{ENTRY}(const Dealt blockIdx, const Dealt gridDim{comma}{text}"
        )
    };
    kernel.source = functions.iter().enumerate().map(head).collect::<String>() + &kernel.source;
    Ok(Some(kernel))
}

/// Returns statements that call the function whose range contains the block, by binary search. `first` is the number of
/// the first call.
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
