//! The functions that a program needs: equal ones are compiled once, and each use has a table of base pointers.

use ir_core::EntityId;
use kernel_ir::BufId;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Buffers;
use crate::clif::{Fault, Job, Walk};
use crate::vir::{Base, Form, VKernel, form, relocate};

/// Functions to compile.
#[derive(Default)]
pub(super) struct Jobs {
    list: Vec<Job>,
    known: FxHashMap<(Form, Option<Walk>), usize>,
    /// The number of the function of each use, in order.
    used: Vec<usize>,
}

/// A function in the program's code, and the memory of one use of it.
pub(super) struct Function {
    pub(super) number: usize,
    bases: Vec<Base>,
    /// The program's sites of the function's index checks.
    sites: Box<[u32]>,
}

impl Jobs {
    /// All functions, by number.
    pub(super) fn list(&self) -> &[Job] {
        &self.list
    }

    /// The functions that were used since the last question, each once.
    pub(super) fn take_used(&mut self) -> Vec<usize> {
        let mut used = std::mem::take(&mut self.used);
        used.sort_unstable();
        used.dedup();
        used
    }

    /// A loop kernel.
    pub(super) fn kernel(&mut self, mut kernel: VKernel) -> Function {
        let bases = relocate(&mut kernel);
        let sites = std::mem::take(&mut kernel.sites);
        self.add((form(&kernel), None), bases, sites, || Job::Kernel(kernel))
    }

    /// An epilogue.
    pub(super) fn epilogue(&mut self, mut kernel: VKernel, walk: Walk) -> Function {
        let bases = relocate(&mut kernel);
        let sites = std::mem::take(&mut kernel.sites);
        let key = (form(&kernel), Some(walk.clone()));
        self.add(key, bases, sites, || Job::Epilogue(kernel, walk))
    }

    fn add(
        &mut self,
        key: (Form, Option<Walk>),
        bases: Vec<Base>,
        sites: Vec<u32>,
        job: impl FnOnce() -> Job,
    ) -> Function {
        let list = &mut self.list;
        let number = *self.known.entry(key).or_insert_with(|| {
            list.push(job());
            list.len() - 1
        });
        self.used.push(number);
        Function { number, bases, sites: sites.into() }
    }
}

impl Function {
    /// The base pointers that the function is called with; after them, where it checks indices, the record of the call's
    /// failed check and the list of its sites.
    pub(super) fn table(&self, buffers: &Buffers, fault: &Fault) -> SmallVec<[*mut u8; 8]> {
        self.table_with(buffers, fault, None)
    }

    /// The same, where one buffer is elsewhere.
    pub(super) fn table_with(
        &self,
        buffers: &Buffers,
        fault: &Fault,
        elsewhere: Option<(BufId, *mut u8)>,
    ) -> SmallVec<[*mut u8; 8]> {
        let pointer = |b: &Base| {
            let there = elsewhere.filter(|(buffer, _)| *buffer == b.root);
            there.map_or(buffers.0[b.root.index()], |(_, ptr)| ptr).wrapping_offset(b.bytes as isize)
        };
        let mut table: SmallVec<[*mut u8; 8]> = self.bases.iter().map(pointer).collect();
        if self.checks() {
            table.push(std::ptr::from_ref(fault).cast_mut().cast());
            table.push(self.sites.as_ptr().cast_mut().cast());
        }
        table
    }

    /// Whether it checks indices.
    pub(super) fn checks(&self) -> bool {
        !self.sites.is_empty()
    }
}
