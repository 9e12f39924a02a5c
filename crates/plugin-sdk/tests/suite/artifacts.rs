//! Compiled code as bytes and as text, steps of calls, streams and device memory across the boundary, by the linked table and the loaded library.
#![allow(clippy::unwrap_used)]

use crate::common::{self, args, compile, with_each_backend};
use plugin_host::{DeviceId, HostError, LoadedBackend, Value, dlpack};
use tensor::Tensor;

const PHANTOM: DeviceId = DeviceId { device_type: dlpack::DL_EXT_DEV, device_id: 0 };

fn f32s(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap()
}

fn stale(backend: &LoadedBackend, bytes: &[u8]) -> String {
    let error = backend.load_artifact(bytes, None).unwrap_err();
    assert!(error.is_stale_artifact(), "{error}");
    error.to_string()
}

#[test]
fn an_executable_comes_back_from_its_bytes() {
    with_each_backend(|backend| {
        let gained = backend.compile(&args("scale 2 bias").options(&[("gain", "2.5")])).unwrap();
        let saved = gained.save_artifact().unwrap().unwrap();
        let mut loaded = backend.load_artifact(&saved, None).unwrap();
        assert_eq!((loaded.num_inputs(), loaded.num_outputs(), loaded.num_constants()), (1, 1, 1));
        assert!(loaded.execute(&[&f32s(&[1.])]).is_err(), "constants are not part of it");
        loaded.bind_constants(&[("bias", &Tensor::from_slice(&[1f32], &[]).unwrap())]).unwrap();
        assert_eq!(loaded.execute(&[&f32s(&[1., 2.])]).unwrap()[0].to_vec::<f32>().unwrap(), [6., 11.]);
        let again = loaded.save_artifact().unwrap().unwrap();
        assert_eq!(saved, again, "equal executables have equal artifacts");
    });
}

#[test]
fn foreign_and_damaged_artifacts_are_refused() {
    with_each_backend(|backend| {
        let saved = compile(backend, "scale 2").save_artifact().unwrap().unwrap();
        for end in 0..saved.len() {
            assert!(stale(backend, &saved[..end]).contains("damaged (8)"), "cut at {end}");
        }
        for at in 0..saved.len() {
            let mut changed = saved.clone();
            changed[at] ^= 1;
            stale(backend, &changed);
        }
        // What decides where it loads is in it.
        let compat = backend.artifact_compat(None).unwrap().unwrap();
        assert!(compat.starts_with("fixture 0.3.1 ") && compat.ends_with(" text 1"), "{compat}");
        assert!(saved.windows(compat.len()).any(|w| w == compat.as_bytes()));
    });
}

#[test]
fn who_saves_nothing_says_so() {
    with_each_backend(|backend| {
        assert_eq!(compile(backend, "unsaved").save_artifact().unwrap(), None);
        assert_eq!(backend.artifact_compat(Some(PHANTOM)).unwrap(), None);
        let program = compile(backend, "panic execute string");
        let panicked = program.save_artifact().unwrap_err().to_string();
        assert!(panicked.contains("panic") && panicked.contains("artifact_save"), "{panicked}");
    });
}

#[test]
fn streams_are_made_used_and_waited_for() {
    with_each_backend(|backend| {
        assert!(backend.has_streams());
        let host = backend.device().unwrap();
        let (a, b) = (backend.create_stream(host).unwrap(), backend.create_stream(host).unwrap());
        assert_ne!(a.as_raw(), b.as_raw());
        let program = compile(backend, "stream");
        for stream in [&a, &b] {
            let on = program.execute_on(&[], stream).unwrap().remove(0);
            stream.synchronize().unwrap();
            let number = program.to_host(on).unwrap().to_vec::<i64>().unwrap()[0];
            assert_eq!(number as usize, stream.as_raw().addr());
        }
        backend.synchronize(host).unwrap();
        assert!(matches!(backend.create_stream(PHANTOM), Err(HostError::Plugin { .. })));
    });
    let (one, other) = (common::embedded(), common::dynamic());
    let stream = one.create_stream(one.device().unwrap()).unwrap();
    let foreign = compile(&other, "stream").execute_on(&[], &stream).unwrap_err().to_string();
    assert!(foreign.contains("not one of this backend's"), "{foreign}");
}

#[test]
fn tensors_are_allocated_and_written_on_a_device() {
    with_each_backend(|backend| {
        let x = f32s(&[1., 2., 3.]);
        let there = backend.to_device(&x, PHANTOM).unwrap();
        let Value::Device(other) = backend.allocate_like(&Value::Host(x.clone()), PHANTOM).unwrap() else {
            panic!("a device tensor")
        };
        assert_eq!(backend.to_host(&other).unwrap().to_vec::<f32>().unwrap(), [0.; 3]);
        // SAFETY: nothing else uses the tensor.
        unsafe { backend.copy(&Value::Device(there), &other) }.unwrap();
        assert_eq!(backend.to_host(&other).unwrap().to_vec::<f32>().unwrap(), [1., 2., 3.]);
        let short = Value::Host(f32s(&[7.]));
        // SAFETY: nothing else uses the tensor.
        let wrong = unsafe { backend.copy(&short, &other) }.unwrap_err().to_string();
        assert!(wrong.contains("invalid argument"), "{wrong}");
        let ints = Value::Host(Tensor::from_slice(&[1i64], &[1]).unwrap());
        assert!(backend.allocate_like(&ints, PHANTOM).is_err());
    });
}

#[test]
fn the_texts_of_a_program_are_shown() {
    with_each_backend(|backend| {
        let shown = compile(backend, "scale 2").listings().unwrap().unwrap();
        assert_eq!(shown.len(), 1);
        let expected = ("scale", "words", "scale 2");
        assert_eq!((&*shown[0].step, &*shown[0].language, &*shown[0].text), expected);
        assert_eq!(compile(backend, "nonzero").listings().unwrap(), None);
        let panicked = compile(backend, "panic execute string").listings().unwrap_err().to_string();
        assert!(panicked.contains("panic") && panicked.contains("listings"), "{panicked}");
    });
}

#[test]
fn steps_are_reported_while_someone_observes() {
    static SEEN: std::sync::Mutex<Vec<plugin_host::StepRun>> = std::sync::Mutex::new(Vec::new());
    /// The name of no other test's program.
    const OWN: &str = "scale 2.125";
    fn observer(run: &plugin_host::StepRun) {
        if run.program == OWN {
            SEEN.lock().unwrap().push(run.clone());
            assert!(SEEN.lock().unwrap().len() < 4, "a panic of the observer is not the call's");
        }
    }
    let count = || SEEN.lock().unwrap().len();
    with_each_backend(|backend| {
        SEEN.lock().unwrap().clear();
        let program = compile(backend, OWN);
        let call = || program.execute(&[&f32s(&[1.])]).unwrap();
        call();
        assert_eq!(count(), 0);
        plugin_host::observe_steps(Some(observer));
        call();
        call();
        let seen = SEEN.lock().unwrap().clone();
        assert_eq!((seen.len(), &*seen[0].step), (2, "scale"));
        let micros = std::time::Duration::from_micros;
        assert_eq!((seen[0].ago, seen[0].duration), (micros(30), micros(20)));
        assert_eq!(seen[0].device.device_type, dlpack::DL_CPU);
        call();
        // The observer panics in this call.
        call();
        assert_eq!(count(), 4);
        plugin_host::observe_steps(None);
        call();
        assert_eq!(count(), 4);
    });
    // What is loaded while someone observes reports too.
    plugin_host::observe_steps(Some(observer));
    SEEN.lock().unwrap().clear();
    compile(&common::dynamic(), OWN).execute(&[&f32s(&[1.])]).unwrap();
    plugin_host::observe_steps(None);
    assert_eq!(count(), 1);
}

#[test]
fn both_sides_know_the_effective_minor() {
    with_each_backend(|backend| {
        assert_eq!(backend.abi(), format!("{}.{}", plugin_abi::ABI_MAJOR, plugin_abi::ABI_MINOR));
        assert_eq!(backend.effective_minor(), plugin_abi::ABI_MINOR);
        assert_eq!(backend.info().abi, backend.abi());
        assert!(backend.has_extension(plugin_abi::STREAMS) && !backend.has_extension("no.such.v1"));
    });
}
