//! Memory of an allocator that the host's process has: what is taken from it, for which stream, and when it goes back. The device is a
//! mock in host memory; arithmetic is not tested.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use gpu_runtime::{Compiled, DeviceMemory, GpuError, Mode, Settings};
use plugin_abi::{FFX_ERR_OUT_OF_MEMORY, FFX_OK, FfxError, FfxHost, FfxStr, Head, write_error};
use plugin_sdk::{DType, DeviceId, Host, OwnedTensor, Stream, TensorView};

use crate::common::{HERE, Mock, TWICE};

const OWN: usize = 5;
const CALLERS: usize = 7;

/// An allocator that notes its calls among those of the driver.
struct Lender {
    order: Arc<Mutex<Vec<String>>>,
    live: Mutex<HashMap<usize, (Vec<u128>, usize)>>,
    /// The most bytes of one allocation.
    most: AtomicU64,
}

unsafe extern "C" fn allocate(
    ctx: *mut c_void,
    _device: DeviceId,
    bytes: u64,
    stream: *mut c_void,
    out: *mut *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the context is the lender that the test leaked.
    let lender = unsafe { &*ctx.cast::<Lender>() };
    lender.order.lock().unwrap().push(format!("lend {bytes} for {}", stream.addr()));
    if bytes > lender.most.load(SeqCst) {
        // SAFETY: the plugin lends an error struct.
        unsafe { write_error(error, FFX_ERR_OUT_OF_MEMORY, "", "the lender has no more") };
        return FFX_ERR_OUT_OF_MEMORY;
    }
    let mut memory = vec![0u128; bytes.div_ceil(16) as usize];
    let address = memory.as_mut_ptr();
    lender.live.lock().unwrap().insert(address.addr(), (memory, stream.addr()));
    // SAFETY: the plugin lends a place for the address.
    unsafe { out.write(address.cast()) };
    FFX_OK
}

unsafe extern "C" fn free(ctx: *mut c_void, _device: DeviceId, address: *mut c_void, stream: *mut c_void) {
    // SAFETY: the context is the lender that the test leaked.
    let lender = unsafe { &*ctx.cast::<Lender>() };
    lender.order.lock().unwrap().push(format!("back from {}", stream.addr()));
    let (_memory, of) = lender.live.lock().unwrap().remove(&address.addr()).unwrap();
    assert_eq!(of, stream.addr(), "it goes back in the order of the stream for which it was lent");
}

fn stream(number: usize) -> Stream {
    Stream(std::ptr::without_provenance_mut(number))
}

/// A program over memory of a lender.
fn lent(mode: Mode) -> (Compiled<Mock>, &'static Lender) {
    let mut driver = Mock::new(HERE);
    driver.stream = stream(OWN);
    let lender =
        Lender { order: Arc::clone(&driver.order), live: Mutex::default(), most: AtomicU64::new(u64::MAX) };
    let lender: &'static Lender = Box::leak(Box::new(lender));
    let table = FfxHost {
        head: Head::of::<FfxHost>(),
        ctx: std::ptr::from_ref(lender).cast_mut().cast(),
        version: FfxStr::new("a test"),
        log: None,
        allocate_memory: Some(allocate),
        free_memory: Some(free),
    };
    // SAFETY: the slots are the functions above, and the lender is never freed.
    let memory = DeviceMemory::of_host(Arc::new(driver), unsafe { Host::of_table(&table) });
    let settings = Settings { mode, ..Settings::default() };
    (Compiled::with(&memory, TWICE.parse().unwrap(), settings).unwrap(), lender)
}

fn call(code: &Compiled<Mock>, x: &[u128]) -> Result<OwnedTensor, GpuError> {
    // SAFETY: the words are as many floats.
    let floats = unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<f32>(), 1000) };
    let view = TensorView::from_slice(floats, DType::F32, &[1000], &[1]).unwrap();
    code.execute_on(stream(CALLERS), &[view]).map(|mut all| all.remove(0))
}

fn expect_twos(y: &mut OwnedTensor) {
    // SAFETY: the mock's memory is host memory, and the tensor has this many elements.
    let got = unsafe { std::slice::from_raw_parts(y.as_mut_ptr().cast::<f32>(), 1000) };
    assert!(got.iter().all(|v| *v == 2.0), "{:?}", &got[..4]);
}

#[test]
fn an_arena_is_lent_for_a_call_in_the_order_of_its_stream() {
    let (code, lender) = lent(Mode::Default);
    let x = vec![0u128; 250];
    for _ in 0..3 {
        lender.order.lock().unwrap().clear();
        expect_twos(&mut call(&code, &x).unwrap());
        let order: Vec<String> = lender.order.lock().unwrap().clone();
        let wanted = [
            // The stream is waited for behind the allocations, whose memory it may have used until then.
            "lend 4032 for 7".to_owned(),
            "after 7".to_owned(),
            // The result, which outlives the call and is read on that stream.
            "lend 4000 for 7".to_owned(),
            "after 7".to_owned(),
            "before 7".to_owned(),
            "back from 7".to_owned(),
            "back from 7".to_owned(),
        ];
        assert_eq!(order, wanted);
    }
    drop(code);
    assert!(lender.live.lock().unwrap().is_empty(), "all of it went back");
}

#[test]
fn memory_of_the_own_stream_goes_back_behind_its_readers() {
    let (code, lender) = lent(Mode::ReduceOverhead);
    let x = vec![0u128; 250];
    (0..4).for_each(|_| expect_twos(&mut call(&code, &x).unwrap()));
    lender.order.lock().unwrap().clear();
    drop(code);
    let order = lender.order.lock().unwrap().clone();
    let back: Vec<usize> = (0..order.len()).filter(|n| order[*n] == "back from 5").collect();
    assert!(!back.is_empty(), "{order:?}");
    assert!(back.iter().all(|n| *n > 0 && order[n - 1] == "after 7"), "{order:?}");
}

#[test]
fn the_arena_of_recordings_stays() {
    let (code, lender) = lent(Mode::ReduceOverhead);
    let x = vec![0u128; 250];
    (0..4).for_each(|_| expect_twos(&mut call(&code, &x).unwrap()));
    lender.order.lock().unwrap().clear();
    expect_twos(&mut call(&code, &x).unwrap());
    assert_eq!(*lender.order.lock().unwrap(), ["after 7", "before 7"], "nothing is lent in the steady state");
    assert!(lender.live.lock().unwrap().values().all(|(_, of)| *of == OWN), "recordings run on any stream");
    drop(code);
    assert!(lender.live.lock().unwrap().is_empty(), "all of it went back");
}

#[test]
fn what_the_allocator_says_is_the_error() {
    let (code, lender) = lent(Mode::Default);
    let x = vec![0u128; 250];
    lender.most.store(2000, SeqCst);
    let said = call(&code, &x).map(|_| ()).unwrap_err();
    // The lender gets some back, and the same code works.
    lender.most.store(u64::MAX, SeqCst);
    expect_twos(&mut call(&code, &x).unwrap());
    assert!(matches!(said, GpuError::HostOutOfMemory { .. }), "{said:?}");
    assert!(said.to_string().contains("the lender has no more"), "{said}");
    drop(code);
    assert!(lender.live.lock().unwrap().is_empty(), "all of it went back");
}
