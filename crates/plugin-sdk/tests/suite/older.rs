//! Plugins that read older programs than this host writes: they get the older form, or the host says what has none.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::sync::Mutex;

use plugin_host::{BuiltinPlugin, CompileArgs, HostError, KERNEL_IR, Registry, SearchPath, inventory};
use plugin_sdk::kernel_ir::{Program, drop_checks};
use plugin_sdk::{
    Backend, CompileRequest, Constants, Description, DeviceInfo, Executable, Host, IrVersion, OwnedTensor,
    PluginError, Refusal, Signature, Stream, TensorView,
};

/// Reads kernel-ir up to a minor, and keeps the versions and bytes that it was given.
struct Reads<const MINOR: u16>;

static GIVEN: Mutex<Vec<(IrVersion, Vec<u8>)>> = Mutex::new(Vec::new());

impl<const MINOR: u16> Backend for Reads<MINOR> {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(Reads)
    }
    fn describe(&self) -> Description {
        // The other entries must not be taken for a newer kernel-ir.
        Description::new(format!("reads-{MINOR}"), "1")
            .reads(IrVersion::kernel_ir(2, 9))
            .reads(IrVersion::kernel_ir(1, 0))
            .reads(IrVersion::fx_ir(1, 9))
            .reads(IrVersion::kernel_ir(1, MINOR))
    }
    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo::cpu("host")]
    }
    fn query_support(&self, request: &CompileRequest<'_>) -> Result<Vec<Refusal>, PluginError> {
        request.kernels().map(|_| Vec::new())
    }
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        GIVEN.lock().unwrap().push((request.program.ir, request.program.bytes.to_vec()));
        Ok(Box::new(Nothing))
    }
}

struct Nothing;

impl Executable for Nothing {
    fn signature(&self) -> Signature {
        Signature::default()
    }
    fn execute(
        &self,
        _: &[TensorView<'_>],
        _: &Constants<'_>,
        _: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        Ok(Vec::new())
    }
}

inventory::submit! { BuiltinPlugin { name: "reads-0", entry: plugin_sdk::entry::<Reads<0>> } }
inventory::submit! { BuiltinPlugin { name: "reads-2", entry: plugin_sdk::entry::<Reads<2>> } }

fn golden(minor: u16) -> Program {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernel-ir/tests/golden");
    Program::from_bytes(&std::fs::read(format!("{folder}/program_1_{minor}.ffxk")).unwrap()).unwrap()
}

#[test]
fn programs_are_written_in_the_newest_form_that_is_read() {
    let registry = Registry::new(&SearchPath::default());
    for (name, newest) in [("reads-0", 0), ("reads-2", 2)] {
        let backend = registry.load(name).unwrap();
        // Of 1.6 a program without checks needs nothing.
        for minor in (0..KERNEL_IR.minor).filter(|minor| *minor != 6) {
            // What was read has checks of its indices, which no plugin of these takes, and from 1.7 on exchanges.
            let mut program = golden(minor);
            assert_eq!(program.needs_minor(), minor.max(6), "1.{minor}");
            drop_checks(&mut program);
            let bytes = program.to_bytes();
            let args = CompileArgs::new(KERNEL_IR, &bytes);
            let compiled = backend.compile(&args);
            // Values that nothing uses go with the checks, and with them some of what came later.
            let needs = program.needs_minor();
            assert!(needs == minor || minor == 1, "1.{minor} needs 1.{needs}");
            if needs <= newest {
                compiled.unwrap();
                assert!(backend.query_support(&args).unwrap().is_empty());
                let (ir, given) = GIVEN.lock().unwrap().pop().unwrap();
                assert_eq!(ir, IrVersion::kernel_ir(1, newest), "{name}: a program of 1.{minor}");
                let mut read = Program::from_bytes(&given).unwrap();
                drop_checks(&mut read);
                assert_eq!((given[6], read), (newest as u8, program));
                continue;
            }
            // What is newer is named, and the plugin does not see it.
            let error = compiled.unwrap_err();
            let HostError::NoOlderForm { source, .. } = &error else { panic!("{error}") };
            assert!(source.since > newest && source.wanted == newest && !source.place.is_empty(), "{error}");
            assert!(error.to_string().contains("update the plugin"), "{error}");
            assert!(GIVEN.lock().unwrap().is_empty());
        }
        let damaged = backend.compile(&CompileArgs::new(KERNEL_IR, b"FFXK")).unwrap_err();
        assert!(matches!(damaged, HostError::Argument { .. }), "{damaged}");
    }
}
