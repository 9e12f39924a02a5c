//! Programs at the limits of loops of wide vectors on the CPU: numbers that instructions do not hold, more sums than there are
//! registers, indices that are checked but not used. The code itself is tested in `backend-cpu`.

use ferroflux::prelude::*;

#[test]
fn numbers_far_apart() {
    let text = r#"fx 1.0
graph "far" {
  %x: i64[64] = input "x"
  %far: i64[64] = aten.arange.start_step(0, 1099511627776, 17179869184)
  %y: i64[64] = aten.add.Tensor(%far, %x)
  return %y
}
"#;
    let program =
        ferroflux::Program::from_graph(text.parse().unwrap(), &std::collections::BTreeMap::new()).unwrap();
    let code = program.compile(&ferroflux::Options::new().backend("cpu")).unwrap();
    let ones = ferroflux::Tensor::from_vec(vec![1_i64; 64], &[64]).unwrap();
    let wanted: Vec<i64> = (0..64).map(|n| (n << 34) + 1).collect();
    assert_eq!(code.call(&[ones]).unwrap()[0].as_slice::<i64>().unwrap(), wanted);
    let times = Tensor::arange(4096) * 1_000_000_i64;
    let x = Tensor::ones(&[4096, 64]).to(DType::F64);
    let sum = (times.to(DType::F64).reshape(&[4096, 1]) * x).sum_dims(&[0], false);
    let wanted = 1e6 * 4095.0 * 2048.0;
    assert!(sum.to_vec::<f64>().unwrap().iter().all(|v| (v - wanted).abs() <= 1e-12 * wanted));
}

#[test]
fn more_sums_than_registers() {
    const ROWS: usize = 8;
    const LONG: usize = 512;
    let data: Vec<i64> = (0..ROWS * LONG).map(|n| (n * n % 37) as i64).collect();
    for many in [16_i64, 31, 40] {
        let count = compile(move |x: Tensor| -> Vec<Tensor> {
            (0..many).map(|k| x.eq(k as f64).to(DType::I64).sum_dims(&[1], false)).collect()
        });
        let count = count.fullgraph(true).build().unwrap();
        let found = count.call(Tensor::from_slice(&data, &[ROWS, LONG])).unwrap();
        for (k, found) in found.iter().enumerate() {
            let rows = data.chunks(LONG);
            let wanted: Vec<i64> =
                rows.map(|row| row.iter().filter(|v| **v == k as i64).count() as i64).collect();
            assert_eq!(found.to_vec::<i64>().unwrap(), wanted, "{k} of {many}");
        }
    }
}

#[test]
fn an_index_that_no_address_needs_is_checked() {
    let wide = Tensor::ones(&[1, 64]).expand(&[5, 64]);
    let sum =
        |ids: &[i64]| wide.index_select(0, &Tensor::from_slice(ids, &[ids.len()])).sum_dims(&[0], false);
    assert_eq!(sum(&[0, 4, 0]).to_vec::<f32>().unwrap(), [3.0; 64]);
    let error = sum(&[0, 99, 0]).to_vec::<f32>().unwrap_err().to_string();
    assert!(error.contains("99"), "{error}");
}
