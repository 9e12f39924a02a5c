//! Graphs for a caller that owns every tensor: lent with any strides, written in place, weights bound again.

use std::ffi::c_void;
use std::ptr::null_mut;

use ferroflux::foreign::dlpack::{
    Access, DL_CPU, DLDataType, DLDevice, DLManagedTensorVersioned, DLTensor, borrowed, given,
};
use ferroflux::foreign::{Callable, Results, size_input};
use ferroflux::{Error, Options, Program, Tensor, Value, Weight};

fn compiled(text: &str) -> Callable {
    let none = |_: &Weight| Ok(None);
    let program = Program::from_graph(text.parse().unwrap(), &none).unwrap();
    program.compile_for_caller(&Options::new(), Results::Returned).unwrap()
}

/// A value over part of `memory`.
fn lent(memory: &mut [f32], offset: usize, sizes: &[i64], strides: &[i64], access: Access) -> Value {
    let dl = DLTensor {
        data: memory[offset..].as_mut_ptr().cast::<c_void>(),
        device: DLDevice { device_type: DL_CPU, device_id: 0 },
        ndim: sizes.len() as i32,
        dtype: DLDataType { code: 2, bits: 32, lanes: 1 },
        shape: sizes.as_ptr().cast_mut(),
        strides: strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    // SAFETY: the memory is a local of the test, which outlives the call, and the sizes stay inside of it.
    unsafe { borrowed(&dl, access, || ()) }.unwrap()
}

fn call(code: &Callable, mut inputs: Vec<Value>) -> Result<Vec<Tensor>, Error> {
    // SAFETY: the default stream; inputs of these tests share no memory.
    let outputs = unsafe { code.call(&mut inputs, &mut [], 0, null_mut()) }?;
    let host = |value| match value {
        Some(Value::Host(tensor)) => tensor,
        other => panic!("no tensor on the host: {other:?}"),
    };
    Ok(outputs.into_iter().map(host).collect())
}

const DOUBLED: &str = r#"fx 1.0
graph "doubled" {
  symbol s0 "n" 0..
  %x: f32[s0, 2]{4, 2} = input "x"
  %two: f32[s0, 2]{2, 1} = aten.mul.Scalar(%x, 2.0)
  %c: f32[s0, 2]{4, 2} = aten.copy_.default(%x, %two, false)
  %y: f32[s0, 2]{2, 1} = aten.add.Scalar(%two, 1.0, 1)
  return %y
}
"#;

#[test]
fn a_mutated_input_is_written_where_it_lies() {
    let code = compiled(DOUBLED);
    assert_eq!(code.written_inputs(), [true]);
    for rows in [1, 3] {
        let mut memory: Vec<f32> = (0..16).map(|n| n as f32).collect();
        let x = lent(&mut memory, 1, &[rows, 2], &[4, 2], Access::Write);
        let y = call(&code, vec![x]).unwrap();
        for (n, value) in memory.iter().enumerate() {
            let (row, column) = (n.wrapping_sub(1) / 4, n.wrapping_sub(1) % 4);
            let written = n >= 1 && row < rows as usize && column % 2 == 0 && column < 4;
            assert_eq!(*value, if written { 2.0 * n as f32 } else { n as f32 }, "element {n}");
        }
        let expected: Vec<f32> =
            (0..rows).flat_map(|r| [0, 2].map(|c| 2.0 * (1 + 4 * r + c) as f32 + 1.0)).collect();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn dense_inputs_are_written_without_a_copy_too() {
    let code = compiled(
        r#"fx 1.0
graph "sum" {
  %x: f32[4] = input "x"
  %y: f32[4] = input "y"
  %s: f32[4] = aten.add.Tensor(%x, %y, 1)
  %c: f32[4] = aten.copy_.default(%x, %s, false)
}
"#,
    );
    let (mut a, mut b) = ([1.0, 2.0, 3.0, 4.0], [10.0; 4]);
    let x = lent(&mut a, 0, &[4], &[1], Access::Write);
    let y = lent(&mut b, 0, &[4], &[1], Access::Read);
    assert!(call(&code, vec![x, y]).unwrap().is_empty());
    assert_eq!(a, [11.0, 12.0, 13.0, 14.0]);
}

#[test]
fn an_input_that_was_lent_for_reading_is_not_written() {
    let code = compiled(DOUBLED);
    let mut memory = [0.0; 16];
    let x = lent(&mut memory, 0, &[1, 2], &[4, 2], Access::Read);
    let error = call(&code, vec![x]).unwrap_err().to_string();
    assert!(error.contains("was not lent for writing"), "{error}");
}

#[test]
fn weights_are_bound_again() {
    let code = compiled(
        r#"fx 1.0
graph "scaled" {
  %x: f32[2] = input "x"
  %w: f32[2] = parameter "w"
  %y: f32[2] = aten.mul.Tensor(%x, %w)
  return %y
}
"#,
    );
    assert_eq!(code.constants().collect::<Vec<_>>(), ["w"]);
    let mut x = [1.0, 2.0];
    let mut given = || vec![lent(&mut x, 0, &[2], &[1], Access::Read)];
    assert!(call(&code, given()).is_err(), "nothing is bound yet");
    for factor in [3.0, 5.0] {
        let w = Tensor::from_vec(vec![factor; 2], &[2]).unwrap();
        code.bind(&[("w", w.into())]).unwrap();
        assert_eq!(call(&code, given()).unwrap()[0].to_vec::<f32>().unwrap(), [factor, 2.0 * factor]);
    }
    assert!(code.bind(&[]).is_err(), "the weight is missing");
}

#[test]
fn a_size_is_an_input_without_memory() {
    let code = compiled(
        r#"fx 1.0
graph "ones" {
  symbol s0 "n" 0..
  %n: u8[s0]{1} = input "n"
  %y: f32[s0] = aten.ones.default([s0], f32, strided, @cpu, none)
  return %y
}
"#,
    );
    for n in [0, 7, 100_000] {
        let y = call(&code, vec![size_input(n).unwrap()]).unwrap();
        assert_eq!(y[0].sizes(), [n]);
        assert!(y[0].iter_f64().all(|v| v == 1.0));
    }
}

#[test]
fn other_sizes_than_the_graphs_are_refused() {
    let code = compiled(DOUBLED);
    let mut memory = [0.0; 16];
    let x = lent(&mut memory, 0, &[2, 3], &[4, 1], Access::Write);
    assert!(matches!(call(&code, vec![x]), Err(Error::Input { .. })));
    assert!(matches!(call(&code, vec![]), Err(Error::InputCount { .. })));
}

#[test]
fn values_are_given_away_and_freed_once() {
    let tensor = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let turned = tensor.transpose(0, 1).unwrap();
    let managed: *mut DLManagedTensorVersioned = given(turned.into());
    // SAFETY: the pointer is a live managed tensor, which this test owns; it is deleted once, after the last use.
    unsafe {
        let dl = &(*managed).dl_tensor;
        assert_eq!(std::slice::from_raw_parts(dl.shape, 2), [3, 2]);
        assert_eq!(std::slice::from_raw_parts(dl.strides, 2), [1, 3]);
        let owned = managed as usize;
        let back = borrowed(dl, Access::Read, move || {
            let managed = owned as *mut DLManagedTensorVersioned;
            ((*managed).deleter.unwrap())(managed);
        });
        let Value::Host(back) = back.unwrap() else { panic!("a host tensor") };
        assert_eq!(back.to_vec::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}

/// One result of its own, a sum that another one reads, a view of the first, and an input as it is.
const SEVERAL: &str = r#"fx 1.0
graph "several" {
  symbol s0 "n" 1..
  %x: f32[s0, 2] = input "x"
  %a: f32[s0, 2] = aten.mul.Scalar(%x, 2.0)
  %sum: f32[2] = aten.sum.dim_IntList(%a, [0], false, none)
  %b: f32[s0, 2] = aten.add.Tensor(%a, %sum, 1)
  %t: f32[2, s0]{1, 2} = aten.t.default(%a)
  return %a
  return %sum
  return %b
  return %t
  return %x
}
"#;

#[test]
fn results_are_written_where_the_caller_wants_them() {
    let none = |_: &Weight| Ok(None);
    let program = Program::from_graph(SEVERAL.parse().unwrap(), &none).unwrap();
    let code = program.compile_for_caller(&Options::new(), Results::Lent).unwrap();
    let places: Vec<usize> = code.lent_results().iter().map(|r| r.place).collect();
    assert!(places.contains(&1) && places.contains(&2), "{places:?}");
    assert!(!code.has_fixed_results());
    for rows in [1usize, 3] {
        let mut memory: Vec<f32> = (0..2 * rows).map(|n| n as f32).collect();
        let sizes = [rows as i64, 2];
        let mut inputs = vec![lent(&mut memory, 0, &sizes, &[2, 1], Access::Read)];
        let layouts = code.result_layouts(&inputs).unwrap();
        let mut own: Vec<Vec<f32>> =
            layouts.iter().map(|l| vec![f32::NAN; l.sizes.iter().product::<i64>() as usize]).collect();
        let mut results: Vec<Value> = (own.iter_mut().zip(&*layouts))
            .map(|(memory, l)| lent(memory, 0, &l.sizes, &l.strides, Access::Write))
            .collect();
        // SAFETY: the default stream; all memory is of this test, and apart.
        let found = unsafe { code.call(&mut inputs, &mut results, 0, null_mut()) }.unwrap();
        drop(results);
        let at = |n: usize| match &found[n] {
            Some(Value::Host(t)) => t.to_vec::<f32>().unwrap(),
            _ => {
                let n = places.iter().position(|p| *p == n).unwrap();
                let (sizes, strides) = (&layouts[n].sizes, &layouts[n].strides);
                let second = if sizes.len() == 2 { sizes[1] } else { 1 };
                let index = |e: i64| match sizes.len() {
                    2 => (e / second) * strides[0] + (e % second) * strides[1],
                    _ => e * strides[0],
                };
                (0..sizes.iter().product()).map(|e| own[n][index(e) as usize]).collect()
            }
        };
        let a: Vec<f32> = memory.iter().map(|x| 2.0 * x).collect();
        let sum: Vec<f32> = (0..2).map(|c| a.iter().skip(c).step_by(2).sum()).collect();
        assert_eq!(at(0), a);
        assert_eq!(at(1), sum);
        assert_eq!(at(2), a.iter().enumerate().map(|(n, x)| x + sum[n % 2]).collect::<Vec<f32>>());
        assert_eq!(at(3), (0..2).flat_map(|c| a.iter().skip(c).step_by(2).copied()).collect::<Vec<f32>>());
        assert_eq!(at(4), memory);
        // SAFETY: the default stream; without memory for its results the call fails before it reads anything.
        let error = unsafe { code.call(&mut inputs, &mut [], 0, null_mut()) }.unwrap_err();
        assert!(error.to_string().contains("result_layouts"), "{error}");
    }
}
