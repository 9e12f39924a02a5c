//! Indices from data that are checked: values outside of their dimension end the call with an error that names them, touch no
//! memory and leave the program usable; values inside of it give what an unchecked program gives. In every kind of body.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::CpuBackend;
use backend_cpu::exec::{Compiled, ExecError, ExecOptions};
use ir_core::{DType, Scalar};
use kernel_ir::{IR_MAJOR, IR_MINOR, Program, Step};
use plugin_sdk::dlpack::DL_CPU;
use plugin_sdk::{
    Artifact, Backend, CompileRequest, Constants, DeviceId, ErrorKind, Host, IrVersion, Options,
    ProgramBytes, Stream, TensorView,
};

/// A program of inputs, outputs (name, buffer's text) and steps; buffers are numbered in this order.
fn program(symbols: &str, inputs: &[&str], outputs: &[&str], steps: &str) -> Program {
    let mut text = format!("kir 1.6\nprogram \"checks\"\n{symbols}");
    text += "site \"aten.first.default\" \"model.py:3\" dim 0\nsite \"aten.second.default\" \"\" dim 1\n";
    let all = inputs.iter().map(|b| (b, true)).chain(outputs.iter().map(|b| (b, false)));
    let mut signature = String::new();
    for (n, (buffer, input)) in all.enumerate() {
        let (name, body) = buffer.split_once(' ').unwrap();
        let (body, written) = body.strip_suffix(" written").map_or((body, ""), |b| (b, " written"));
        let role = if input { format!("input {n}") } else { "output".into() };
        text += &format!("buffer b{n} \"{name}\" {body}+0 {role}\n");
        signature += &match input {
            true => format!("input \"{name}\" b{n}{written}\n"),
            false => format!("output \"{name}\" b{n}{}+0\n", &body[body.find('[').unwrap()..]),
        };
    }
    text += &format!("{signature}init:\nsteps:\n{steps}plan bytes 0:\n");
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    kernel_ir::verify(&program).unwrap_or_else(|e| panic!("{e}\n{text}"));
    program
}

fn compiled(p: &Program, threads: usize) -> Compiled {
    Compiled::new(p.clone(), ExecOptions { threads, ..ExecOptions::default() }).unwrap()
}

/// Inputs for a program: integers below `size`, every third truth value false, other numbers spread.
fn inputs(p: &Program, symbols: &[i64], size: i64) -> Vec<Data> {
    let value = |e: &ir_core::SymExpr| {
        e.eval(&|a| if let ir_core::Atom::Sym(s) = a { symbols.get(s.0 as usize).copied() } else { None })
    };
    let one = |input: &kernel_ir::InputSpec| {
        let buffer = &p.buffers[input.buf];
        let sizes: Vec<i64> = buffer.sizes.iter().map(|e| value(e).unwrap()).collect();
        let dtype = buffer.dtype;
        let mut data = Data::floats(dtype, &sizes, |k| match dtype {
            DType::Bool => f64::from(u8::from(k % 3 != 1)),
            d if d.is_float() => ((k * 7919 % 1013) as f64 - 500.0) / 256.0,
            _ => (k as i64 * 5 % size.max(1)) as f64,
        });
        data.values.iter_mut().for_each(|v| *v = round(dtype, *v));
        data
    };
    p.inputs.iter().map(one).collect()
}

fn bits(all: &[Data]) -> Vec<Vec<u8>> {
    all.iter().map(Data::bytes).collect()
}

/// Runs a program whose input 0 holds indices that must be below `size`: with good ones it gives what it gives unchecked, with
/// a bad one at any of some places an error that names it, and then good results again.
fn check(p: &Program, symbols: &[i64], size: i64) {
    let good = inputs(p, symbols, size);
    let unchecked = Program { unchecked_indices: true, ..p.clone() };
    for threads in [1, 3] {
        let c = compiled(p, threads);
        let wanted = execute(&compiled(&unchecked, threads), &good).unwrap();
        assert_eq!(bits(&execute(&c, &good).unwrap()), bits(&wanted), "{p}");
        let count = good[0].values.len();
        let far =
            if good[0].dtype == DType::I64 { [i64::MIN, i64::MAX] } else { [-(1 << 31), (1 << 31) - 1] };
        for at in [0, 1, 6, 7, count / 2, count - 1] {
            for bad in [-1, size, 1_000_000_000, far[0], far[1]] {
                let mut inputs = good.clone();
                inputs[0].values[at] = Scalar::Int(bad);
                let error = execute(&c, &inputs).err();
                let Some(ExecError::Index { index, size: found, ref message, .. }) = error else {
                    panic!("{bad} at {at}: {error:?}\n{p}")
                };
                assert_eq!((index, found), (bad, size), "{p}");
                let named = format!("index {bad} is out of bounds for dimension");
                assert!(message.contains(&named) && message.contains("aten."), "{message}");
            }
        }
        assert_eq!(bits(&execute(&c, &good).unwrap()), bits(&wanted), "{p}");
    }
}

#[test]
fn rows_of_a_table_and_elements_along_the_last_dimension() {
    for ids in ["i64", "i32"] {
        // Wide where the check does not vary along the axis, and where it does; odd sizes run every width.
        for (tokens, d) in [(37, 21), (5, 1), (1, 300), (16, 64)] {
            let tokens = tokens.max(8);
            let (table, y) =
                (format!("table f32[11, {d}]{{{d}, 1}}"), format!("y f32[{tokens}, {d}]{{{d}, 1}}"));
            let cast = "v0: T = load b0[i0]\n v1: i64 = cast v0\n v2: i64 = check v1, [11] at 0\n";
            let body = format!("{cast} v3: f32 = load b1[v2, i1]\n v4: f32 = store b2[i0, i1], v3\n");
            let steps = format!("loop \"rows\" outer [{tokens}, {d}]\nstage []\n{body}").replace('T', ids);
            let list = format!("ids {ids}[{tokens}]{{1}}");
            check(&program("", &[&list, &table], &[&y], &steps), &[], 11);
        }
        for (rows, count) in [(3, 29), (1, 64), (40, 5), (64, 1)] {
            let list = format!("ids {ids}[{rows}, {count}]{{{count}, 1}}");
            let (x, y) =
                (format!("x f32[{rows}, 13]{{13, 1}}"), format!("y f32[{rows}, {count}]{{{count}, 1}}"));
            let load = "v0: T = load b0[i0, i1]\n v1: i64 = cast v0\n v2: i64 = check v1, [13] at 1\n";
            let body = format!("{load} v3: f32 = load b1[i0, v2]\n v4: f32 = store b2[i0, i1], v3\n");
            let steps =
                format!("loop \"gather\" outer [{rows}, {count}]\nstage []\n{body}").replace('T', ids);
            check(&program("", &[&list, &x], &[&y], &steps), &[], 13);
        }
    }
}

#[test]
fn sizes_of_the_call_and_of_each_lane() {
    let symbols = "symbol s0 \"n\" 0..=100\n";
    let body = "v0: i64 = load b0[i0]\n v1: i64 = check v0, [s0] at 0\n v2: f32 = load b1[v1]\n v3: f32 = store b2[i0], v2\n";
    let steps = format!("loop \"take\" outer [33]\nstage []\n{body}");
    let p = program(symbols, &["ids i64[33]{1}", "x f32[s0]{1}"], &["y f32[33]{1}"], &steps);
    check(&p, &[17], 17);
    check(&p, &[1], 1);
    // An empty dimension takes no index at all.
    let error = execute(&compiled(&p, 1), &inputs(&p, &[0], 0)).unwrap_err().to_string();
    assert_eq!(
        error,
        "`aten.first.default` (model.py:3): index 0 is out of bounds for dimension 0 with size 0"
    );
    // Lane i takes 0..=i.
    let body = "v0: i64 = load b0[i0]\n v1: i64 = check v0, [i0 + 1] at 1\n v2: f32 = load b1[v1]\n v3: f32 = store b2[i0], v2\n";
    let steps = format!("loop \"each\" outer [33]\nstage []\n{body}");
    let p = program("", &["ids i64[33]{1}", "x f32[33]{1}"], &["y f32[33]{1}"], &steps);
    let mut all = inputs(&p, &[], 1);
    (0..33).for_each(|k| all[0].values[k] = Scalar::Int(k as i64));
    let c = compiled(&p, 1);
    assert_eq!(execute(&c, &all).unwrap()[0].values, all[1].values);
    for (at, bad) in [(0, 1), (9, 10), (20, -1), (32, 33), (5, i64::MAX)] {
        let mut all = all.clone();
        all[0].values[at] = Scalar::Int(bad);
        let error = execute(&c, &all).unwrap_err();
        assert!(
            matches!(error, ExecError::Index { index, size, .. } if (index, size) == (bad, at as i64 + 1)),
            "{error}"
        );
    }
}

#[test]
fn lanes_that_a_mask_leaves_out_are_not_looked_at() {
    for ids in ["i64", "i32"] {
        for size in ["13", "s0"] {
            let body = "v0: T = load b0[i0, i1]\n v1: bool = load b2[i0, i1]\n v2: i64 = cast v0\n \
                v3: i64 = check v2, [S] if v1 at 0\n v4: f32 = load b1[v3] if v1\n v5: f32 = store b3[i0, i1], v4\n";
            let steps =
                format!("loop \"some\" outer [7, 23]\nstage []\n{body}").replace('T', ids).replace('S', size);
            let list = format!("ids {ids}[7, 23]{{23, 1}}");
            let x = format!("x f32[{size}]{{1}}");
            let all = [&*list, &x, "mask bool[7, 23]{23, 1}"];
            let p = program("symbol s0 \"n\" 0..=13\n", &all, &["y f32[7, 23]{23, 1}"], &steps);
            let c = compiled(&p, 1);
            let mut good = inputs(&p, &[13], 13);
            let wanted = execute(&c, &good).unwrap();
            for (k, v) in good[0].values.iter_mut().enumerate().filter(|(k, _)| k % 3 == 1) {
                *v = Scalar::Int(if ids == "i64" {
                    [i64::MIN, 1 << 40, -1][k / 3 % 3]
                } else {
                    [-7, 13, 1 << 30][k / 3 % 3]
                });
            }
            assert_eq!(bits(&execute(&c, &good).unwrap()), bits(&wanted));
            for at in [0, 2, 8, 60, 159] {
                let mut bad = good.clone();
                bad[0].values[at] = Scalar::Int(13);
                let error = execute(&c, &bad).unwrap_err();
                assert!(matches!(error, ExecError::Index { index: 13, size: 13, .. }), "{error}");
            }
            if size == "s0" {
                let mut none = inputs(&p, &[0], 1);
                none[2].values.iter_mut().for_each(|v| *v = Scalar::Bool(false));
                none[0].values.iter_mut().for_each(|v| *v = Scalar::Int(99));
                assert!(execute(&c, &none).unwrap()[0].values.iter().all(|v| v.as_f64() == 0.0));
            }
        }
    }
}

#[test]
fn reductions_scans_and_chains_of_tables() {
    // Over the inner loop the check varies, then it does not; then the reduction is over an outer dimension.
    for (outer, inner, index, from) in [
        ("40", "19", "i0, i1", "v1"),
        ("40", "190", "i0, 0", "v1, i1"),
        ("19", "40", "i1, i0", "v1"),
        ("40", "19", "i0, i1", "v1 * 2 // 2"),
    ] {
        let x = if from.contains("i1") { "x f32[11, 190]{190, 1}" } else { "x f32[11]{1}" };
        let body = format!(
            "acc0: f32 sum\nstage [{inner}]\n v0: i64 = load b0[{index}]\n v1: i64 = check v0, [11] at 0\n v2: f32 = load b1[{from}]\n \
             v3: f32 = reduce acc0, v2\nstage []\n v0: f32 = acc0\n v1: f32 = store b2[i0], v0\n"
        );
        let steps = format!("loop \"sum\" outer [{outer}]\n{body}");
        let y = format!("y f32[{outer}]{{1}}");
        let ids = if from.contains("i1") { "ids i64[40, 1]{1, 1}" } else { "ids i64[40, 19]{19, 1}" };
        check(&program("", &[ids, x], &[&y], &steps), &[], 11);
    }
    let body = "stage [23]\n v0: i64 = load b0[i0, i1]\n v1: i64 = check v0, [11] at 0\n v2: f32 = load b1[v1]\n \
        v3: f32 = scan_sum v2\n v4: f32 = store b2[i0, i1], v3\n";
    let steps = format!("loop \"scan\" outer [9]\n{body}");
    let ids = "ids i64[9, 23]{23, 1}";
    check(&program("", &[ids, "x f32[11]{1}"], &["y f32[9, 23]{23, 1}"], &steps), &[], 11);
    // The element of one table is the index into the next one.
    let body = "v0: i64 = load b0[i0]\n v1: i64 = check v0, [11] at 0\n v2: i64 = load b1[v1]\n v3: i64 = check v2, [7] at 1\n \
        v4: f32 = load b2[v3, i1]\n v5: f32 = store b3[i0, i1], v4\n";
    let steps = format!("loop \"chain\" outer [31, 18]\nstage []\n{body}");
    let all = ["ids i64[31]{1}", "next i64[11]{1}", "x f32[7, 18]{18, 1}"];
    let p = program("", &all, &["y f32[31, 18]{18, 1}"], &steps);
    let mut good = inputs(&p, &[], 7);
    let c = compiled(&p, 1);
    execute(&c, &good).unwrap();
    good[1].values[6] = Scalar::Int(-3);
    let error = execute(&c, &good).unwrap_err().to_string();
    assert_eq!(error, "`aten.second.default`: index -3 is out of bounds for dimension 1 with size 7");
}

#[test]
fn an_index_for_all_points_is_checked_before_its_row_is_read() {
    // Nothing of the address varies in any loop: a load that left the loops would read before the check.
    for (outer, inner) in [("[17]", ""), ("[]", ""), ("[5]", "30")] {
        let body = "v0: i64 = load b0[3]\n v1: i64 = check v0, [11] at 0\n v2: f32 = load b1[v1]\n";
        let point = outer.trim_matches(&['[', ']'][..]);
        let (at, size) = if point.is_empty() { ("", String::new()) } else { ("i0", "{1}".to_string()) };
        let steps = match inner {
            "" => format!("loop \"one\" outer {outer}\nstage []\n{body} v3: f32 = store b2[{at}], v2\n"),
            n => format!(
                "loop \"one\" outer {outer}\nacc0: f32 sum\nstage [{n}]\n{body} v3: f32 = reduce acc0, v2\nstage []\n \
                 v0: f32 = acc0\n v1: f32 = store b2[i0], v0\n"
            ),
        };
        let y = if point.is_empty() { "y f32[]{}".into() } else { format!("y f32[{point}]{size}") };
        let p = program("", &["ids i64[8]{1}", "x f32[11]{1}"], &[&y], &steps);
        let c = compiled(&p, 1);
        let mut all = inputs(&p, &[], 11);
        execute(&c, &all).unwrap();
        for bad in [1_000_000_000, -1_000_000_000, i64::MIN, 1 << 60] {
            all[0].values[3] = Scalar::Int(bad);
            assert!(matches!(execute(&c, &all), Err(ExecError::Index { index, .. }) if index == bad), "{p}");
        }
    }
    // An empty inner loop looks at no index.
    let body = "acc0: f32 sum\nstage [s0]\n v0: i64 = load b0[i0]\n v1: i64 = check v0, [11] at 0\n v2: f32 = load b1[v1, i1]\n \
        v3: f32 = reduce acc0, v2\nstage []\n v0: f32 = acc0\n v1: f32 = store b2[i0], v0\n";
    let steps = format!("loop \"none\" outer [9]\n{body}");
    let all = ["ids i64[9]{1}", "x f32[11, s0]{s0, 1}"];
    let p = program("symbol s0 \"n\" 0..=100\n", &all, &["y f32[9]{1}"], &steps);
    check(&p, &[40], 11);
    let mut none = inputs(&p, &[0], 11);
    none[0].values[4] = Scalar::Int(1_000_000_000);
    assert!(execute(&compiled(&p, 1), &none).unwrap()[0].values.iter().all(|v| v.as_f64() == 0.0));
}

#[test]
fn epilogues_of_templates_that_scatter() {
    let all = |ids: &str, a: &str, b: &str, y: &str, steps: &str| program("", &[ids, a, b], &[y], steps);
    let matmul = |dtype: &str, acc: &str, m: i64, k: i64| {
        let body = format!(
            "epilogue [{m}, 24]\n v0: i64 = load b0[i0]\n v1: i64 = check v0, [50] at 0\n v2: {acc} = template\n v3: {acc} = store b3[v1, i1], v2\n"
        );
        let steps = format!(
            "matmul \"product\" acc {acc}\na b1[{m}, {k}]{{{k}, 1}}+0\nb b2[{k}, 24]{{24, 1}}+0\n{body}"
        );
        let (a, b) = (format!("a {dtype}[{m}, {k}]{{{k}, 1}}"), format!("b {dtype}[{k}, 24]{{24, 1}}"));
        all(&format!("ids i64[{m}]{{1}}"), &a, &b, &format!("y {acc}[50, 24]{{24, 1}}"), &steps)
    };
    let text = matmul("f32", "f32", 40, 16);
    assert!(matches!(text.steps[0], Step::Matmul(_)));
    for (dtype, acc, m) in
        [("f32", "f32", 40), ("f32", "f32", 8), ("bf16", "f32", 40), ("f64", "f64", 40), ("i32", "i32", 40)]
    {
        let p = matmul(dtype, acc, m, 16);
        scatters(&p, 50);
    }
    for dtype in ["f32", "bf16", "f64"] {
        let body = "epilogue [1, 24, 5, 7]\n v0: i64 = load b0[i2, i3]\n v1: i64 = check v0, [50] at 0\n v2: f32 = template\n \
            v3: f32 = store b3[v1, i1], v2\n";
        let operands = "input b1[1, 3, 7, 9]{189, 63, 9, 1}+0\nweight b2[24, 3, 3, 3]{27, 9, 3, 1}+0\n\
            window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1\n";
        let acc = if dtype == "f64" { "f64" } else { "f32" };
        let steps = format!("conv \"window\" acc {acc}\n{operands}{body}").replace("f32", acc);
        let (x, w) = (
            format!("x {dtype}[1, 3, 7, 9]{{189, 63, 9, 1}}"),
            format!("w {dtype}[24, 3, 3, 3]{{27, 9, 3, 1}}"),
        );
        scatters(&all("ids i64[5, 7]{7, 1}", &x, &w, &format!("y {acc}[50, 24]{{24, 1}}"), &steps), 50);
        let body = "epilogue [1, 2, 9, 24]\n v0: i64 = load b0[i1, i2]\n v1: i64 = check v0, [50] at 0\n v2: f32 = template\n \
            v3: f32 = store b3[v1, i3], v2\n";
        let operands = "q b1[1, 2, 9, 8]{144, 72, 8, 1}+0\nk b1[1, 2, 9, 8]{144, 72, 8, 1}+0\nv b2[1, 2, 9, 24]{432, 216, 24, 1}+0\n";
        let steps = format!("attention \"heads\" acc {acc} scale 0.5\n{operands}{body}").replace("f32", acc);
        let (q, v) = (
            format!("q {dtype}[1, 2, 9, 8]{{144, 72, 8, 1}}"),
            format!("v {dtype}[1, 2, 9, 24]{{432, 216, 24, 1}}"),
        );
        scatters(&all("ids i64[2, 9]{9, 1}", &q, &v, &format!("y {acc}[50, 24]{{24, 1}}"), &steps), 50);
    }
}

/// As `check`, where several rows may go to one place: good indices differ.
fn scatters(p: &Program, size: i64) {
    let mut good = inputs(p, &[], size);
    let count = good[0].values.len();
    good[0].values.iter_mut().enumerate().for_each(|(k, v)| *v = Scalar::Int((k as i64 * 3) % size));
    for threads in [1, 3] {
        let c = compiled(p, threads);
        let before = execute(&c, &good).unwrap();
        for at in [0, 7, count / 2, count - 1] {
            for bad in [-1, size, 1_000_000_000, i64::MIN] {
                let mut inputs = good.clone();
                inputs[0].values[at] = Scalar::Int(bad);
                let error = execute(&c, &inputs).err();
                assert!(
                    matches!(error, Some(ExecError::Index { index, .. }) if index == bad),
                    "{error:?}\n{p}"
                );
            }
        }
        let after = execute(&c, &good).unwrap();
        for row in good[0].values.iter().map(|v| v.as_i64() as usize) {
            assert_eq!(before[0].values[row * 24..][..24], after[0].values[row * 24..][..24], "{p}");
        }
    }
}

#[test]
fn steps_in_loops_and_together() {
    let take = "loop \"take\" outer [33]\nstage []\n v0: i64 = load b0[i0]\n v1: i64 = check v0, [11] at 0\n v2: f32 = load b1[v1]\n \
        v3: f32 = store b2[i0], v2\n";
    let other = "loop \"other\" outer [40000]\nstage []\n v0: f32 = load b1[i0 % 11]\n v1: f32 = exp v0\n v2: f32 = store b3[i0], v1\n";
    let add = "loop \"add\" outer [33]\nstage []\n v0: i64 = load b0[i0]\n v1: i64 = check v0, [11] at 1\n v2: f32 = const 1.0\n \
        v3: f32 = store_add b4[v1], v2\n";
    let zero = "loop \"zero\" outer [11]\nstage []\n v0: f32 = const 0.0\n v1: f32 = store b4[i0], v0\n";
    let together = format!("{zero}together \"all\"\ndo:\n{take}{other}{add}end\n");
    let outs = ["y f32[33]{1}", "z f32[40000]{1}", "sum f32[11]{1}"];
    check(&program("", &["ids i64[33]{1}", "x f32[11]{1}"], &outs, &together), &[], 11);
    let looped = format!("{zero}{other}for \"turns\" s0 [3]\ndo:\n{take}{add}end\n");
    let symbol = "symbol s0 \"i\" 0.. unbacked\n";
    check(&program(symbol, &["ids i64[33]{1}", "x f32[11]{1}"], &outs, &looped), &[], 11);
}

#[test]
fn many_calls_at_once_have_their_own_errors() {
    let body = "v0: i64 = load b0[i0]\n v1: i64 = check v0, [11] at 0\n v2: f32 = load b1[v1, i1]\n v3: f32 = store b2[i0, i1], v2\n";
    let steps = format!("loop \"rows\" outer [600, 64]\nstage []\n{body}");
    let all = ["ids i64[600]{1}", "table f32[11, 64]{64, 1}"];
    let p = program("", &all, &["y f32[600, 64]{64, 1}"], &steps);
    let (c, good) = (compiled(&p, 2), inputs(&p, &[], 11));
    let wanted = bits(&execute(&c, &good).unwrap());
    std::thread::scope(|s| {
        for t in 0..8i64 {
            let (c, good, wanted) = (&c, &good, &wanted);
            s.spawn(move || {
                for turn in 0..60i64 {
                    if (t + turn) % 2 == 0 {
                        assert_eq!(bits(&execute(c, good).unwrap()), *wanted);
                        continue;
                    }
                    let (mut bad, index) = (good.clone(), 1_000_000_000 + t * 1000 + turn);
                    bad[0].values[(turn * 37 % 600) as usize] = Scalar::Int(index);
                    let error = execute(c, &bad).err();
                    assert!(
                        matches!(error, Some(ExecError::Index { index: i, .. }) if i == index),
                        "{error:?}"
                    );
                }
            });
        }
    });
}

#[test]
fn errors_and_saved_code_at_the_boundary_of_plugins() {
    let body = "v0: i64 = load b0[i0]\n v1: i64 = check v0, [11] at 0\n v2: f32 = load b1[v1, i1]\n v3: f32 = store b2[i0, i1], v2\n";
    let steps = format!("loop \"rows\" outer [9, 20]\nstage []\n{body}");
    let p = program("", &["ids i64[9]{1}", "x f32[11, 20]{20, 1}"], &["y f32[9, 20]{20, 1}"], &steps);
    let (backend, bytes) = (CpuBackend::open(Host::NONE).unwrap(), p.to_bytes());
    let options = Options::resolve(&backend.describe().options, &[("threads", "1")]).unwrap();
    let program = ProgramBytes { ir: IrVersion::kernel_ir(IR_MAJOR, IR_MINOR), bytes: &bytes };
    let device = DeviceId { device_type: DL_CPU, device_id: 0 };
    let made = backend.compile(&CompileRequest { program, device, mode: "default", options }).unwrap();
    let payload = made.save_artifact().unwrap();
    let loaded = backend.load_artifact(&Artifact { payload: &payload, device }).unwrap();
    for code in [made, loaded] {
        let x = [0.5f32; 220];
        for (ids, bad) in [([3i64; 9], None), ([11; 9], Some(11)), ([-1; 9], Some(-1)), ([10; 9], None)] {
            let views = [
                TensorView::from_slice(&ids, DType::I64, &[9], &[1]).unwrap(),
                TensorView::from_slice(&x, DType::F32, &[11, 20], &[20, 1]).unwrap(),
            ];
            let result = code.execute(&views, &Constants::NONE, Stream(std::ptr::null_mut()));
            let Some(bad) = bad else {
                assert!(result.is_ok());
                continue;
            };
            let error = result.err().unwrap();
            assert_eq!((error.kind, error.node.as_deref()), (ErrorKind::InvalidArgument, Some("rows")));
            let at = "`aten.first.default` (model.py:3): index";
            assert_eq!(error.message, format!("{at} {bad} is out of bounds for dimension 0 with size 11"));
        }
    }
}

/// Runs with the caller's memory of input 1 in place; the call's error, and what the memory holds then.
fn in_place(c: &Compiled, ids: &[i64], x: &[f32], strides: &[i64]) -> (Option<ExecError>, Vec<f32>) {
    let mut memory = x.to_vec();
    let (first, sizes) = (memory.as_mut_ptr(), [memory.len() as i64 / strides[0]]);
    // SAFETY: the memory is this call's, and is read again only after it.
    let shared = unsafe { std::slice::from_raw_parts(first, memory.len()) };
    let count = [ids.len() as i64];
    let views = [
        TensorView::from_slice(ids, DType::I64, &count, &[1]).unwrap(),
        TensorView::from_slice(shared, DType::F32, &sizes, strides).unwrap(),
    ];
    let error = c.execute(&views).err();
    (error, memory)
}

#[test]
fn inputs_written_in_place_are_whole_or_named() {
    // The check is of 6 places, the memory has 10: what lies after must stay.
    let scatter = "loop \"scatter\" outer [20]\nstage []\n v0: i64 = load b0[i0]\n v1: i64 = check v0, [6] at 1\n v2: f32 = const 1.0\n \
        v3: f32 = store_add b3[v1], v2\n";
    let take = "loop \"take\" outer [20]\nstage []\n v0: i64 = load b0[i0]\n v1: i64 = check v0, [6] at 0\n v2: f32 = load b1[v1]\n \
        v3: f32 = store b2[i0], v2\n";
    let build = |steps: &str| {
        let text = format!(
            "kir 1.6\nprogram \"p\"\nsite \"aten.take.default\" \"\" dim 0\nsite \"aten.scatter_add.default\" \"\" dim 0\n\
             buffer b0 \"ids\" i64[20]{{1}}+0 input 0\nbuffer b1 \"x\" f32[10]{{1}}+0 input 1\nbuffer b2 \"y\" f32[20]{{1}}+0 output\n\
             buffer b3 \"new\" f32[10]{{1}}+0 view b1\ninput \"ids\" b0\ninput \"x\" b1 written\noutput \"y\" b2[20]{{1}}+0\n\
             init:\nsteps:\n{steps}plan bytes 0:\n"
        );
        let p: Program = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        kernel_ir::verify(&p).unwrap();
        compiled(&p, 1)
    };
    let x: Vec<f32> = (0..10).map(|k| k as f32).collect();
    let (late, early) = (
        build(&format!("{take}{scatter}")),
        build(&format!("{scatter}{}", take.replace("load b1", "load b3"))),
    );
    let good: Vec<i64> = (0..20).map(|k| k % 6).collect();
    for bad in [6, 7, 9, -1, 10, 1_000_000_000, i64::MIN] {
        let mut ids = good.clone();
        ids[13] = bad;
        let (error, memory) = in_place(&late, &ids, &x, &[1]);
        let error = error.unwrap().to_string();
        assert!(error.starts_with("`aten.take.default`: index"), "{error}");
        assert!(error.ends_with("; the inputs that are written in place are as before"), "{error}");
        assert_eq!(memory, x);
        let (error, memory) = in_place(&early, &ids, &x, &[1]);
        let error = error.unwrap().to_string();
        assert!(error.starts_with("`aten.scatter_add.default`: index"), "{error}");
        assert!(error.ends_with("; written in place, and now partly written: `x`"), "{error}");
        assert_eq!(memory[6..], x[6..], "places behind the size");
        // A tensor of other strides is copied, and the copy goes back only after success.
        let apart: Vec<f32> = (0..20).map(|k| k as f32).collect();
        let (error, memory) = in_place(&early, &ids, &apart, &[2]);
        let error = error.unwrap().to_string();
        assert!(error.ends_with("; the inputs that are written in place are as before"), "{error}");
        assert_eq!(memory, apart);
    }
    let (error, memory) = in_place(&early, &good, &x, &[1]);
    assert!(error.is_none());
    assert_eq!(memory[..6], [4.0, 5.0, 5.0, 6.0, 7.0, 8.0]);
}
