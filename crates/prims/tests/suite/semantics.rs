//! Operators against values that PyTorch 2.11 computed, one call per line of `semantics.txt`:
//! `target | tensors | arguments | results`. The lines are chosen for what is easy to get wrong: promotion, integers,
//! `NaN`, infinities, signed zeros, empty and 0-dim tensors, defaults.

use crate::support;

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar};
use tensor::{Element, Tensor, with_element};

fn number(text: &str) -> Scalar {
    text.parse().map(Scalar::Int).unwrap_or_else(|_| Scalar::Float(text.parse().expect("a number")))
}

/// `f32[2,3] 1.0 2.0 …`
fn tensor(text: &str) -> Tensor {
    let (head, values) = text.split_once(']').expect("a shape");
    let (dtype, sizes) = head.split_once('[').expect("a dtype");
    let dtype: DType = dtype.trim().parse().expect("a dtype");
    let sizes: Vec<usize> =
        sizes.split(',').filter(|s| !s.is_empty()).map(|s| s.parse().expect("a size")).collect();
    with_element!(dtype, T => {
        let values: Vec<T> = values.split_whitespace().map(|v| T::from_scalar(number(v))).collect();
        Tensor::from_vec(values, &sizes).expect("as many values as the shape says")
    })
}

fn tensors(text: &str) -> Vec<Tensor> {
    text.split(';').filter(|t| !t.trim().is_empty()).map(|t| tensor(t.trim())).collect()
}

/// `%0` a tensor, `'text`, `torch.int64`, `[1 2]`, `none`, `true`, numbers.
fn arg(text: &str) -> Arg {
    if let Some(n) = text.strip_prefix('%') {
        return Arg::Value(ValueId(n.parse().expect("a number")));
    }
    if let Some(list) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return Arg::List(list.split_whitespace().map(arg).collect());
    }
    match text {
        "none" => Arg::None,
        "true" => true.into(),
        "false" => false.into(),
        t if t.starts_with('\'') => t[1..].into(),
        t if t.starts_with("torch.") => Arg::DType(t.parse().expect("a dtype")),
        t => number(t).into(),
    }
}

/// Equal within the tolerance of the operator's entry; zeros have the same sign.
fn check(line: &str, target: &str, got: &Tensor, expected: &Tensor) -> Result<(), String> {
    let op = prims::lookup(target).or_else(|| prims::functional_of(target));
    let entry = op.ok_or_else(|| format!("{line}\n    no operator"))?.def.tolerance;
    let (atol, rtol) = entry.of(expected.dtype());
    tensor::allclose(got, expected, atol, rtol).map_err(|e| format!("{line}\n    {e}"))?;
    for (a, b) in got.iter().zip(expected.iter()) {
        if let (Scalar::Float(a), Scalar::Float(b)) = (a, b)
            && a == 0.0
            && b == 0.0
            && a.is_sign_negative() != b.is_sign_negative()
        {
            return Err(format!("{line}\n    a zero has the other sign"));
        }
    }
    Ok(())
}

#[test]
fn operators_give_what_pytorch_gives() {
    let mut failures = Vec::new();
    let mut lines = 0;
    for line in include_str!("../semantics.txt").lines() {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [target, inputs, args, results] = fields[..] else { panic!("four fields: {line}") };
        let args: Vec<Arg> = args.split(',').map(str::trim).filter(|a| !a.is_empty()).map(arg).collect();
        lines += 1;
        match support::run(target, &tensors(inputs), &args) {
            Err(e) => failures.push(format!("{line}\n    {e}")),
            Ok(outs) => {
                let expected = tensors(results);
                assert_eq!(outs.len(), expected.len(), "{line}");
                let checked = outs.iter().zip(&expected).map(|(got, want)| check(line, target, got, want));
                failures.extend(checked.filter_map(Result::err));
            }
        }
    }
    assert!(lines > 150);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Eager PyTorch's kernel for the CPU divides the heads without asking, and reads beyond the keys or stops the process.
#[test]
fn heads_of_queries_that_are_no_groups_of_those_of_keys_are_refused() {
    let zeros = |heads: usize| Tensor::from_vec(vec![0.0f32; heads * 6], &[1, heads, 3, 2]).expect("zeros");
    let args = |text: &str| text.split(", ").map(arg).collect::<Vec<Arg>>();
    for heads in [0, 3, 8] {
        let given = [zeros(4), zeros(heads), zeros(heads)];
        let flash = "aten._scaled_dot_product_flash_attention_for_cpu.default";
        assert!(support::run(flash, &given, &args("%0, %1, %2, 0.0, false, none, none")).is_err(), "{heads}");
        let math = "aten._scaled_dot_product_attention_math.default";
        let told = args("%0, %1, %2, none, 0.0, false, none, none, true");
        assert!(support::run(math, &given, &told).is_err(), "{heads}");
    }
}
