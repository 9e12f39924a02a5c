//! Runs Cranelift on all functions of a program, in parallel, and keeps the machine code.

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleReloc};
use rayon::prelude::*;

use super::emit::{Emit, Machine};
use super::epilogue::Walk;
use crate::micro::EpilogueBlock;
use crate::vir::VKernel;

/// Generated loop kernel: base pointers, sizes, outer points `begin..end`, axis points a block.
pub type KernelFn = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64, i64);
/// Generated epilogue; the second parameter is an [`EpilogueContext`](super::EpilogueContext).
pub type EpilogueFn = unsafe extern "C" fn(*const EpilogueBlock, *const std::ffi::c_void);

/// Fewer functions than this are compiled on the calling thread.
const PARALLEL: usize = 4;

/// A function to make.
pub enum Job {
    /// A loop kernel: a [`KernelFn`].
    Kernel(VKernel),
    /// An epilogue: an [`EpilogueFn`].
    Epilogue(VKernel, Walk),
}

/// Why machine code could not be made. Always a bug or an unsupported machine, never a property of the model's data.
#[derive(Debug, thiserror::Error)]
pub enum JitError {
    /// Cranelift refused a function.
    #[error("kernel `{kernel}` does not compile: {message}")]
    Function {
        /// The kernel.
        kernel: String,
        /// Cranelift's words.
        message: String,
    },
    /// The module could not be set up, linked or mapped.
    #[error("the code module cannot be made: {0}")]
    Module(String),
}

/// Machine code of a program; freed when dropped.
pub struct Code {
    module: Option<JITModule>,
    addresses: Vec<*const u8>,
    bytes: usize,
}

// SAFETY: after `compile` the module is only kept alive and freed; the addresses are of immutable code.
unsafe impl Send for Code {}
// SAFETY: as above.
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
        // SAFETY: as above (`Job::Epilogue`).
        unsafe { std::mem::transmute::<*const u8, EpilogueFn>(self.addresses[n]) }
    }
    /// Bytes of machine code.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

struct Compiled {
    code: Vec<u8>,
    align: u64,
    relocs: Vec<ModuleReloc>,
}

/// Compiles all jobs.
pub fn compile(jobs: &[Job]) -> Result<Code, JitError> {
    let mut module = JITModule::new(builder()?);
    let made: Vec<Result<Compiled, JitError>> = if jobs.len() < PARALLEL {
        jobs.iter().enumerate().map(|(n, j)| function(module.isa(), n, j)).collect()
    } else {
        let isa = module.isa();
        jobs.par_iter().enumerate().map(|(n, j)| function(isa, n, j)).collect()
    };
    let refused = |e: cranelift_module::ModuleError| JitError::Module(e.to_string());
    let mut ids = Vec::new();
    let mut bytes = 0;
    for (n, (made, job)) in made.into_iter().zip(jobs).enumerate() {
        let made = made?;
        let sig = signature(module.isa(), job);
        let id = module.declare_function(&format!("k{n}"), Linkage::Local, &sig).map_err(refused)?;
        module.define_function_bytes(id, made.align, &made.code, &made.relocs).map_err(refused)?;
        bytes += made.code.len();
        ids.push(id);
    }
    module.finalize_definitions().map_err(refused)?;
    let addresses = ids.iter().map(|id| module.get_finalized_function(*id)).collect();
    Ok(Code { module: Some(module), addresses, bytes })
}

fn builder() -> Result<JITBuilder, JitError> {
    let debug = if cfg!(debug_assertions) { "true" } else { "false" };
    let flags = [("opt_level", "speed"), ("enable_verifier", debug), ("regalloc_checker", "false")];
    JITBuilder::with_flags(&flags, cranelift_module::default_libcall_names())
        .map_err(|e| JitError::Module(e.to_string()))
}

fn signature(isa: &dyn TargetIsa, job: &Job) -> Signature {
    let mut sig = Signature::new(isa.default_call_conv());
    let params = match job {
        Job::Kernel(_) => 5,
        Job::Epilogue(..) => 2,
    };
    sig.params = vec![AbiParam::new(isa.pointer_type()); params];
    sig
}

/// Whether Cranelift may use fused multiply-add instructions; without them `fma` is a library call.
fn has_fma(isa: &dyn TargetIsa) -> bool {
    cfg!(target_arch = "aarch64")
        || isa.isa_flags().iter().any(|f| f.name == "has_fma" && f.as_bool() == Some(true))
}

fn function(isa: &dyn TargetIsa, number: usize, job: &Job) -> Result<Compiled, JitError> {
    let machine = Machine { fma: has_fma(isa), pointer: isa.pointer_type(), conv: isa.default_call_conv() };
    let mut context = Context::new();
    let dump = tracing::enabled!(target: "kernel", tracing::Level::TRACE);
    context.set_disasm(dump);
    context.func = Function::with_name_signature(UserFuncName::user(0, number as u32), signature(isa, job));
    let mut frontend = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut context.func, &mut frontend);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let params = b.block_params(entry).to_vec();
    let (name, b) = match job {
        Job::Kernel(k) => (&k.name, Emit::new(b, &machine, k).kernel_function(&params)),
        Job::Epilogue(k, walk) => (&k.name, Emit::new(b, &machine, k).epilogue_function(&params, walk)),
    };
    b.finalize(isa.frontend_config());
    let refused = |message: String| JitError::Function { kernel: name.clone(), message };
    if let Err(e) = context.compile(isa, &mut ControlPlane::default()) {
        return Err(refused(cranelift_codegen::print_errors::pretty_error(e.func, e.inner)));
    }
    let compiled = context.compiled_code().ok_or_else(|| refused("no code".into()))?;
    if dump {
        let code = compiled.vcode.as_deref().unwrap_or_default();
        tracing::trace!(target: "kernel", kernel = name.as_str(), "\n{code}");
    }
    let align = u64::from(compiled.buffer.alignment)
        .max(u64::from(isa.function_alignment().minimum))
        .max(isa.symbol_alignment());
    let id = FuncId::from_u32(number as u32);
    let relocs = compiled.buffer.relocs();
    let relocs = relocs.iter().map(|r| ModuleReloc::from_mach_reloc(r, &context.func, id)).collect();
    Ok(Compiled { code: compiled.code_buffer().to_vec(), align, relocs })
}
