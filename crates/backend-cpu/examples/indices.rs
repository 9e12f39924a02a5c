//! What checks of indices from data cost: each program with its checks and without, in turn, the least time of all rounds.
//! `cargo run --release --example indices [threads] [rounds]`. Not a judge of anything but this machine.

use std::time::Instant;

use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{Atom, DType};
use kernel_ir::Program;
use plugin_sdk::TensorView;

const TOKENS: i64 = 16 * 128;
const WORDS: i64 = 30522;

/// A program whose input 0 holds indices below the size of its check.
fn program(ids: &str, sizes: [&str; 2], x: &str, y: &str, size: i64, steps: &str) -> Program {
    let text = format!(
        "kir 1.6\nprogram \"indices\"\nsite \"aten.index.default\" \"\" dim 0\nbuffer b0 \"ids\" {ids}+0 input 0\n\
         buffer b1 \"x\" {x}+0 input 1\nbuffer b2 \"y\" {y}+0 output\ninput \"ids\" b0\ninput \"x\" b1\n\
         output \"y\" b2[{}]{{{}}}+0\ninit:\nsteps:\n{}plan bytes 0:\n",
        sizes[0],
        sizes[1],
        steps.replace("CHECK", &format!("check v0, [{size}] at 0"))
    );
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn programs() -> Vec<(&'static str, Program, i64)> {
    let rows = "loop \"rows\" outer [2048, 384]\nstage []\nv0: i64 = load b0[i0]\nv1: i64 = CHECK\nv2: f32 = load b1[v1, i1]\n\
        v3: f32 = store b2[i0, i1], v2\n";
    let narrow = rows.replace("v0: i64 = load b0[i0]", "v4: i32 = load b0[i0]");
    let narrow = narrow.replace("v4: i32", "v0: i32").replace("v1: i64 = CHECK", "v1: i64 = cast v0\nv2: i64 = check v1, [30522] at 0");
    let narrow = narrow.replace("v2: f32 = load b1[v1, i1]\nv3: f32 = store b2[i0, i1], v2", "v3: f32 = load b1[v2, i1]\nv4: f32 = store b2[i0, i1], v3");
    let along = |n: &str| {
        format!(
            "loop \"along\" outer [2048, {n}]\nstage []\nv0: i64 = load b0[i0, i1]\nv1: i64 = CHECK\nv2: f32 = load b1[i0, v1]\n\
             v3: f32 = store b2[i0, i1], v2\n"
        )
    };
    let add = "loop \"zero\" outer [30522, 384]\nstage []\nv0: f32 = const 0.0\nv1: f32 = store b2[i0, i1], v0\n\
        loop \"add\" outer [2048, 384]\nstage []\nv0: i64 = load b0[i0, i1]\nv1: i64 = CHECK\nv2: f32 = load b1[i0, i1]\n\
        v3: f32 = store_add b2[v1, i1], v2\n";
    let small = "loop \"zero\" outer [512, 384]\nstage []\nv0: f32 = const 0.0\nv1: f32 = store b2[i0, i1], v0\n\
        loop \"add\" outer [2048, 384]\nstage []\nv0: i64 = load b0[i0, i1]\nv1: i64 = CHECK\nv2: f32 = load b1[i0, i1]\n\
        v3: f32 = store_add b2[v1, i1], v2\n";
    let put = "loop \"zero\" outer [30522, 384]\nstage []\nv0: f32 = const 0.0\nv1: f32 = store b2[i0, i1], v0\n\
        loop \"put\" outer [2048, 384]\nstage []\nv0: i64 = load b0[i0]\nv1: i64 = CHECK\nv2: f32 = load b1[i0, i1]\n\
        v3: f32 = store b2[v1, i1], v2\n";
    let flat = "loop \"flat\" outer [786432]\nstage []\nv0: i64 = load b0[i0]\nv1: i64 = CHECK\nv2: f32 = load b1[v1]\n\
        v3: f32 = store b2[i0], v2\n";
    let few = "loop \"few\" outer [4096]\nstage []\nv0: i64 = load b0[i0]\nv1: i64 = CHECK\nv2: f32 = load b1[v1]\n\
        v3: f32 = store b2[i0], v2\n";
    let (table, tokens) = ("f32[30522, 384]{384, 1}", "f32[2048, 384]{384, 1}");
    let (one, all, whole) = ("i64[2048]{1}", "i64[2048, 384]{384, 1}", ["2048, 384", "384, 1"]);
    vec![
        ("embedding [30522 x 384], 2048 tokens", program(one, whole, table, tokens, WORDS, rows), TOKENS),
        ("the same, i32", program("i32[2048]{1}", whole, table, tokens, WORDS, &narrow), TOKENS),
        ("embedding [512 x 384] (in cache)", program(one, whole, "f32[512, 384]{384, 1}", tokens, 512, rows), TOKENS),
        ("gather last dim [2048 x 1000]", program(all, whole, "f32[2048, 1000]{1000, 1}", tokens, 1000, &along("384")), TOKENS * 384),
        ("gather flat of 64 Ki", program("i64[786432]{1}", ["786432", "1"], "f32[65536]{1}", "f32[786432]{1}", 65536, flat), 786_432),
        ("gather flat of 1 Ki, 4096 (in cache)", program("i64[4096]{1}", ["4096", "1"], "f32[1024]{1}", "f32[4096]{1}", 1024, few), 4096),
        ("scatter_add into [30522 x 384]", program(all, ["30522, 384", "384, 1"], tokens, table, WORDS, add), TOKENS * 384),
        ("scatter_add into [512 x 384]", program(all, ["512, 384", "384, 1"], tokens, "f32[512, 384]{384, 1}", 512, small), TOKENS * 384),
        ("index_put rows of [30522 x 384]", program(one, ["30522, 384", "384, 1"], tokens, table, WORDS, put), TOKENS),
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

fn main() {
    let number = |n: usize, default: usize| std::env::args().nth(n).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (threads, rounds) = (number(1, 1), number(2, 15));
    println!("{:40} {:>12} {:>12} {:>8}", "microseconds, least", "unchecked", "checked", "more");
    for (name, p, count) in programs() {
        let make = |unchecked_indices| {
            let p = Program { unchecked_indices, ..p.clone() };
            Compiled::new(p, ExecOptions { threads }).unwrap_or_else(|e| panic!("{e}"))
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
        let numbers = |n: usize| -> Vec<i64> {
            let buffer = &p.buffers[p.inputs[n].buf];
            buffer.sizes.iter().chain(&buffer.strides).map(|e| e.as_const().unwrap_or(1)).collect()
        };
        let (a, b) = (numbers(0), numbers(1));
        let x = vec![1.5f32; b[..b.len() / 2].iter().product::<i64>() as usize];
        let (asz, ast) = a.split_at(a.len() / 2);
        let (bsz, bst) = b.split_at(b.len() / 2);
        let first = match p.buffers[p.inputs[0].buf].dtype {
            DType::I32 => TensorView::from_slice(&short, DType::I32, asz, ast),
            _ => TensorView::from_slice(&ids, DType::I64, asz, ast),
        };
        let views = [first, TensorView::from_slice(&x, DType::F32, bsz, bst)].map(|v| v.unwrap_or_else(|e| panic!("{e}")));
        let mut least = [f64::INFINITY; 2];
        let turns = if count < 10_000 && size <= 1024 { 200 } else { 4 };
        for round in 0..rounds * 2 {
            let which = round % 2;
            let start = Instant::now();
            for _ in 0..turns {
                compiled[which].execute(&views).unwrap_or_else(|e| panic!("{e}"));
            }
            let each = start.elapsed().as_secs_f64() * 1e6 / turns as f64;
            least[which] = least[which].min(each);
        }
        let more = (least[1] / least[0] - 1.0) * 100.0;
        println!("{name:40} {:12.1} {:12.1} {more:7.1}%", least[0], least[1]);
    }
}
