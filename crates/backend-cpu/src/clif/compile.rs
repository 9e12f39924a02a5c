//! Runs Cranelift on all functions of a program, in parallel, and keeps the machine code; or loads saved machine code.

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleReloc, ModuleRelocTarget};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::emit::{Emit, Emitted, Machine};
use super::epilogue::Walk;
use super::host;
use crate::leaf::Target;
use crate::micro::{EpilogueBlock, Isa, IsaError};
use crate::vir::VKernel;

/// Generated loop kernel: base pointers, sizes, outer points `begin..end`, axis points per block.
pub type KernelFn = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64, i64);
/// Generated epilogue; the second parameter is an [`EpilogueContext`](super::EpilogueContext).
pub type EpilogueFn = unsafe extern "C" fn(*const EpilogueBlock, *const std::ffi::c_void);

/// Leaves begin at multiples of this, and so do functions that have some: leaves align data to it.
const LEAF_ALIGN: u64 = 64;

/// Fewer functions than this are compiled on the calling thread.
const PARALLEL: usize = 4;

/// A function to compile.
pub enum Job {
    /// A loop kernel: a [`KernelFn`].
    Kernel(VKernel),
    /// An epilogue: an [`EpilogueFn`].
    Epilogue(VKernel, Walk),
}

/// Errors of code generation. Always a bug or an unsupported machine, never a property of the model's data.
#[derive(Debug, thiserror::Error)]
pub enum JitError {
    /// Cranelift refused a function.
    #[error("kernel `{kernel}` does not compile: {message}")]
    Function {
        /// The kernel.
        kernel: String,
        /// The message of Cranelift.
        message: String,
    },
    /// The module could not be set up, linked or mapped.
    #[error("the code module cannot be made: {0}")]
    Module(String),
    /// `FERROFLUX_ISA` names none that this processor has.
    #[error(transparent)]
    Isa(#[from] IsaError),
}

/// Machine code of a program; freed when dropped.
pub struct Code {
    module: Option<JITModule>,
    addresses: Vec<*const u8>,
    /// The code before relocation, for saving.
    functions: Vec<MachineFunction>,
}

// SAFETY: after `compile` the module is only kept alive and freed; the addresses are of immutable code.
unsafe impl Send for Code {}
// SAFETY: after `compile` the module is only kept alive and freed; the addresses are of immutable code.
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: the executable that owns this is the only one that calls the functions, and it is being dropped.
            unsafe { module.free_memory() };
        }
    }
}

impl Code {
    /// Function number `n` of the jobs, which must have been a kernel.
    pub fn kernel(&self, n: usize) -> KernelFn {
        // SAFETY: the code at this address was made with exactly this signature (`Job::Kernel`).
        unsafe { std::mem::transmute::<*const u8, KernelFn>(self.addresses[n]) }
    }
    /// Function number `n` of the jobs, which must have been an epilogue.
    pub fn epilogue(&self, n: usize) -> EpilogueFn {
        // SAFETY: the code at this address was made with exactly this signature (`Job::Kernel`) (`Job::Epilogue`).
        unsafe { std::mem::transmute::<*const u8, EpilogueFn>(self.addresses[n]) }
    }
    /// Bytes of machine code.
    pub fn bytes(&self) -> usize {
        self.functions.iter().map(|f| f.code.len()).sum()
    }
    /// The functions as they can be saved.
    pub(crate) fn functions(&self) -> &[MachineFunction] {
        &self.functions
    }
}

/// Machine code of one function before it is placed.
pub(crate) struct MachineFunction {
    /// Whether it is an [`EpilogueFn`], else a [`KernelFn`].
    pub(super) epilogue: bool,
    pub(super) align: u64,
    pub(super) code: Vec<u8>,
    /// External names are in [`host::NAMESPACE`]; offsets into the function itself have no meaningful number.
    pub(super) relocs: Vec<ModuleReloc>,
}

/// Compiles all jobs for this processor, or for the instruction set that `FERROFLUX_ISA` names.
///
/// # Errors
/// A function does not compile, or the variable names no instruction set of this processor.
pub fn compile(jobs: &[Job]) -> Result<Code, JitError> {
    compile_for(jobs, Isa::chosen()?)
}

/// Compiles all jobs for an instruction set.
pub(crate) fn compile_for(jobs: &[Job], set: Isa) -> Result<Code, JitError> {
    let module = JITModule::new(builder()?);
    let isa = module.isa();
    let leaves = Target::of(set);
    let made = if jobs.len() < PARALLEL {
        jobs.iter().enumerate().map(|(n, j)| function(isa, n, j, leaves)).collect::<Result<Vec<_>, _>>()?
    } else {
        jobs.par_iter()
            .enumerate()
            .map(|(n, j)| function(isa, n, j, leaves))
            .collect::<Result<Vec<_>, _>>()?
    };
    link(module, made)
}

/// Places saved code of the same jobs, without compiling them.
///
/// # Errors
/// The code is of other jobs, or cannot be placed.
pub(crate) fn load(functions: Vec<MachineFunction>, jobs: &[Job]) -> Result<Code, JitError> {
    let is_epilogue = |job: &Job| matches!(job, Job::Epilogue(..));
    let same = functions.iter().map(|f| f.epilogue).eq(jobs.iter().map(is_epilogue));
    if !same {
        return Err(JitError::Module("the saved functions are not those of the program".into()));
    }
    link(JITModule::new(builder()?), functions)
}

/// Places functions in a module.
fn link(mut module: JITModule, functions: Vec<MachineFunction>) -> Result<Code, JitError> {
    let refused = |e: cranelift_module::ModuleError| JitError::Module(e.to_string());
    let mut hosts = FxHashMap::default();
    let mut ids = Vec::with_capacity(functions.len());
    for (n, f) in functions.iter().enumerate() {
        let sig = signature(module.isa(), f.epilogue);
        let id = module.declare_function(&format!("k{n}"), Linkage::Local, &sig).map_err(refused)?;
        let relocs: Vec<ModuleReloc> =
            f.relocs.iter().map(|r| placed(&mut module, &mut hosts, r, id)).collect::<Result<_, _>>()?;
        module.define_function_bytes(id, f.align, &f.code, &relocs).map_err(refused)?;
        ids.push(id);
    }
    module.finalize_definitions().map_err(refused)?;
    let addresses = ids.iter().map(|id| module.get_finalized_function(*id)).collect();
    Ok(Code { module: Some(module), addresses, functions })
}

/// A relocation with the names of a module: host symbols are imported when they are first used.
fn placed(
    module: &mut JITModule,
    hosts: &mut FxHashMap<u32, FuncId>,
    reloc: &ModuleReloc,
    own: FuncId,
) -> Result<ModuleReloc, JitError> {
    let name = match reloc.name {
        ModuleRelocTarget::User { namespace: host::NAMESPACE, index } => match hosts.get(&index) {
            Some(id) => (*id).into(),
            None => {
                let sig = Signature::new(module.isa().default_call_conv());
                let id = module
                    .declare_function(&host::symbol(index), Linkage::Import, &sig)
                    .map_err(|e| JitError::Module(e.to_string()))?;
                hosts.insert(index, id);
                id.into()
            }
        },
        ModuleRelocTarget::FunctionOffset(_, offset) => ModuleRelocTarget::FunctionOffset(own, offset),
        ref other => other.clone(),
    };
    Ok(ModuleReloc { offset: reloc.offset, kind: reloc.kind, name, addend: reloc.addend })
}

/// The instruction set of the code, as text: saved code depends on it besides this library.
pub(crate) fn instruction_set() -> Result<String, JitError> {
    let module = JITModule::new(builder()?);
    let isa = module.isa();
    let on = isa.isa_flags().into_iter().filter(|f| f.as_bool() != Some(false));
    let on: Vec<String> = on.map(|f| f.to_string()).collect();
    let text = format!("{} {}", isa.triple(), on.join(" "));
    // SAFETY: the module has no code yet.
    unsafe { module.free_memory() };
    Ok(text)
}

fn builder() -> Result<JITBuilder, JitError> {
    let debug = if cfg!(debug_assertions) { "true" } else { "false" };
    let flags = [("opt_level", "speed"), ("enable_verifier", debug), ("regalloc_checker", "false")];
    let mut builder = JITBuilder::with_flags(&flags, cranelift_module::default_libcall_names())
        .map_err(|e| JitError::Module(e.to_string()))?;
    builder.symbol_lookup_fn(Box::new(host::lookup));
    Ok(builder)
}

fn signature(isa: &dyn TargetIsa, epilogue: bool) -> Signature {
    let mut sig = Signature::new(isa.default_call_conv());
    let params = if epilogue { 2 } else { 5 };
    sig.params = vec![AbiParam::new(isa.pointer_type()); params];
    sig
}

/// Whether Cranelift may use fused multiply-add instructions; without them `fma` is a library call.
fn has_fma(isa: &dyn TargetIsa) -> bool {
    cfg!(target_arch = "aarch64")
        || isa.isa_flags().iter().any(|f| f.name == "has_fma" && f.as_bool() == Some(true))
}

/// The instructions of a function as text, and the name of the instruction set.
pub(crate) fn listing(job: &Job) -> Result<(String, &'static str), JitError> {
    let module = JITModule::new(builder()?);
    let leaves = Target::of(Isa::chosen()?);
    let (_, text) = generated(module.isa(), 0, job, leaves, true)?;
    // SAFETY: the module has no code.
    unsafe { module.free_memory() };
    // Notes for unwinding are no instructions.
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim_start().starts_with("unwind ")).collect();
    Ok((lines.join("\n"), std::env::consts::ARCH))
}

fn function(
    isa: &dyn TargetIsa,
    number: usize,
    job: &Job,
    leaves: Option<Target>,
) -> Result<MachineFunction, JitError> {
    let shown = tracing::enabled!(target: "kernel", tracing::Level::TRACE);
    let (function, text) = generated(isa, number, job, leaves, shown)?;
    if shown {
        let (Job::Kernel(k) | Job::Epilogue(k, _)) = job;
        tracing::trace!(target: "kernel", kernel = k.name.as_str(), "\n{text}");
    }
    Ok(function)
}

/// A function, and its instructions as text where that is wanted.
fn generated(
    isa: &dyn TargetIsa,
    number: usize,
    job: &Job,
    with_leaves: Option<Target>,
    with_text: bool,
) -> Result<(MachineFunction, String), JitError> {
    let conv = isa.default_call_conv();
    let leaves = with_leaves.filter(|_| conv == CallConv::SystemV && has_fma(isa));
    let machine = Machine { fma: has_fma(isa), pointer: isa.pointer_type(), conv, leaves };
    let mut context = Context::new();
    context.set_disasm(with_text);
    let epilogue = matches!(job, Job::Epilogue(..));
    context.func =
        Function::with_name_signature(UserFuncName::user(0, number as u32), signature(isa, epilogue));
    let mut frontend = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut context.func, &mut frontend);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let params = b.block_params(entry).to_vec();
    let (name, Emitted { b, leaves }) = match job {
        Job::Kernel(k) => (&k.name, Emit::new(b, &machine, k).kernel_function(&params)),
        Job::Epilogue(k, walk) => (&k.name, Emit::new(b, &machine, k).epilogue_function(&params, walk)),
    };
    b.finalize(isa.frontend_config());
    let refused = |message: String| JitError::Function { kernel: name.clone(), message };
    if let Err(e) = context.compile(isa, &mut ControlPlane::default()) {
        return Err(refused(cranelift_codegen::print_errors::pretty_error(e.func, e.inner)));
    }
    let compiled = context.compiled_code().ok_or_else(|| refused("no code".into()))?;
    let mut text = compiled.vcode.clone().unwrap_or_default();
    let align = u64::from(compiled.buffer.alignment)
        .max(u64::from(isa.function_alignment().minimum))
        .max(isa.symbol_alignment())
        .max(if leaves.is_empty() { 1 } else { LEAF_ALIGN });
    let id = FuncId::from_u32(number as u32);
    let relocs = compiled.buffer.relocs();
    let relocs = relocs.iter().map(|r| ModuleReloc::from_mach_reloc(r, &context.func, id)).collect();
    let mut function = MachineFunction { epilogue, align, code: compiled.code_buffer().to_vec(), relocs };
    let kind = with_leaves.map_or("", Target::name);
    for (n, leaf) in leaves.iter().enumerate() {
        text.push_str(&format!("\n  ; leaf {n}: {} bytes of {kind} code", leaf.len()));
    }
    attach(&mut function, &leaves);
    Ok((function, text))
}

/// Puts the leaves behind the code of their function and makes its calls lead there.
fn attach(function: &mut MachineFunction, leaves: &[Vec<u8>]) {
    let mut places = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        // Traps between them.
        function.code.resize(function.code.len().next_multiple_of(LEAF_ALIGN as usize), 0xcc);
        places.push(function.code.len() as i64);
        function.code.extend_from_slice(leaf);
    }
    let code = &mut function.code;
    function.relocs.retain(|r| {
        let ModuleRelocTarget::User { namespace: host::LEAVES, index } = r.name else { return true };
        // The call is relative to its own place, so it is right wherever the function is placed.
        let at = r.offset as usize;
        let distance = (places[index as usize] + r.addend - at as i64) as i32;
        code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        false
    });
}
