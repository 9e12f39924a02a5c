//! Tensors that cross to other programs and back, and modes around calls: mixed precision, inference.

use ferroflux::eager::{autocast, autocast_dtype};
use ferroflux::foreign::dlpack::{DL_CPU, DLManagedTensorVersioned};
use ferroflux::nn::Linear;
use ferroflux::prelude::*;

#[test]
fn arrays_of_numpy_are_written_and_read() {
    let path = std::env::temp_dir().join(format!("ferroflux-{}.npy", std::process::id()));
    let x = Tensor::arange(6).reshape(&[2, 3]);
    (x.to(DType::F64) * 0.5).t().save_npy(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("'<f8', 'fortran_order': False, 'shape': (3, 2)"));
    let read = Tensor::load_npy(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read.to_vec::<f64>().unwrap(), [0.0, 1.5, 0.5, 2.0, 1.0, 2.5]);
    let error = Tensor::load_npy(&path).unwrap_err().to_string();
    assert!(error.contains(".npy"), "{error}");
    let error = x.to(DType::BF16).save_npy(&path).unwrap_err().to_string();
    assert!(error.contains("no dtype bf16"), "{error}");
}

#[test]
fn tensors_cross_by_dlpack_without_a_copy() {
    let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let managed = x.to_dlpack().unwrap();
    // SAFETY: the struct was just given.
    let (data, rank, device) = unsafe {
        let dl = &(*managed).dl_tensor;
        (dl.data, dl.ndim, dl.device.device_type)
    };
    assert_eq!((rank, device), (2, DL_CPU));
    // SAFETY: nobody else frees it.
    let back = unsafe { Tensor::from_dlpack(managed) }.unwrap();
    let host = back.to_host().unwrap();
    assert_eq!(host.data_ptr().cast(), data.cast_const());
    assert_eq!((back + &x).to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
}

static FREED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

unsafe extern "C" fn counted(managed: *mut DLManagedTensorVersioned) {
    FREED.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    // SAFETY: the context is what the test put there.
    unsafe {
        let own = (*managed).manager_ctx.cast::<DLManagedTensorVersioned>();
        (*own).deleter.unwrap()(own);
        drop(Box::from_raw(managed));
    }
}

#[test]
fn a_foreign_tensor_is_freed_once_even_where_it_is_refused() {
    let wrapped = |code: Option<u8>| {
        let own = Tensor::ones(&[4]).to_dlpack().unwrap();
        // SAFETY: the struct was just given; the copy borrows its sizes, which live until its deleter has run.
        let mut outer = Box::new(unsafe { std::ptr::read(own) });
        outer.manager_ctx = own.cast();
        outer.deleter = Some(counted);
        if let Some(code) = code {
            outer.dl_tensor.dtype.code = code;
        }
        Box::into_raw(outer)
    };
    let freed = || FREED.load(std::sync::atomic::Ordering::SeqCst);
    // SAFETY: nobody else frees it.
    let tensor = unsafe { Tensor::from_dlpack(wrapped(None)) }.unwrap();
    let clone = tensor.clone();
    drop(tensor);
    assert_eq!(freed(), 0);
    drop(clone);
    assert_eq!(freed(), 1);
    // SAFETY: nobody else frees it.
    let error = unsafe { Tensor::from_dlpack(wrapped(Some(77))) }.unwrap_err().to_string();
    assert!(error.contains("77"), "{error}");
    assert_eq!(freed(), 2);
}

#[test]
fn mixed_precision_is_pytorchs() {
    let (x, layer) = (Tensor::rand(&[4, 8]), Linear::new(8, 8));
    let (y, s, sum) = autocast(DType::BF16, || {
        let y = layer.forward(&x);
        (y.clone(), y.mse_loss(&y), &y + &x)
    });
    assert_eq!((y.dtype(), s.dtype(), sum.dtype()), (DType::BF16, DType::F32, DType::F32));
    assert_eq!(autocast_dtype(), None);
    // In-place operators keep their type, doubles are left alone.
    autocast(DType::BF16, || {
        let total = Tensor::zeros(&[4, 8]);
        no_grad(|| total.add_(&x).map(|_| ())).unwrap();
        assert_eq!(total.dtype(), DType::F32);
        assert_eq!(x.to(DType::F64).matmul(&x.to(DType::F64).t()).dtype(), DType::F64);
    });
    // The gradient has the type of the weight.
    y.to(DType::F32).sum().backward().unwrap();
    assert_eq!(layer.weight.grad().unwrap().dtype(), DType::F32);
    let wanted = y.to(DType::F32).to_vec::<f32>().unwrap();
    let exact = layer.forward(&x).to_vec::<f32>().unwrap();
    assert!(wanted.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 0.05) && wanted != exact);
}

#[test]
fn compiled_functions_take_modes() {
    let layer = std::sync::Arc::new(Linear::new(8, 8));
    let (own, plain) = (layer.clone(), layer.clone());
    let x = Tensor::rand(&[4, 8]);
    let f = compile(move |x: Tensor| own.forward(&x)).autocast(DType::BF16).deterministic(true);
    let f = f.fullgraph(true).build().unwrap();
    assert_eq!(f.call(x.clone()).unwrap().dtype(), DType::BF16);
    // The mode around the call is a condition: the function's own one is not.
    let g = compile(move |x: Tensor| plain.forward(&x)).fullgraph(true).build().unwrap();
    assert_eq!(g.call(x.clone()).unwrap().dtype(), DType::F32);
    assert_eq!(autocast(DType::BF16, || g.call(x.clone()).unwrap().dtype()), DType::BF16);
    assert!(g.recompile_reasons()[0].contains("mixed precision"), "{:?}", g.recompile_reasons());
    assert_eq!(g.call(x.clone()).unwrap().dtype(), DType::F32);
    assert_eq!(g.captures(), 2);
    let own = layer.clone();
    let h = compile(move |x: Tensor| own.forward(&x)).inference(true).build().unwrap();
    let y = h.call(x.clone()).unwrap();
    assert!(!y.requires_grad() && layer.forward(&x).requires_grad());
    no_grad(|| layer.weight.mul_(2.0).map(|_| ())).unwrap();
    let again = h.call(x.clone()).unwrap().to_vec::<f32>().unwrap();
    let wanted = layer.forward(&x).to_vec::<f32>().unwrap();
    assert!(again.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5 * (1.0 + b.abs())));
}
