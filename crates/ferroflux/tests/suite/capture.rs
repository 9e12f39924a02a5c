//! Functions that are captured and compiled: guards, dynamic sizes, graph breaks, writes to tensors from outside, threads.

use std::sync::Arc;

use ferroflux::Mode;
use ferroflux::capture::{Callable, CompiledFn, compile};
use ferroflux::prelude::*;

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[values.len()])
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to(DType::F32).to_vec::<f32>().unwrap_or_else(|e| panic!("{e}"))
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{a:?} is not {b:?}");
    }
}

/// The function itself and its compiled form must agree.
fn agree<F>(f: F, compiled: &CompiledFn<(Tensor, Tensor), Tensor>, x: &Tensor, y: &Tensor)
where
    F: Fn((Tensor, Tensor)) -> Tensor,
{
    let expected = f((x.clone(), y.clone()));
    let got = compiled.call((x.clone(), y.clone())).unwrap();
    assert_eq!((got.dtype(), got.shape()), (expected.dtype(), expected.shape()));
    close(&values(&got), &values(&expected));
}

#[test]
fn a_function_is_captured_once_and_used_again() {
    let f = compile(|(x, y): (Tensor, Tensor)| (x.sin() + y * 2.0, x.sum())).build().unwrap();
    for n in 0..5 {
        let (x, y) = (vector(&[n as f32, 1.0]), vector(&[0.5, -1.0]));
        let (a, b) = f.call((x.clone(), y.clone())).unwrap();
        close(&values(&a), &values(&(x.sin() + &y * 2.0)));
        assert_eq!(b.item().unwrap(), f64::from(n) + 1.0);
    }
    assert_eq!((f.captures(), f.entries()), (1, 1));
}

#[test]
fn dtypes_ranks_and_sizes_are_guarded() {
    let of = |(x, y): (Tensor, Tensor)| (&x * &y + x.sum()) / 2.0;
    let f = compile(of).build().unwrap();
    let make =
        |sizes: &[usize], dtype| Tensor::arange(sizes.iter().product::<usize>()).reshape(sizes).to(dtype);
    for dtype in [DType::F32, DType::F64, DType::I64, DType::BF16] {
        for sizes in [&[4usize][..], &[2, 3], &[5, 3], &[1, 3], &[0, 3], &[7, 3]] {
            agree(of, &f, &make(sizes, dtype), &make(sizes, dtype));
        }
    }
    let reasons = f.recompile_reasons().join("\n");
    assert!(reasons.contains("the model wants"), "{reasons}");
    agree(of, &f, &make(&[2, 3], DType::F32), &make(&[1], DType::F32));
    let wrong = f.call((make(&[2, 3], DType::F32), make(&[4], DType::F32))).unwrap_err().to_string();
    assert!(wrong.contains("do not broadcast") && wrong.contains("capture.rs"), "{wrong}");
}

#[test]
fn ten_thousand_sizes_are_one_compilation() {
    let f = compile(|x: Tensor| {
        let n = x.size(0);
        let rows = x.reshape(&[n, Size::from(-1)]);
        (rows.softmax(1) * 3.0).sum_dims(&[1], false)
    })
    .dynamic(true)
    .build()
    .unwrap();
    let mut state = 1u64;
    for round in 0..10_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (n, m) = (1 + (state >> 33) % 40, 2 + (state >> 45) % 20);
        let (n, m) = if round == 0 { (3, 5) } else { (n as usize, m as usize) };
        let y = f.call(Tensor::ones(&[n, m])).unwrap();
        if round % 500 == 0 {
            close(&values(&y), &vec![3.0; n]);
        }
    }
    assert_eq!((f.captures(), f.entries()), (1, 1), "{:?}", f.recompile_reasons());
}

#[test]
fn a_dimension_is_dynamic_from_its_second_size_on() {
    let f = compile(|x: Tensor| x.exp().sum_dims(&[1], true) + &x).build().unwrap();
    for n in [3usize, 4, 5, 60, 7, 2] {
        let x = Tensor::rand(&[n, 4]);
        close(&values(&f.call(x.clone()).unwrap()), &values(&(x.exp().sum_dims(&[1], true) + &x)));
    }
    assert_eq!(f.captures(), 2);
    let fixed = compile(|x: Tensor| x.exp()).dynamic(false).build().unwrap();
    for n in [3usize, 4, 5] {
        fixed.call(Tensor::zeros(&[n])).unwrap();
    }
    assert_eq!(fixed.captures(), 3);
}

#[test]
fn decisions_about_sizes_are_guards() {
    let f =
        compile(|x: Tensor| if x.size(0) > 4 { x.sum() } else { x.mean() }).dynamic(true).build().unwrap();
    for (n, expected) in [(3usize, 1.0), (4, 1.0), (5, 5.0), (9, 9.0), (2, 1.0)] {
        assert_eq!(f.call(Tensor::ones(&[n])).unwrap().item().unwrap(), expected);
    }
    assert_eq!(f.captures(), 2);
    let number = compile(|x: Tensor| &x * x.size(0).get()).dynamic(true).build().unwrap();
    for n in [3usize, 4, 3] {
        assert_eq!(values(&number.call(Tensor::ones(&[n])).unwrap()), vec![n as f32; n]);
    }
    assert_eq!(number.captures(), 2, "a size that is read as a number is fixed");
}

#[test]
fn declared_ranges_never_compile_again() {
    let f = compile(|x: Tensor| x.softmax(0)).range(0, 0, 1..=64).build().unwrap();
    for n in 1..=64usize {
        close(&values(&f.call(Tensor::zeros(&[n])).unwrap()), &vec![1.0 / n as f32; n]);
    }
    assert_eq!(f.captures(), 1);
    let error = f.call(Tensor::zeros(&[65])).unwrap_err().to_string();
    assert!(error.contains("dimension 0 is 65") && error.contains("from 1 to 64"), "{error}");
    let fixed = compile(|x: Tensor| x.reshape(&[2i64, 3])).range(0, 0, 1..=64).build().unwrap();
    let error = fixed.call(Tensor::zeros(&[6])).unwrap_err().to_string();
    assert!(error.contains("declared dynamic"), "{error}");
    let x = Tensor::zeros(&[5]);
    x.mark_dynamic(0, 0, None);
    let marked = compile(|x: Tensor| x + 1.0).build().unwrap();
    marked.call(x).unwrap();
    marked.call(Tensor::zeros(&[6])).unwrap();
    assert_eq!(marked.captures(), 1);
}

#[test]
fn constants_and_settings_are_guarded() {
    let scale = Setting::new("scale", 2.0f64);
    let own = scale.clone();
    let f = compile(move |(x, power, squared): (Tensor, i64, bool)| {
        let y = x.pow(power) * own.get();
        if squared { &y * &y } else { y }
    })
    .build()
    .unwrap();
    let x = vector(&[1.0, 2.0, 3.0]);
    for (rate, power, squared) in
        [(2.0, 2, false), (2.0, 3, false), (2.0, 2, true), (5.0, 2, true), (2.0, 2, false)]
    {
        scale.set(rate);
        let once = |x: f32| x.powi(power as i32) * rate as f32;
        let expected: Vec<f32> =
            [1.0, 2.0, 3.0].iter().map(|x| if squared { once(*x) * once(*x) } else { once(*x) }).collect();
        close(&values(&f.call((x.clone(), power, squared)).unwrap()), &expected);
    }
    assert_eq!(f.captures(), 4, "{:?}", f.recompile_reasons());
    assert!(f.recompile_reasons().iter().any(|r| r.contains("`scale` is 5.0, it was 2.0")));
}

#[test]
fn a_read_value_is_a_graph_break_and_the_program_goes_on() {
    let f = compile(|x: Tensor| {
        let y = &x * 2.0;
        if y.sum().item()? > 0.0 { Ok(y.exp()) } else { Ok(y.abs()) }
    });
    let f = f.build().unwrap();
    for sign in [1.0f32, -1.0, 1.0, -3.0] {
        let y = f.call(vector(&[sign, sign])).unwrap();
        let expected = if sign > 0.0 { (2.0 * sign).exp() } else { (2.0 * sign).abs() };
        close(&values(&y), &[expected, expected]);
    }
    assert_eq!(f.captures(), 1);
    let breaks = f.breaks();
    assert!(breaks.len() == 1 && breaks[0].at.contains("capture.rs"), "{breaks:?}");
}

#[test]
fn fullgraph_refuses_a_break_with_the_line() {
    let line = line!() + 1;
    let f = compile(|x: Tensor| x.sum().item().map(|s| &x * s)).fullgraph(true).build().unwrap();
    let error = f.call(vector(&[1.0])).unwrap_err().to_string();
    assert!(error.contains("graph break") && error.contains(&format!("capture.rs:{line}:")), "{error}");
}

#[test]
fn what_a_function_writes_is_seen_and_kept() {
    let total = Tensor::zeros(&[2]);
    let own = total.clone();
    let f = compile(move |x: Tensor| {
        own.add_(&x)?;
        Ok(&own * 10.0)
    });
    let f = f.build().unwrap();
    for n in 1..4 {
        let y = f.call(vector(&[1.0, 2.0])).unwrap();
        assert_eq!(values(&total), [n as f32, 2.0 * n as f32]);
        assert_eq!(values(&y), [10.0 * n as f32, 20.0 * n as f32]);
    }
    assert_eq!(f.captures(), 1);
    total.fill_(0.0).unwrap();
    assert_eq!(values(&f.call(vector(&[1.0, 1.0])).unwrap()), [10.0, 10.0]);
    let arguments = compile(|(x, y): (Tensor, Tensor)| {
        x.select(0, 1).copy_(&y)?;
        Ok(x)
    });
    let arguments = arguments.build().unwrap();
    for n in 0..3 {
        let x = Tensor::zeros(&[2, 2]);
        let view = x.t();
        let back = arguments.call((x.clone(), vector(&[n as f32, 7.0]))).unwrap();
        assert!(back.is(&x), "the argument itself is returned");
        assert_eq!(values(&x), [0.0, 0.0, n as f32, 7.0]);
        assert_eq!(values(&view), [0.0, n as f32, 0.0, 7.0]);
    }
    assert_eq!(arguments.captures(), 1);
}

#[test]
fn arguments_that_share_memory_are_right_whatever_was_captured() {
    let of = |(x, y): (Tensor, Tensor)| {
        x.add_(1.0)?;
        Ok(&x + &y)
    };
    let f = compile(of).build().unwrap();
    let (a, b) = (|| vector(&[1.0, 2.0]), || vector(&[10.0, 20.0]));
    for _ in 0..2 {
        assert_eq!(values(&f.call((a(), b())).unwrap()), [12.0, 23.0]);
        let same = a();
        assert_eq!(values(&f.call((same.clone(), same.clone())).unwrap()), [4.0, 6.0]);
        assert_eq!(values(&same), [2.0, 3.0]);
        let base = vector(&[1.0, 2.0, 3.0]);
        let (x, y) = (base.narrow(0, 0, 2), base.narrow(0, 1, 2));
        assert_eq!(values(&f.call((x, y)).unwrap()), [5.0, 6.0]);
        assert_eq!(values(&base), [2.0, 3.0, 3.0]);
    }
    let captured = vector(&[1.0, 1.0]);
    let own = captured.clone();
    let g = compile(move |x: Tensor| &x * 2.0 + &own).build().unwrap();
    assert_eq!(values(&g.call(captured.clone()).unwrap()), [3.0, 3.0], "an argument that is captured too");
    assert_eq!(values(&g.call(vector(&[5.0, 5.0])).unwrap()), [11.0, 11.0]);
}

#[test]
fn gradients_flow_through_compiled_functions() {
    let w = vector(&[0.5, -1.0, 2.0]).with_grad();
    let own = w.clone();
    let f = compile(move |x: Tensor| ((&x * &own).tanh() * &own).sum()).build().unwrap();
    let x = vector(&[1.0, 2.0, 3.0]);
    for _ in 0..2 {
        w.clear_grad();
        ((&x * &w).tanh() * &w).sum().backward().unwrap();
        let expected = values(&w.grad().unwrap());
        w.clear_grad();
        let loss = f.call(x.clone()).unwrap();
        assert!(loss.requires_grad());
        (loss * 2.0).backward().unwrap();
        let expected: Vec<f32> = expected.iter().map(|g| 2.0 * g).collect();
        close(&values(&w.grad().unwrap()), &expected);
    }
    assert_eq!(f.captures(), 1);
    assert!(!no_grad(|| f.call(x.clone())).unwrap().requires_grad());
    assert_eq!(f.captures(), 2, "whether gradients are recorded is guarded");
}

#[test]
fn a_whole_training_step_is_one_graph() {
    let step = |w: Tensor, velocity: Tensor| {
        move |(x, y): (Tensor, Tensor)| -> Result<Tensor, ferroflux::Error> {
            let loss = x.matmul(&w).mse_loss(&y);
            loss.backward()?;
            no_grad(|| {
                let gradient = w.grad().unwrap_or_else(|| w.like(Init::Zeros));
                velocity.mul_(0.9)?.add_(&gradient)?;
                w.sub_(&velocity * 0.05)?;
                w.clear_grad();
                Ok(loss)
            })
        }
    };
    let make = || (Tensor::zeros(&[2, 1]).with_grad(), Tensor::zeros(&[2, 1]));
    let ((w, v), (w2, v2)) = (make(), make());
    let plain = step(w.clone(), v);
    let compiled = compile(step(w2.clone(), v2)).fullgraph(true).build().unwrap();
    let x = Tensor::from_slice(&[1.0_f32, 0.5, -1.0, 2.0, 0.3, 0.1], &[3, 2]);
    let y = Tensor::from_slice(&[1.0_f32, -1.0, 0.5], &[3, 1]);
    for _ in 0..10 {
        let a = plain((x.clone(), y.clone())).unwrap().item().unwrap();
        let b = compiled.call((x.clone(), y.clone())).unwrap().item().unwrap();
        assert!((a - b).abs() < 1e-6, "{a} {b}");
        close(&values(&w2), &values(&w));
    }
    assert_eq!(compiled.captures(), 1, "{:?}", compiled.recompile_reasons());
    assert!(w2.requires_grad() && w2.grad().is_none());
}

#[test]
fn random_numbers_differ_between_calls_and_agree_with_their_gradients() {
    let w = Tensor::ones(&[64]).with_grad();
    let own = w.clone();
    let f = compile(move |()| {
        let y = own.call("aten.dropout.default", [0.5.into(), true.into()]);
        y.sum().backward()?;
        let gradient = own.grad().unwrap_or_else(|| own.detach());
        own.clear_grad();
        Ok((y.detach(), gradient))
    });
    let f = f.fullgraph(true).build().unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        let (y, gradient) = f.call(()).unwrap();
        assert_eq!(values(&y), values(&gradient), "the mask of the forward is that of the backward");
        all.push(values(&y));
    }
    assert!(all[0] != all[1] && all[1] != all[2]);
    assert_eq!(f.captures(), 1);
}

#[test]
fn a_backend_may_be_a_closure() {
    let printed = Arc::new(std::sync::Mutex::new(String::new()));
    let text = Arc::clone(&printed);
    let f = compile(|x: Tensor| x.relu() + 1.0).backend_fn(move |graph, examples| {
        *text.lock().unwrap() = graph.to_string();
        assert_eq!(examples[0].sizes(), [2]);
        let graph = ferroflux::func::Func::from_graph(graph.clone());
        let call: Callable =
            Box::new(move |inputs| graph.call(inputs, &ferroflux::Options::new().backend("eager")));
        Ok(call)
    });
    let f = f.build().unwrap();
    assert_eq!(values(&f.call(vector(&[-1.0, 2.0])).unwrap()), [1.0, 3.0]);
    assert!(printed.lock().unwrap().contains("prims.max"), "{printed:?}");
    assert!(compile(|x: Tensor| x).backend("no-such").build().is_err());
}

/// What `build` says about settings, before anything is captured.
#[test]
fn settings_are_checked_when_the_function_is_built() {
    let of = |options: ferroflux::Options| {
        let built = compile(|x: Tensor| x + 1.0).options(options).build();
        built.err().map(|e| e.to_string()).unwrap_or_default()
    };
    let options = || ferroflux::Options::new().backend("cpu");
    assert_eq!(of(options().backend_option("threads", "1")), "");
    let name = of(options().backend_option("thread", "1"));
    assert!(name.contains("no option `thread`") && name.contains("did you mean threads"), "{name}");
    let value = of(options().backend_option("threads", "many"));
    assert!(value.contains("`threads`") && value.contains("is `many`, but must be an integer"), "{value}");
    let mode = of(ferroflux::Options::new().backend("eager").mode(Mode::MaxAutotune));
    assert!(mode.contains("no mode `max-autotune`"), "{mode}");
    let closure = || {
        compile(|x: Tensor| x).backend_fn(|_, _| {
            let call: Callable = Box::new(|inputs| Ok(inputs.to_vec()));
            Ok(call)
        })
    };
    assert!(closure().build().is_ok());
    assert!(closure().mode(Mode::ReduceOverhead).build().is_err(), "a closure has no modes");
    assert!(closure().options(options().backend_option("threads", "1")).build().is_err());
    let none = std::ops::RangeInclusive::new(5, 3);
    assert!(compile(|x: Tensor| x).range(0, 0, none).build().is_err(), "no size is in this range");
}

#[test]
fn entries_are_bounded_and_the_oldest_goes() {
    let f = compile(|x: Tensor| x + 1.0).dynamic(false).limit(2).build().unwrap();
    for n in [1usize, 2, 1, 3, 1] {
        assert_eq!(values(&f.call(Tensor::zeros(&[n])).unwrap()), vec![1.0; n]);
    }
    assert_eq!((f.captures(), f.entries()), (3, 2), "size 1 was used last and stays");
    f.call(Tensor::zeros(&[2])).unwrap();
    assert_eq!(f.captures(), 4);
}

#[test]
fn frozen_tensors_are_constants_until_they_are_written() {
    let w = Tensor::rand(&[8, 8]);
    let own = w.clone();
    let f = compile(move |x: Tensor| x.matmul(&own)).freeze(true).build().unwrap();
    let x = Tensor::rand(&[3, 8]);
    let call = || no_grad(|| f.call(x.clone())).unwrap();
    close(&values(&call()), &values(&x.matmul(&w)));
    close(&values(&call()), &values(&x.matmul(&w)));
    assert_eq!(f.captures(), 1);
    w.mul_(-2.0).unwrap();
    close(&values(&call()), &values(&x.matmul(&w)));
    assert_eq!(f.captures(), 2);
}

#[test]
fn calls_from_many_threads_are_safe() {
    let total = Tensor::zeros(&[1]);
    let own = total.clone();
    let f = compile(move |x: Tensor| {
        own.add_(x.sum())?;
        Ok(&x * 2.0)
    });
    let f = f.build().unwrap();
    std::thread::scope(|scope| {
        for t in 0..4usize {
            let f = &f;
            scope.spawn(move || {
                for n in 0..50usize {
                    let size = 1 + (n + t) % 3;
                    let y = f.call(Tensor::ones(&[size])).unwrap();
                    assert_eq!(values(&y), vec![2.0; size]);
                }
            });
        }
    });
    let expected: usize = (0..4).map(|t| (0..50).map(|n| 1 + (n + t) % 3).sum::<usize>()).sum();
    assert_eq!(total.item().unwrap(), expected as f64);
}

#[test]
fn a_compiled_function_within_another_is_one_graph_with_it() {
    let inner = Arc::new(compile(|x: Tensor| x.sin()).build().unwrap());
    let own = Arc::clone(&inner);
    let outer = compile(move |x: Tensor| Ok(own.call(&x + 1.0)? * 2.0)).fullgraph(true).build().unwrap();
    close(&values(&outer.call(vector(&[0.5])).unwrap()), &[1.5f32.sin() * 2.0]);
    assert_eq!((inner.captures(), outer.captures()), (0, 1));
}

/// A break of each kind, at its own line; `fullgraph` does not end the search at the first.
#[test]
fn explain_lists_every_break_with_its_line() {
    let body = |(x, y): (Tensor, Tensor)| -> Result<Tensor, ferroflux::Error> {
        let first = (&x + 1.0).sum().item()?; // line 1
        let _same = x.item().is_ok(); // line 2, with nothing computed before it
        let places = (&x * first).nonzero(); // line 3
        let chosen = y.index_select(0, &places.reshape(&[-1_i64]));
        let _read = chosen.to_vec::<f32>()?; // line 5
        println!("{chosen}");
        Ok(chosen.exp())
    };
    let start = line!() - 9; // the line of the function's head
    for fullgraph in [false, true] {
        let f = compile(body).fullgraph(fullgraph).build().unwrap();
        let explained = f.explain((vector(&[1.0, 2.0]), vector(&[3.0, 4.0]))).unwrap();
        let lines: Vec<u32> = explained.breaks[..4]
            .iter()
            .map(|b| {
                assert!(b.at.contains("capture.rs:"), "{b:?}");
                b.at.rsplit(':').nth(1).unwrap().parse::<u32>().unwrap() - start
            })
            .collect();
        let reasons: Vec<&str> = explained.breaks.iter().map(|b| b.reason.as_str()).collect();
        assert_eq!(lines, [1, 2, 3, 5], "{explained}");
        assert!(reasons[2].contains("`aten.nonzero.default`"), "{reasons:?}");
        assert!(reasons[3].contains("the values of a tensor are read"), "{reasons:?}");
        // What is formatted does not know where.
        assert!(reasons[4].contains("printed"), "{reasons:?}");
        // Nothing is computed between the first two.
        assert_eq!(
            (explained.graphs, explained.breaks.len(), explained.parts.len()),
            (4, 5, 6),
            "{explained}"
        );
        assert_eq!(explained.parts[0].get("aten.sum.default"), Some(&1), "{explained}");
        assert!(explained.parts[1].is_empty() && explained.parts[5].contains_key("aten.exp.default"));
        assert_eq!(f.captures(), 0);
    }
}

/// A write that another name of the same memory would have to see.
#[test]
fn a_break_by_shared_memory_names_the_line_that_reads() {
    let f = compile(|(x, part): (Tensor, Tensor)| -> Result<Tensor, ferroflux::Error> {
        no_grad(|| x.add_(1.0).map(|_| ()))?;
        Ok(&part * 2.0)
    });
    let line = line!() - 2;
    let f = f.build().unwrap();
    let x = vector(&[1.0, 2.0]);
    let part = x.narrow(0, 0, 1);
    let explained = f.explain((x, part)).unwrap();
    let found: Vec<&str> = explained.breaks.iter().map(|b| b.at.as_str()).collect();
    assert!(found.iter().all(|at| at.contains("tests/suite/capture.rs:")), "{explained}");
    assert!(
        found.iter().any(|at| at.contains(&format!(":{line}:")) || at.contains(&format!(":{}:", line - 1)))
    );
    assert!(explained.breaks[0].reason.contains("shares memory"), "{explained}");
}

/// Run by [`the_environment_asks_for_the_log`] alone, in a process of its own.
#[test]
#[ignore = "a part of another test"]
fn logged() {
    let f = compile(|x: Tensor| (x.sin() + 1.0).sum()).dynamic(false).build().unwrap();
    f.call(vector(&[1.0])).unwrap();
    f.call(vector(&[1.0, 2.0])).unwrap();
    let g = compile(|x: Tensor| if x.sum().item()? > 0.0 { Ok(x.exp()) } else { Ok(x) }).build().unwrap();
    g.call(vector(&[1.0])).unwrap().compute().unwrap();
}

#[test]
fn the_environment_asks_for_the_log() {
    let output = |log: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "capture::logged", "--nocapture"]).env_remove("FERROFLUX_LOG");
        if let Some(text) = log {
            command.env("FERROFLUX_LOG", text);
        }
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let all = output(Some("recompiles,breaks,guards,fusion,graph"));
    let line = |target: &str, what: &str| all.lines().any(|l| l.contains(target) && l.contains(what));
    assert!(line(" recompiles: ", "captured again, because a guard failed: "), "{all}");
    assert!(line(" breaks: ", "tests/suite/capture.rs:"), "{all}");
    assert!(line(" guards: ", "x0: f32[2]"), "{all}");
    assert!(line(" fusion: ", "(loop) is ") && line(" fusion: ", "tests/suite/capture.rs:"), "{all}");
    let one = output(Some("breaks"));
    assert!(one.contains(" breaks: ") && !one.contains(" guards: "), "{one}");
    let none = output(None);
    assert!(!none.contains(" breaks: "), "{none}");
    let wrong = output(Some("braeks"));
    assert!(wrong.contains("`braeks` is no stage (archive, "), "{wrong}");
}

#[test]
fn explain_names_breaks_guards_and_operators() {
    let f = compile(|x: Tensor| {
        let first = x.sum().item()?;
        let second = (&x * first).max().item()?;
        Ok(&x + second)
    });
    let f = f.build().unwrap();
    let explained = f.explain(vector(&[1.0, 2.0])).unwrap();
    assert_eq!((explained.graphs, explained.breaks.len()), (3, 2), "{explained}");
    assert!(explained.breaks[1].reason.contains("values of a tensor are read"));
    let whole = compile(|(x, y): (Tensor, Tensor)| x * y).dynamic(true).build().unwrap();
    let explained = whole.explain((vector(&[1.0, 2.0]), vector(&[3.0, 4.0]))).unwrap();
    assert_eq!((explained.graphs, explained.prims.get("prims.mul")), (1, Some(&1)), "{explained}");
    assert!(explained.guards[0].contains("broadcast"), "{explained}");
    assert_eq!((f.captures(), whole.captures()), (0, 0), "nothing is kept");
}

/// The cost is printed, not asserted: machines differ.
#[test]
fn guards_of_sixteen_tensors_cost_little() {
    let f = compile(|list: Vec<Tensor>| {
        list.into_iter().reduce(|a, b| a + b).unwrap_or_else(|| Tensor::zeros(&[1]))
    });
    let f = f.dynamic(true).build().unwrap();
    let list: Vec<Tensor> = (0..16).map(|_| Tensor::rand(&[3, 4])).collect();
    f.call(list.clone()).unwrap();
    // The best of many short runs: what else the machine does counts least there.
    let best = |what: &str, run: &mut dyn FnMut()| {
        let mut batch = || {
            let start = std::time::Instant::now();
            (0..500).for_each(|_| run());
            start.elapsed().as_nanos() as f64 / 500.0
        };
        let best = (0..40).map(|_| batch()).fold(f64::INFINITY, f64::min);
        println!("{what}: {best:.0} ns");
    };
    best("guards of 16 tensors", &mut || assert!(f.is_compiled_for(std::hint::black_box(&list)).unwrap()));
    let one = compile(|x: Tensor| x + 1.0).build().unwrap();
    let x = Tensor::zeros(&[4]);
    one.call(x.clone()).unwrap();
    best("a whole call of one tensor", &mut || {
        one.call(std::hint::black_box(x.clone())).unwrap();
    });
    best("two recorded operators", &mut || {
        (std::hint::black_box(&x) * 2.0 + 1.0).compute().unwrap();
    });
}

/// Two worlds with equal state: one runs a function as it is, the other one compiled.
mod worlds {
    use super::*;
    use ferroflux::nn::BatchNorm2d;

    pub(super) struct World {
        pub(super) norm: Arc<BatchNorm2d>,
        pub(super) total: Tensor,
        pub(super) weight: Tensor,
        pub(super) scale: Setting<f64>,
        pub(super) function: Box<dyn Fn(Tensor, Tensor, i64) -> Result<Tensor, ferroflux::Error>>,
    }

    impl World {
        pub(super) fn new(compiled: bool, breaks: bool) -> World {
            let norm = Arc::new(BatchNorm2d::new(2));
            let (total, scale) = (Tensor::zeros(&[1]), Setting::new("scale", 1.0));
            let weight = vector(&[0.5, -2.0]).with_grad();
            let (n, t, w, s) = (norm.clone(), total.clone(), weight.clone(), scale.clone());
            let f = move |(x, y, k): (Tensor, Tensor, i64)| -> Result<Tensor, ferroflux::Error> {
                no_grad(|| x.add_(k).map(|_| ()))?;
                let h = n.forward(&x.to(DType::F32).unsqueeze(2).expand(&[-1i64, -1, 2])).select(2, 1);
                no_grad(|| t.add_(y.to(DType::F32).sum()).map(|_| ()))?;
                if breaks && t.item()? > 3.0 {
                    t.fill_(-2.0)?;
                }
                let out = (h * &w + &y.to(DType::F32)) * s.get() + &t;
                Ok(if x.size(0) > 3 { out.tanh() } else { out })
            };
            let function: Box<dyn Fn(Tensor, Tensor, i64) -> Result<Tensor, ferroflux::Error>> = if compiled {
                let f = compile(f).build().unwrap();
                Box::new(move |x, y, k| f.call((x, y, k)))
            } else {
                Box::new(move |x, y, k| f((x, y, k)))
            };
            World { norm, total, weight, scale, function }
        }
    }
}

#[test]
fn whatever_changes_between_calls_the_result_is_that_of_the_function() {
    for breaks in [false, true] {
        let pair = [worlds::World::new(false, breaks), worlds::World::new(true, breaks)];
        let mut state = 7u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for round in 0..150 {
            let (rows, dtype) = ([1, 2, 3, 4, 7][random(5)], [DType::F32, DType::F64][random(2)]);
            let (alias, k, mode) = (random(4), random(2) as i64, random(3));
            let (scale, write, grad) = (1.0 + random(2) as f64, random(5) == 0, random(4) > 0);
            let seen: Vec<Vec<Vec<f32>>> = pair
                .iter()
                .map(|world| {
                    world.norm.train(mode > 0);
                    world.scale.set(scale);
                    if write {
                        no_grad(|| world.weight.mul_(-0.5).map(|_| ())).unwrap();
                    }
                    let data = |rows: usize| {
                        (Tensor::arange(2 * rows).reshape(&[rows, 2]).to(dtype) * 0.3 + round as f64 * 0.01)
                            .copied()
                    };
                    let (x, y) = match alias {
                        0 => (data(rows), data(rows)),
                        1 => {
                            let x = data(rows);
                            (x.clone(), x)
                        }
                        2 => {
                            let base = data(rows + 1);
                            (base.narrow(0, 0, rows), base.narrow(0, 1, rows))
                        }
                        _ => (data(rows), data(1)),
                    };
                    let run = || (world.function)(x.clone(), y.clone(), k).unwrap();
                    let out = if grad { run() } else { no_grad(run) };
                    world.weight.clear_grad();
                    if grad {
                        out.sum().backward().unwrap();
                    }
                    let gradient = world.weight.grad().map(|g| values(&g)).unwrap_or_default();
                    let norm = &world.norm;
                    let tensors = [&out, &x, &y, &world.total, &norm.running_mean, &norm.running_var];
                    tensors.into_iter().map(values).chain([gradient]).collect()
                })
                .collect();
            for (n, (a, b)) in seen[0].iter().zip(&seen[1]).enumerate() {
                let same = a.len() == b.len()
                    && a.iter().zip(b).all(|(x, y)| (x - y).abs() <= 2e-4 * (1.0 + x.abs()));
                assert!(
                    same,
                    "round {round}, value {n}: {b:?}, not {a:?} (alias {alias}, rows {rows}, {dtype}, mode {mode})"
                );
            }
        }
    }
}
