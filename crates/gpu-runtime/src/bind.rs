//! Binding a program's constants: their copies on the device, the buffers that init steps make of them, and what of both is still
//! needed afterwards.
//!
//! A constant is placed before the first init step that reads it, and freed after the last one where no call reads it: a
//! network whose weights are folded and packed then keeps one copy of them, and never holds all of its forms at once.

use std::slice;

use ir_core::EntityId;
use kernel_ir::runtime::Sizes;
use kernel_ir::{BufId, Const, Program, Storage};
use plugin_sdk::TensorView;

use crate::arguments::{Source, source};
use crate::compiled::Compiled;
use crate::machine::bytes_of;
use crate::prepare::Layout;
use crate::{Block, Driver, GpuError};

/// Constants and buffers derived from them, on the device.
pub(crate) struct Bound<D: Driver> {
    /// The address of each buffer's memory; a dummy for those that no call reads.
    pub(crate) addresses: Vec<u64>,
    /// Whether calls read the memory of each bound constant, in the caller's order.
    pub(crate) reads: Vec<bool>,
    _memory: Vec<Block<D>>,
}

/// When init steps use a root buffer, and whether calls do.
#[derive(Clone, Copy, Default)]
struct Use {
    /// The first and the last init step, by number.
    init: Option<(usize, usize)>,
    kept: bool,
}

/// The uses of all root buffers.
fn uses(program: &Program) -> Vec<Use> {
    let mut uses = vec![Use::default(); program.buffers.len()];
    let touched = |step: &kernel_ir::Step| -> Vec<usize> {
        let (reads, writes) = step.accesses();
        reads.into_iter().chain(writes).map(|b| program.root(b).index()).collect()
    };
    for (n, step) in program.init.iter().enumerate() {
        for root in touched(step) {
            uses[root].init.get_or_insert((n, n)).1 = n;
        }
    }
    program.steps.iter().flat_map(touched).for_each(|root| uses[root].kept = true);
    program.outputs.iter().for_each(|o| uses[program.root(o.buf).index()].kept = true);
    uses
}

/// The constant of a program that the caller gave.
fn given<'v, 'a>(
    constant: &Const,
    constants: &'v [(&str, TensorView<'a>)],
) -> Result<(usize, &'v TensorView<'a>), GpuError> {
    let at = constants.iter().position(|(name, _)| *name == constant.name);
    let at =
        at.ok_or_else(|| GpuError::Argument(format!("the constant `{}` was not bound", constant.name)))?;
    Ok((at, &constants[at].1))
}

impl<D: Driver> Compiled<D> {
    /// Binds the constants, copying those of the host to the device, and runs the init steps.
    ///
    /// # Errors
    /// A constant is missing or has another type, there is no memory, or an init step fails.
    pub fn bind(&mut self, constants: &[(&str, TensorView<'_>)]) -> Result<(), GpuError> {
        self.unbind();
        let memory = std::sync::Arc::clone(self.memory());
        let exclusive = memory.exclusive();
        let bound = self.bound_to(constants)?;
        drop(exclusive);
        self.put(bound);
        Ok(())
    }

    fn bound_to(&self, constants: &[(&str, TensorView<'_>)]) -> Result<Bound<D>, GpuError> {
        let program = self.program();
        let sizes = Sizes::hints(program);
        let uses = uses(program);
        let mut reads = vec![false; constants.len()];
        let mut views: Vec<Option<(Source, Layout, &TensorView<'_>)>> =
            program.buffers.ids().map(|_| None).collect();
        for constant in &program.constants {
            let (at, view) = given(constant, constants)?;
            let root = constant.buf.index();
            let layout = Layout::of_buffer(program, constant.buf, &sizes)?;
            let place = source(&constant.name, &layout, view, self.driver().device())?;
            reads[at] |= uses[root].kept && matches!(place, Source::Device(_));
            views[root] = Some((place, layout, view));
        }
        let mut blocks: Vec<Option<Block<D>>> = program.buffers.ids().map(|_| None).collect();
        let dummy = vec![self.dummy(); program.buffers.len()];
        let mut machine = self.machine(dummy, sizes.clone(), true);
        let place = |root: usize| -> Result<(u64, Option<Block<D>>), GpuError> {
            let id = BufId::from_index(root);
            match &views[root] {
                Some((place, layout, view)) => self.placed(*place, layout, view),
                None if program.buffers[id].storage == Storage::Persistent => {
                    let block = self.memory().block(bytes_of(program, id, &sizes)?)?;
                    Ok((block.address(), Some(block)))
                }
                None => Ok((self.dummy(), None)),
            }
        };
        {
            let _span = tracing::debug_span!(target: "kernel", "init steps").entered();
            for (n, step) in self.init().iter().enumerate() {
                for root in (0..uses.len()).filter(|r| uses[*r].init.is_some_and(|(first, _)| first == n)) {
                    (machine.exec.addresses[root], blocks[root]) = place(root)?;
                }
                machine.run(slice::from_ref(step))?;
                for (root, of) in uses.iter().enumerate() {
                    if !of.kept && of.init.is_some_and(|(_, last)| last == n) {
                        machine.exec.addresses[root] = self.dummy();
                        blocks[root] = None;
                    }
                }
            }
        }
        for (root, _) in uses.iter().enumerate().filter(|(_, of)| of.kept && of.init.is_none()) {
            (machine.exec.addresses[root], blocks[root]) = place(root)?;
        }
        self.finish_init(reads.contains(&false))?;
        let (usage, kept) = (self.memory().usage(), blocks.iter().flatten().map(Block::bytes).sum::<u64>());
        tracing::debug!(
            target: "kernel", program = program.name, kept, used = usage.used, peak = usage.peak, "memory of constants"
        );
        Ok(Bound {
            addresses: machine.exec.addresses,
            reads,
            _memory: blocks.into_iter().flatten().collect(),
        })
    }
}
