//! Machine code as bytes: the contents of an artifact for each function. It is only read by the same build on the same
//! instruction set, which the artifact's envelope has checked; here the bytes are checked to be well formed.

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::LibCall;
use cranelift_module::{FuncId, ModuleReloc, ModuleRelocTarget};

use super::compile::MachineFunction;
use super::host;

/// Kinds of relocation, by number. Others (thread-local variables) do not come up here.
const KINDS: [Reloc; 11] = [
    Reloc::Abs8,
    Reloc::X86PCRel4,
    Reloc::X86CallPCRel4,
    Reloc::X86CallPLTRel4,
    Reloc::X86GOTPCRel4,
    Reloc::Arm64Call,
    Reloc::Aarch64AdrGotPage21,
    Reloc::Aarch64AdrPrelPgHi21,
    Reloc::Aarch64AddAbsLo12Nc,
    Reloc::Aarch64Ld64GotLo12Nc,
    Reloc::RiscvCallPlt,
];

/// A writer of bytes.
#[derive(Default)]
pub(crate) struct Saved(pub(crate) Vec<u8>);

impl Saved {
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// All functions of a program; `None` where one has a relocation that has no number.
    pub(crate) fn functions(&mut self, functions: &[MachineFunction]) -> Option<()> {
        self.u32(functions.len() as u32);
        for f in functions {
            self.u32(u32::from(f.epilogue));
            self.u32(u32::try_from(f.align).ok()?);
            self.bytes(&f.code);
            self.u32(f.relocs.len() as u32);
            f.relocs.iter().try_for_each(|r| self.reloc(r))?;
        }
        Some(())
    }

    fn reloc(&mut self, reloc: &ModuleReloc) -> Option<()> {
        let (target, number) = match reloc.name {
            ModuleRelocTarget::User { namespace: host::NAMESPACE, index } => (0, index),
            ModuleRelocTarget::LibCall(call) => {
                (1, LibCall::all_libcalls().iter().position(|c| *c == call)? as u32)
            }
            ModuleRelocTarget::FunctionOffset(_, offset) => (2, offset),
            ModuleRelocTarget::User { .. } | ModuleRelocTarget::KnownSymbol(_) => return None,
        };
        self.u32(reloc.offset);
        self.u32(KINDS.iter().position(|k| *k == reloc.kind)? as u32);
        self.u32(target);
        self.u32(number);
        self.u64(reloc.addend as u64);
        Some(())
    }
}

/// A reader of bytes; `None` where they end too soon or are malformed.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u64()?;
        self.take(usize::try_from(n).ok()?)
    }

    /// Reads what [`Saved::functions`] wrote.
    pub(crate) fn functions(&mut self) -> Option<Vec<MachineFunction>> {
        let n = self.u32()? as usize;
        // Each takes some bytes, so a larger count is invalid.
        let mut functions = Vec::with_capacity(n.min(self.0.len()));
        for _ in 0..n {
            let epilogue = self.u32()? != 0;
            let align = u64::from(self.u32()?);
            let code = self.bytes()?.to_vec();
            let count = self.u32()?;
            let relocs = (0..count).map(|_| self.reloc(code.len())).collect::<Option<Vec<ModuleReloc>>>()?;
            functions.push(MachineFunction { epilogue, align, code, relocs });
        }
        Some(functions)
    }

    fn reloc(&mut self, code: usize) -> Option<ModuleReloc> {
        let offset = self.u32()?;
        let kind = *KINDS.get(self.u32()? as usize)?;
        let (target, number) = (self.u32()?, self.u32()?);
        let name = match target {
            0 if host::address(number).is_some() => ModuleRelocTarget::user(host::NAMESPACE, number),
            1 => ModuleRelocTarget::LibCall(*LibCall::all_libcalls().get(number as usize)?),
            2 => ModuleRelocTarget::FunctionOffset(FuncId::from_u32(0), number),
            _ => return None,
        };
        let addend = self.u64()? as i64;
        let width = if kind == Reloc::Abs8 { 8 } else { 4 };
        // The patched bytes are inside the function.
        (offset as usize + width <= code).then_some(ModuleReloc { offset, kind, name, addend })
    }
}
