//! A compiled program of a plugin as a safe handle: binds constants, runs, and is destroyed when dropped.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use plugin_abi::{FfxExecutable, FfxExecutableInfo, FfxStr, Head};
use smallvec::SmallVec;
use tensor::Tensor;

use crate::HostError;
use crate::backend::Inner;
use crate::handshake::call;
use crate::memory::DeviceStream;
use crate::program::ProgramInterface;
use crate::tensors::{Arg, Lend, Managed, Value, lend_all};

/// A compiled program. `execute` may run on many threads at once.
pub struct LoadedExecutable {
    raw: NonNull<FfxExecutable>,
    plugin: Arc<Inner>,
    inputs: usize,
    outputs: usize,
    constants: usize,
    /// The inputs that a call writes, and the ranges of constants.
    program_interface: ProgramInterface,
    /// The bound constants: the plugin reads this memory until the executable is destroyed, so it is dropped last.
    bound: Vec<Value>,
    /// The groups of its collectives, which the plugin uses until the executable is destroyed.
    pub(crate) groups: Vec<crate::Communicator>,
    /// How many constants the last binding had, those included that were released.
    bound_count: usize,
}

// SAFETY: the ABI requires that executables may be used from any thread.
unsafe impl Send for LoadedExecutable {}
// SAFETY: the ABI allows concurrent calls; `bind_constants` and destruction are exclusive by `&mut self` and `drop`.
unsafe impl Sync for LoadedExecutable {}

impl std::fmt::Debug for LoadedExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedExecutable")
            .field("backend", &self.plugin.described.name)
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .field("constants", &self.constants)
            .finish_non_exhaustive()
    }
}

impl Drop for LoadedExecutable {
    fn drop(&mut self) {
        let slots = &self.plugin.slots;
        // SAFETY: an executable of this plugin, not destroyed before, and no call on it runs while it is dropped.
        unsafe { (slots.executable_destroy)(slots.ctx, self.raw.as_ptr()) }
    }
}

impl LoadedExecutable {
    /// Takes ownership of the result of `compile` and queries its counts. `program_interface` states which inputs the
    /// program writes, and the ranges of its constants.
    ///
    /// # Safety
    /// `raw` is null or an executable of `plugin` that the caller owns, which writes no other inputs.
    pub(crate) unsafe fn adopt(
        plugin: Arc<Inner>,
        raw: *mut FfxExecutable,
        mut program_interface: ProgramInterface,
    ) -> Result<Self, HostError> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(HostError::handshake(
                &plugin.described.name,
                "compile succeeded without an executable",
            ));
        };
        // Built first: from here on the executable is destroyed on every return.
        let mut this = Self {
            raw,
            plugin,
            inputs: 0,
            outputs: 0,
            constants: 0,
            program_interface: ProgramInterface::default(),
            bound: Vec::new(),
            groups: Vec::new(),
            bound_count: 0,
        };
        let head = Head::of::<FfxExecutableInfo>();
        let mut info = FfxExecutableInfo { head, n_inputs: 0, n_outputs: 0, n_constants: 0 };
        let slots = this.plugin.slots;
        call(this.backend(), "executable_info", |error| {
            // SAFETY: the executable lives, the place and the error struct live through the call.
            unsafe { (slots.executable_info)(slots.ctx, raw.as_ptr(), &mut info, error) }
        })?;
        /// More outputs than that are a plugin's bug, not a program.
        const MAX_OUTPUTS: usize = 1 << 20;
        if info.n_outputs > MAX_OUTPUTS {
            let reason = format!("an executable claims {} outputs", info.n_outputs);
            return Err(HostError::handshake(this.backend(), reason));
        }
        (this.inputs, this.outputs, this.constants) = (info.n_inputs, info.n_outputs, info.n_constants);
        program_interface.written.truncate(info.n_inputs);
        this.program_interface = program_interface;
        Ok(this)
    }

    pub(crate) fn plugin(&self) -> &Inner {
        &self.plugin
    }
    pub(crate) fn raw(&self) -> *const FfxExecutable {
        self.raw.as_ptr()
    }

    fn backend(&self) -> &str {
        &self.plugin.described.name
    }

    /// Number of inputs that [`execute`](Self::execute) takes.
    pub fn num_inputs(&self) -> usize {
        self.inputs
    }
    /// Number of outputs that [`execute`](Self::execute) returns.
    pub fn num_outputs(&self) -> usize {
        self.outputs
    }
    /// Number of constants to bind before the first [`execute`](Self::execute).
    pub fn num_constants(&self) -> usize {
        self.constants
    }

    /// For each input whether a call writes it in place: such a program is run by [`execute_args`](Self::execute_args).
    pub fn written_inputs(&self) -> &[bool] {
        &self.program_interface.written
    }

    /// The facts about a program that a host with only the compiled code needs.
    pub(crate) fn program_interface(&self) -> &ProgramInterface {
        &self.program_interface
    }

    /// Whether the elements of constants are in the ranges that the program relies on: indices are checked here once, not
    /// in every call. Constants on a device are fetched.
    fn check_ranges(&self, constants: &[(&str, &Value)]) -> Result<(), HostError> {
        for claim in &self.program_interface.ranges {
            let given = constants.iter().find(|(name, _)| *name == claim.name);
            let (low, high) = claim.range;
            let outside = match given {
                Some((_, Value::Host(t))) => t.first_outside(low, high),
                Some((_, Value::Device(t))) => self.plugin.to_host(t)?.first_outside(low, high),
                // The plugin reports what is missing.
                None => None,
            };
            if let Some(value) = outside {
                return Err(HostError::ConstantRange { message: claim.message(value) });
            }
        }
        Ok(())
    }

    /// Binds all constants by name, in place of every earlier binding. The tensors' memory is shared, not copied, and
    /// kept until the executable is dropped or bound again, or the plugin says that it is not read any more. After an error nothing is bound.
    ///
    /// # Errors
    /// An element of a constant that is not a valid index for the program's operators, or the plugin's error.
    pub fn bind_constants(&mut self, constants: &[(&str, &Tensor)]) -> Result<(), HostError> {
        let values: Vec<(&str, Value)> =
            constants.iter().map(|&(name, t)| (name, Value::Host(t.clone()))).collect();
        self.bind_values(&values.iter().map(|(name, v)| (*name, v)).collect::<Vec<_>>())
    }

    /// As [`bind_constants`](Self::bind_constants), for tensors on any device.
    pub fn bind_values(&mut self, constants: &[(&str, &Value)]) -> Result<(), HostError> {
        let Some(bind) = self.plugin.slots.bind_constants else {
            if constants.is_empty() {
                return Ok(());
            }
            return Err(HostError::NotOffered { backend: self.backend().to_owned(), slot: "bind_constants" });
        };
        self.check_ranges(constants)?;
        let names: Vec<_> = constants.iter().map(|(name, _)| FfxStr::new(name)).collect();
        let tensors: Vec<Value> = constants.iter().map(|&(_, t)| t.clone()).collect();
        let (slots, raw) = (self.plugin.slots, self.raw.as_ptr());
        let bound = lend_all(&tensors, |lent| {
            call(self.backend(), "bind_constants", |error| {
                // SAFETY: names and tensor structs live through the call; the memory behind the tensors is kept below, or,
                // where the call fails, is no longer used by the plugin.
                unsafe { bind(slots.ctx, raw, names.as_ptr(), lent.as_ptr(), lent.len(), error) }
            })
        });
        let bound = bound.map_err(|reason| HostError::argument(self.backend(), reason))?;
        // The old tensors are dropped only now: until the call returned the plugin could read them.
        self.bound = if bound.is_ok() { tensors } else { Vec::new() };
        self.bound_count = self.bound.len();
        bound?;
        self.release_constants()
    }

    /// Drops the constants that the plugin does not read any more.
    fn release_constants(&mut self) -> Result<(), HostError> {
        let Some(release) = self.plugin.slots.memory.and_then(|memory| memory.release_constants) else {
            return Ok(());
        };
        let mut released = vec![0u8; self.bound.len()];
        let (slots, raw) = (self.plugin.slots, self.raw.as_ptr());
        call(self.backend(), "release_constants", |error| {
            // SAFETY: the plugin's own slot; the bytes are as many as were bound and live through the call.
            unsafe { release(slots.ctx, raw, released.as_mut_ptr(), released.len(), error) }
        })?;
        let mut released = released.into_iter();
        self.bound.retain(|_| released.next() != Some(1));
        Ok(())
    }

    /// Runs the program on host tensors. Outputs are the plugin's memory, without a copy, freed by the plugin when the last
    /// view of each is dropped; those on a device are copied to the host.
    ///
    /// # Errors
    /// A wrong number of inputs, missing constants, a program that writes inputs, the plugin's error, or malformed
    /// outputs.
    pub fn execute(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, HostError> {
        self.reads_only()?;
        let outputs = self.run(inputs, std::ptr::null_mut())?;
        outputs.into_iter().map(|value| self.to_host(value)).collect()
    }

    /// Runs the program on tensors on any device; outputs stay where the plugin left them.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute).
    pub fn execute_values(&self, inputs: &[&Value]) -> Result<Vec<Value>, HostError> {
        self.reads_only()?;
        self.run(inputs, std::ptr::null_mut())
    }

    /// As [`execute_values`](Self::execute_values), for programs that write inputs in place: those inputs are
    /// [`Arg::Write`], each the one handle of its memory, and have their new values when the call returns. After an error
    /// that the plugin reports their elements may be old or new.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute); an input that the program writes and that may not be written.
    pub fn execute_args(&self, inputs: &mut [Arg<'_>]) -> Result<Vec<Value>, HostError> {
        self.check_written(inputs)?;
        self.run(inputs, std::ptr::null_mut())
    }

    /// As [`execute_args`](Self::execute_args) on a stream of the device's driver that its owner made, null for the default
    /// one. May return before the outputs are computed.
    ///
    /// # Safety
    /// The stream is null or a live stream of the driver that the backend uses. The memory of inputs and outputs is neither
    /// freed nor used by other streams before the stream's work is done.
    ///
    /// # Errors
    /// As for [`execute_args`](Self::execute_args).
    pub unsafe fn execute_args_on(
        &self,
        inputs: &mut [Arg<'_>],
        stream: *mut c_void,
    ) -> Result<Vec<Value>, HostError> {
        self.check_written(inputs)?;
        self.run(inputs, stream)
    }

    /// Fails where an input that the program writes may not be written.
    fn check_written(&self, inputs: &mut [Arg<'_>]) -> Result<(), HostError> {
        let mut pairs = inputs.iter_mut().zip(&self.program_interface.written);
        match pairs.position(|(input, written)| *written && !input.is_writable()) {
            None => Ok(()),
            Some(n) => {
                let what =
                    "is written by the program: give it by `Arg::Write`, as the one handle of its memory";
                Err(HostError::argument(self.backend(), format!("input {n} {what}")))
            }
        }
    }

    /// Fails where a call would write inputs.
    fn reads_only(&self) -> Result<(), HostError> {
        match self.program_interface.written.iter().position(|w| *w) {
            None => Ok(()),
            Some(n) => Err(HostError::argument(
                self.backend(),
                format!("the program writes input {n} in place: run it by `execute_args`"),
            )),
        }
    }

    /// As [`execute_values`](Self::execute_values) on a stream: may return before the outputs are computed. Code that reads
    /// them other than by calls on the same stream must synchronize it first. The inputs are kept until then.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute); a stream of another plugin.
    pub fn execute_on(&self, inputs: &[&Value], stream: &DeviceStream) -> Result<Vec<Value>, HostError> {
        self.reads_only()?;
        if !stream.belongs_to(&self.plugin) {
            return Err(HostError::argument(self.backend(), "the stream is not one of this backend's"));
        }
        // Kept before the call: work that was started reads them even if the call fails.
        stream.keep(inputs.iter().map(|&v| v.clone()));
        self.run(inputs, stream.as_raw())
    }

    /// The value on the host: itself, or a copy.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn to_host(&self, value: Value) -> Result<Tensor, HostError> {
        match value {
            Value::Host(tensor) => Ok(tensor),
            Value::Device(tensor) => self.plugin.to_host(&tensor),
        }
    }

    fn run<T: Lend>(&self, inputs: &[T], stream: *mut c_void) -> Result<Vec<Value>, HostError> {
        self.check_counts(inputs.len())?;
        let mut raw: SmallVec<[_; 16]> = SmallVec::from_elem(std::ptr::null_mut(), self.outputs);
        let slots = &self.plugin.slots;
        let done = lend_all(inputs, |inputs| {
            call(self.backend(), "execute", |error| {
                let (exe, outputs) = (self.raw.as_ptr(), raw.as_mut_ptr());
                let (n, inputs) = (inputs.len(), inputs.as_ptr());
                // SAFETY: inputs, places for outputs and the error struct live through the call; the stream is the default
                // or a live one of this plugin.
                unsafe { (slots.execute)(slots.ctx, exe, inputs, n, outputs, self.outputs, stream, error) }
            })
        });
        done.map_err(|reason| HostError::argument(self.backend(), reason))??;
        // All of them become owned first: an error in one must free the others.
        // SAFETY: a successful `execute` hands over every tensor that it filled in.
        let owned: SmallVec<[_; 16]> = raw.into_iter().map(|raw| unsafe { Managed::take(raw) }).collect();
        let adopt = |(i, managed): (usize, Option<Managed>)| {
            let managed = managed.ok_or_else(|| "it was left null".to_owned());
            managed
                .and_then(Managed::into_value)
                .map_err(|r| HostError::handshake(self.backend(), format!("output {i} is malformed: {r}")))
        };
        owned.into_iter().enumerate().map(adopt).collect()
    }

    /// Fails where a call with this many inputs cannot be made.
    fn check_counts(&self, given: usize) -> Result<(), HostError> {
        if given != self.inputs {
            let reason = format!("the program takes {} inputs, {given} were given", self.inputs);
            return Err(HostError::argument(self.backend(), reason));
        }
        if self.bound_count < self.constants {
            let (bound, wanted) = (self.bound_count, self.constants);
            let reason = format!("{bound} of {wanted} constants are bound; call bind_constants first");
            return Err(HostError::argument(self.backend(), reason));
        }
        Ok(())
    }
}
