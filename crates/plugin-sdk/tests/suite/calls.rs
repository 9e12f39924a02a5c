//! Calls across the boundary: the linked backend and the loaded library must behave alike.
#![allow(clippy::unwrap_used)]

use crate::common::{self, args, compile, with_each_backend};
use plugin_host::{HostError, IrVersion, LoadedBackend, MemoryEstimate};
use tensor::Tensor;

fn f32s(values: &[f32], sizes: &[usize]) -> Tensor {
    Tensor::from_slice(values, sizes).unwrap()
}

fn failure_of(error: HostError) -> plugin_host::PluginFailure {
    error.plugin_failure().unwrap_or_else(|| panic!("not the plugin's: {error}")).clone()
}

#[test]
fn it_describes_itself() {
    with_each_backend(|backend| {
        let info = backend.info();
        assert_eq!((info.name.as_str(), info.version.as_str()), ("fixture", "0.3.1"));
        assert_eq!(info.modes, ["default", "max-autotune"]);
        assert_eq!(info.reads, [IrVersion::fx_ir(1, 2), plugin_host::KERNEL_IR]);
        let options: Vec<_> = info.options.iter().map(|o| (o.name.as_str(), o.default.as_str())).collect();
        assert_eq!(options, [("gain", "1"), ("pace", "slow")]);
        let devices: Vec<_> =
            info.devices.iter().map(|d| (d.name.as_str(), d.unavailable_because.is_some())).collect();
        assert_eq!(devices, [("phantom", true), ("host", false)]);
        assert_eq!(info.devices[1].attribute("cores"), Some("2"));
        assert_eq!(info.unavailable_because, None);
        serde_json::to_string(&info).unwrap();
    });
}

#[test]
fn it_runs_programs_on_strided_tensors() {
    let rows = f32s(&[0., 1., 2., 3., 4., 5.], &[2, 3]);
    let columns = rows.transpose(0, 1).unwrap();
    let part = rows.narrow(1, 1, 2).unwrap();
    let spread = f32s(&[7.], &[1]).expand(&[3]).unwrap();
    let empty = f32s(&[], &[0, 4]);
    with_each_backend(|backend| {
        let double = compile(backend, "scale 2");
        let run = |input: &Tensor| {
            let outputs = double.execute(&[input]).unwrap();
            assert_eq!(outputs[0].sizes(), input.sizes());
            outputs[0].to_vec::<f32>().unwrap()
        };
        assert_eq!(run(&rows), [0., 2., 4., 6., 8., 10.]);
        assert_eq!(run(&columns), [0., 6., 2., 8., 4., 10.]);
        assert_eq!(run(&part), [2., 4., 8., 10.]);
        assert_eq!(run(&spread), [14., 14., 14.]);
        assert!(run(&empty).is_empty());
        assert_eq!(run(&Tensor::scalar(plugin_sdk::DType::F32, 1.5.into()).unwrap()), [3.]);
    });
}

#[test]
fn outputs_may_have_sizes_that_depend_on_the_data() {
    with_each_backend(|backend| {
        let nonzero = compile(backend, "nonzero");
        for (values, wanted) in [(&[0., 3., 0., 4.][..], &[1i64, 3][..]), (&[0., 0.], &[])] {
            let out = nonzero.execute(&[&f32s(values, &[values.len()])]).unwrap();
            assert_eq!(
                (out[0].to_vec::<i64>().unwrap(), out[0].sizes()),
                (wanted.to_vec(), &[wanted.len()][..])
            );
        }
    });
}

#[test]
fn constants_are_lent_and_can_be_replaced() {
    with_each_backend(|backend| {
        let mut program = compile(backend, "scale 10 bias");
        let x = f32s(&[1., 2.], &[2]);
        let unbound = program.execute(&[&x]).unwrap_err().to_string();
        assert!(unbound.contains("bind_constants"), "{unbound}");
        // The caller may drop its handle: the executable keeps the memory.
        for (bias, wanted) in [(0.5f32, [10.5f32, 20.5]), (-1., [9., 19.])] {
            program.bind_constants(&[("bias", &f32s(&[bias], &[]))]).unwrap();
            assert_eq!(program.execute(&[&x]).unwrap()[0].to_vec::<f32>().unwrap(), wanted);
        }
        let wrong = failure_of(program.bind_constants(&[("base", &f32s(&[0.], &[]))]).unwrap_err());
        assert_eq!(wrong.node.as_deref(), Some("bias"));
        assert!(program.execute(&[&x]).is_err(), "a failed binding leaves nothing bound");
    });
}

#[test]
fn options_and_modes_are_checked() {
    let x = f32s(&[1.], &[1]);
    with_each_backend(|backend| {
        let gained = args("scale 2").options(&[("gain", "2.5"), ("pace", "fast")]).mode("max-autotune");
        let out = backend.compile(&gained).unwrap().execute(&[&x]).unwrap();
        assert_eq!(out[0].to_vec::<f32>().unwrap(), [5.]);
        let error = |a: &plugin_host::CompileArgs<'_>| backend.compile(a).unwrap_err().to_string();
        let unknown = error(&args("scale 2").options(&[("gian", "1")]));
        assert!(unknown.contains("did you mean gain") && unknown.contains("pace"), "{unknown}");
        let kind = error(&args("scale 2").options(&[("gain", "loud")]));
        assert!(kind.contains("a number"), "{kind}");
        let choice = error(&args("scale 2").options(&[("pace", "warp")]));
        assert!(choice.contains("slow, fast"), "{choice}");
        let mode = error(&args("scale 2").mode("max-autotun"));
        assert!(mode.contains("did you mean max-autotune"), "{mode}");
    });
}

#[test]
fn programs_of_other_versions_are_refused() {
    with_each_backend(|backend| {
        for ir in [IrVersion::fx_ir(2, 0), IrVersion::fx_ir(1, 3), IrVersion::kernel_ir(900, 0)] {
            let error = backend.compile(&plugin_host::CompileArgs { ir, ..args("scale 2") }).unwrap_err();
            assert!(matches!(error, HostError::ProgramVersion { .. }), "{error}");
            assert!(error.to_string().contains("fx-ir 1.2"), "{error}");
        }
    });
}

#[test]
fn kernel_ir_arrives_decoded() {
    let mut program = kernel_ir::Program { name: "model".into(), ..Default::default() };
    let buf = program.buffers.push(kernel_ir::Buffer {
        name: "x".into(),
        dtype: plugin_sdk::DType::F32,
        sizes: Default::default(),
        strides: Default::default(),
        offset: ir_core::SymExpr::ZERO,
        storage: kernel_ir::Storage::Input(0),
    });
    program.inputs = vec![kernel_ir::InputSpec { name: "x".into(), buf, written: false }; 3];
    let bytes = program.to_bytes();
    with_each_backend(|backend| {
        let compile =
            |bytes: &[u8]| backend.compile(&plugin_host::CompileArgs::new(plugin_host::KERNEL_IR, bytes));
        assert_eq!(compile(&bytes).unwrap().num_inputs(), 3);
        let mut other = bytes.clone();
        other[4] = 77;
        let version = failure_of(compile(&other).unwrap_err());
        assert_eq!(version.kind(), "incompatible", "{version}");
        for end in 0..bytes.len() {
            let damaged = failure_of(compile(&bytes[..end]).unwrap_err());
            assert_eq!(damaged.kind(), "invalid argument", "{damaged}");
        }
    });
}

#[test]
fn support_and_memory_are_told_beforehand() {
    with_each_backend(|backend| {
        assert!(backend.query_support(&args("scale 2")).unwrap().is_empty());
        let refused = backend.query_support(&args("refused")).unwrap();
        assert_eq!((refused[0].node.as_str(), refused.len()), ("op_1", 1));
        let wanted = MemoryEstimate { constant_bytes: 4, peak_bytes: 4096, code_bytes: 0 };
        assert_eq!(backend.memory_estimate(&args("scale 2")).unwrap(), Some(wanted));
        assert_eq!(backend.memory_estimate(&args("nonzero")).unwrap(), None);
    });
}

#[test]
fn panics_become_errors_of_their_call() {
    let payloads =
        [("literal", "a literal payload"), ("string", "a formatted payload"), ("other", "not text")];
    let x = f32s(&[1.], &[1]);
    let check = |error: HostError, call: &str, text: &str| {
        let shown = error.to_string();
        assert!(shown.contains(call) && shown.contains("panic") && shown.contains(text), "{shown}");
    };
    with_each_backend(|backend| {
        for (payload, text) in payloads {
            let in_compile = format!("panic compile {payload}");
            check(backend.compile(&args(&in_compile)).unwrap_err(), "compile", text);
            let program = compile(backend, &format!("panic execute {payload}"));
            for _ in 0..2 {
                check(program.execute(&[&x]).unwrap_err(), "execute", text);
            }
            let mut program = compile(backend, &format!("panic bind {payload}"));
            check(program.bind_constants(&[("bias", &x)]).unwrap_err(), "bind_constants", text);
            let after = program.execute(&[&x]).unwrap_err().to_string();
            assert!(after.contains("earlier bind_constants panicked"), "{after}");
        }
        drop(compile(backend, "panic drop"));
    });
}

#[test]
fn errors_name_the_node() {
    let x = f32s(&[1.], &[1]);
    with_each_backend(|backend| {
        let refused = failure_of(backend.compile(&args("refused")).unwrap_err());
        assert_eq!((refused.node.as_deref(), refused.kind()), (Some("op_1"), "unsupported"));
        let failed = failure_of(compile(backend, "fail").execute(&[&x]).unwrap_err());
        assert_eq!(
            (failed.node.as_deref(), failed.message.as_str()),
            (Some("matmul_3"), "the device is on fire")
        );
        let miscount = failure_of(compile(backend, "miscount").execute(&[&x]).unwrap_err());
        assert!(miscount.message.contains("returned 2 outputs"), "{miscount}");
    });
}

#[test]
fn wrong_inputs_are_refused() {
    with_each_backend(|backend| {
        let program = compile(backend, "scale 2");
        let none = program.execute(&[]).unwrap_err().to_string();
        assert!(none.contains("takes 1 inputs, 0 were given"), "{none}");
        let ints = Tensor::from_slice(&[1i64], &[1]).unwrap();
        let dtype = program.execute(&[&ints]).unwrap_err().to_string();
        assert!(dtype.contains("i64"), "{dtype}");
        let x = f32s(&[1., 2.], &[2]);
        let backwards = x.as_strided(&[2], &[-1], 1).unwrap();
        let negative = program.execute(&[&backwards]).unwrap_err().to_string();
        assert!(negative.contains("negative strides"), "{negative}");
    });
}

#[test]
fn threads_share_one_executable_and_one_backend() {
    fn work(backend: &LoadedBackend, shared: &plugin_host::LoadedExecutable, thread: usize) {
        for round in 0..200 {
            let base = (thread * 1000 + round) as f32;
            let x = f32s(&[base, base + 1.], &[2]);
            assert_eq!(
                shared.execute(&[&x]).unwrap()[0].to_vec::<f32>().unwrap(),
                [3. * base, 3. * (base + 1.)]
            );
            let own = compile(backend, &format!("scale {thread}")).execute(&[&x]).unwrap();
            assert_eq!(own[0].to_vec::<f32>().unwrap()[0], thread as f32 * base);
        }
    }
    with_each_backend(|backend| {
        let shared = compile(backend, "scale 3");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let shared = &shared;
                scope.spawn(move || work(backend, shared, thread));
            }
        });
    });
}

#[test]
fn two_libraries_run_side_by_side() {
    // Copies are different libraries to the loader: each has its own statics and its own instance of the backend.
    let folders = [common::installed(), common::installed()];
    let load = |folder: &tempfile::TempDir| {
        let path = folder.path().join("libfixture.so");
        plugin_host::Registry::new(&plugin_host::SearchPath::default()).load(path.to_str().unwrap()).unwrap()
    };
    let backends = folders.each_ref().map(load);
    let programs = [compile(&backends[0], "scale 2"), compile(&backends[1], "scale 5")];
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let programs = &programs;
            scope.spawn(move || {
                for round in 0..500 {
                    let x = f32s(&[(thread * round) as f32], &[1]);
                    for (program, factor) in programs.iter().zip([2., 5.]) {
                        let out = program.execute(&[&x]).unwrap();
                        assert_eq!(out[0].to_vec::<f32>().unwrap(), [(thread * round) as f32 * factor]);
                    }
                }
            });
        }
    });
    let alive = |backend: &LoadedBackend| {
        compile(backend, "counts").execute(&[]).unwrap()[0].to_vec::<i64>().unwrap()[2]
    };
    assert_eq!(backends.each_ref().map(alive), [2, 2], "its own program and the one that asks");
}
