//! The cost of checking indices from data: each program with its checks and without, in turn, the least time of all rounds.
//! `cargo run --release --example indices [threads] [rounds] [part of a name]`. Not a judge of anything but this machine.

use std::time::Instant;

use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{Atom, DType};
use kernel_ir::Program;
use plugin_sdk::TensorView;

const TOKENS: i64 = 16 * 128;
const WORDS: i64 = 30522;

/// A program whose input 0 holds indices below `size`. It computes `y`, or stores to it in place as `b3`.
fn program(ids: &str, x: &str, y: &str, size: i64, steps: &str) -> Program {
    let mut text = format!(
        "kir 1.6\nprogram \"indices\"\nsite \"aten.index.default\" \"\" dim 0\nbuffer b0 \"ids\" {ids}+0 input 0\n\
         buffer b1 \"x\" {x}+0 input 1\n"
    );
    let layout = &y[y.find('[').unwrap_or(0)..];
    text += &match steps.contains("b3") {
        true => format!(
            "buffer b2 \"y\" {y}+0 input 2\nbuffer b3 \"new\" {y}+0 view b2\ninput \"ids\" b0\ninput \"x\" b1\n\
             input \"y\" b2 written\n"
        ),
        false => format!(
            "buffer b2 \"y\" {y}+0 output\ninput \"ids\" b0\ninput \"x\" b1\noutput \"y\" b2{layout}+0\n"
        ),
    };
    text += &format!("init:\nsteps:\n{}plan bytes 0:\n", steps.replace("SIZE", &size.to_string()));
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A loop over `outer`: `load` gives `v0`, the index; `take` loads `v2`; `store` ends it.
fn looped(outer: &str, load: &str, take: &str, store: &str) -> String {
    format!(
        "loop \"k\" outer [{outer}]\nstage []\nv0: i64 = {load}\nv1: i64 = check v0, [SIZE] at 0\nv2: f32 = {take}\nv3: f32 = {store}\n"
    )
}

fn programs() -> Vec<(&'static str, Program, i64)> {
    let rows = looped("2048, 384", "load b0[i0]", "load b1[v1, i1]", "store b2[i0, i1], v2");
    let along = looped("2048, 384", "load b0[i0, i1]", "load b1[i0, v1]", "store b2[i0, i1], v2");
    let flat = |n: &str| looped(n, "load b0[i0]", "load b1[v1]", "store b2[i0], v2");
    let add = looped("2048, 384", "load b0[i0, i1]", "load b1[i0, i1]", "store_add b3[v1, i1], v2");
    let put = looped("2048, 384", "load b0[i0]", "load b1[i0, i1]", "store b3[v1, i1], v2");
    let points = looped("65536", "load b0[i0]", "load b1[i0]", "store b3[v1], v2");
    let narrow = "loop \"k\" outer [2048, 384]\nstage []\nv0: i32 = load b0[i0, i1]\nv1: i64 = cast v0\n\
        v2: i64 = check v1, [SIZE] at 0\nv3: f32 = load b1[i0, v2]\nv4: f32 = store b2[i0, i1], v3\n";
    let wrapped = "loop \"k\" outer [2048, 384]\nstage []\nv0: i64 = load b0[i0, i1]\nv1: i64 = const 0\nv2: bool = lt v0, v1\n\
        v3: i64 = const SIZE\nv4: i64 = add v0, v3\nv5: i64 = select v2, v4, v0\nv6: i64 = check v5, [SIZE] at 0\n\
        v7: f32 = load b1[i0, v6]\nv8: f32 = store b2[i0, i1], v7\n";
    let (table, tokens, cached) =
        ("f32[30522, 384]{384, 1}", "f32[2048, 384]{384, 1}", "f32[512, 384]{384, 1}");
    let (one, all, wide) = ("i64[2048]{1}", "i64[2048, 384]{384, 1}", "f32[2048, 1000]{1000, 1}");
    vec![
        ("embedding [30522 x 384], 2048 tokens", program(one, table, tokens, WORDS, &rows), TOKENS),
        ("embedding [512 x 384] (in cache)", program(one, cached, tokens, 512, &rows), TOKENS),
        ("gather last dim [2048 x 1000]", program(all, wide, tokens, 1000, &along), TOKENS * 384),
        (
            "the same, last dim, into given memory",
            program(all, wide, tokens, 1000, &along.replace("b2", "b3")),
            TOKENS * 384,
        ),
        ("the same, negative ones wrapped", program(all, wide, tokens, 1000, wrapped), TOKENS * 384),
        ("the same, i32", program("i32[2048, 384]{384, 1}", wide, tokens, 1000, narrow), TOKENS * 384),
        (
            "gather 65536 of 65536",
            program("i64[65536]{1}", "f32[65536]{1}", "f32[65536]{1}", 65536, &flat("65536")),
            65536,
        ),
        (
            "gather 4096 of 1024 (in cache)",
            program("i64[4096]{1}", "f32[1024]{1}", "f32[4096]{1}", 1024, &flat("4096")),
            4096,
        ),
        ("scatter_add into [30522 x 384]", program(all, tokens, table, WORDS, &add), TOKENS * 384),
        ("scatter_add into [512 x 384]", program(all, tokens, cached, 512, &add), TOKENS * 384),
        ("index_put rows of [30522 x 384]", program(one, tokens, table, WORDS, &put), TOKENS),
        (
            "index_put 65536 points",
            program("i64[65536]{1}", "f32[65536]{1}", "f32[65536]{1}", 65536, &points),
            65536,
        ),
    ]
}

fn size_of_check(p: &Program) -> i64 {
    let insts = p.steps.iter().flat_map(|s| s.bodies()).flat_map(|(_, insts)| insts);
    let size = insts.filter_map(|i| match &i.kind {
        kernel_ir::InstKind::Check { size, .. } => size.eval(&|_: &Atom| None),
        _ => None,
    });
    size.max().unwrap_or(1)
}

/// Nanoseconds of CPU time of this process's threads, where the system reports them; else wall-clock time. On a busy
/// machine most of the elapsed time is waiting for a processor.
fn busy(start: Instant) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let each = tasks.filter_map(|t| {
        let text = std::fs::read_to_string(t.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    match each.sum() {
        0 => start.elapsed().as_nanos() as u64,
        ns => ns,
    }
}

fn main() {
    let number =
        |n: usize, default: usize| std::env::args().nth(n).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (threads, rounds) = (number(1, 1), number(2, 15));
    println!("{:40} {:>12} {:>12} {:>8}", "microseconds, least", "unchecked", "checked", "more");
    let wanted = std::env::args().nth(3).unwrap_or_default();
    for (name, p, count) in programs().into_iter().filter(|p| p.0.contains(&wanted)) {
        let make = |unchecked_indices| {
            let p = Program { unchecked_indices, ..p.clone() };
            Compiled::new(p, ExecOptions { threads, ..ExecOptions::default() })
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let compiled = [make(true), make(false)];
        let size = size_of_check(&p);
        // A generator of numbers that is the same on every machine.
        let mut state = 1u64;
        let mut ids: Vec<i64> = Vec::new();
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ids.push((state >> 33) as i64 % size);
        }
        let short: Vec<i32> = ids.iter().map(|i| *i as i32).collect();
        let numbers: Vec<Vec<i64>> = p
            .inputs
            .iter()
            .map(|i| {
                let buffer = &p.buffers[i.buf];
                buffer.sizes.iter().chain(&buffer.strides).map(|e| e.as_const().unwrap_or(1)).collect()
            })
            .collect();
        let floats = |n: &Vec<i64>| vec![1.5f32; n[..n.len() / 2].iter().product::<i64>() as usize];
        let memory: Vec<Vec<f32>> = numbers[1..].iter().map(floats).collect();
        let views = numbers.iter().enumerate().map(|(n, shape)| {
            let (sizes, strides) = shape.split_at(shape.len() / 2);
            let view = match (n, p.buffers[p.inputs[0].buf].dtype) {
                (0, DType::I32) => TensorView::from_slice(&short, DType::I32, sizes, strides),
                (0, _) => TensorView::from_slice(&ids, DType::I64, sizes, strides),
                _ => TensorView::from_slice(&memory[n - 1], DType::F32, sizes, strides),
            };
            view.unwrap_or_else(|e| panic!("{e}"))
        });
        let views: Vec<TensorView<'_>> = views.collect();
        let mut least = [f64::INFINITY; 2];
        let turns = if count <= 4096 { 100 } else { 2 };
        let origin = Instant::now();
        for round in 0..rounds * 2 {
            let which = round % 2;
            let start = busy(origin);
            for _ in 0..turns {
                compiled[which].execute(&views).unwrap_or_else(|e| panic!("{e}"));
            }
            let each = (busy(origin) - start) as f64 / 1e3 / turns as f64;
            least[which] = least[which].min(each);
        }
        let more = (least[1] / least[0] - 1.0) * 100.0;
        println!("{name:40} {:12.1} {:12.1} {more:7.1}%", least[0], least[1]);
    }
}
