//! Everything that a plugin makes is destroyed exactly once. A program of its own, because the fixture counts what is alive
//! in its whole process, where other tests would make and destroy at the same time.
#![allow(clippy::unwrap_used)]

#[path = "suite/common/mod.rs"]
mod common;

use common::{compile, with_each_backend};
use plugin_host::LoadedBackend;

/// `[outputs made, outputs dropped, executables alive]`; the executable that asks is not counted.
fn counts(backend: &LoadedBackend) -> [i64; 3] {
    let out = compile(backend, "counts").execute(&[]).unwrap();
    let [made, dropped, alive] = out[0].to_vec::<i64>().unwrap()[..] else { panic!("three counts") };
    [made, dropped, alive - 1]
}

#[test]
fn outputs_and_executables_die_once() {
    with_each_backend(|backend| {
        assert_eq!(counts(backend), [0, 0, 0]);
        let program = compile(backend, "tracked");
        let kept: Vec<_> = (0..10).map(|_| program.execute(&[]).unwrap().remove(0)).collect();
        // Strides of the plugin's choice arrive as they are.
        assert_eq!(kept[0].strides(), [1, 2]);
        assert_eq!(kept[0].to_vec::<f32>().unwrap(), [1., 3., 2., 4.]);
        drop(program);
        assert_eq!(counts(backend), [10, 0, 0], "outputs outlive their executable");

        let views: Vec<_> = kept.iter().map(|t| t.transpose(0, 1).unwrap()).collect();
        drop(kept);
        assert_eq!(counts(backend), [10, 0, 0], "a view keeps the memory");
        let other = std::thread::spawn(move || drop(views));
        other.join().unwrap();
        assert_eq!(counts(backend), [10, 10, 0], "freed by another thread");

        let x = tensor::Tensor::from_slice(&[1f32], &[1]).unwrap();
        assert!(compile(backend, "miscount").execute(&[&x]).is_err());
        assert_eq!(counts(backend), [12, 12, 0], "refused outputs are freed too");
        drop(compile(backend, "panic drop"));
        for _ in 0..100 {
            compile(backend, "scale 1");
        }
        assert_eq!(counts(backend), [12, 12, 0]);
    });
}
