//! The memory plan: which buffers may be written over one that is read for the last time, and that no other two share memory
//! while both live.

use kernel_ir::Program;

/// `x → a → b → y` in three loops of 64 elements. `last` is the body of the second, which reads `a` (b1) and writes `b` (b2).
fn chain(b: &str, second: &str) -> Program {
    let text = format!(
        "kir 1.6
program \"chain\"
buffer b0 \"x\" f32[64]{{1}}+0 input 0
buffer b1 \"a\" f32[64]{{1}}+0 arena
buffer b2 \"b\" {b}+0 arena
buffer b3 \"y\" f32[64]{{1}}+0 output
input \"x\" b0
output \"y\" b3[64]{{1}}+0
init:
steps:
loop \"first\" outer [64]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = store b1[i0], v0
{second}
loop \"third\" outer [64]
  stage []
    v0: f32 = const 1
    v1: f32 = store b3[i0], v0
plan bytes 0:
  b1 live 0..1 at 0
  b2 live 1..1 at 256
"
    );
    let mut program: Program = text.parse().unwrap();
    program.plan = kernel_ir::ArenaPlan::of(&program);
    kernel_ir::verify(&program).unwrap();
    program
}

fn bytes(program: &Program) -> u64 {
    let (offsets, bytes) = program.plan.place(program, &|_| None).unwrap();
    assert_eq!(offsets.len(), program.plan.lives.len());
    bytes
}

fn second(body: &str) -> String {
    format!("loop \"second\" outer [64]\n  stage []\n{body}")
}

#[test]
fn a_loop_writes_over_what_it_reads_at_the_same_place() {
    let body = "    v0: f32 = load b1[i0]\n    v1: f32 = neg v0\n    v2: f32 = store b2[i0], v1";
    let program = chain("f32[64]{1}", &second(body));
    assert_eq!(bytes(&program), 256);
    // The plan in the program's bytes keeps them apart.
    assert_eq!(program.plan.bytes, Some(512));
}

#[test]
fn another_dtype_of_the_same_width_is_no_hindrance() {
    let body = "    v0: f32 = load b1[i0]\n    v1: i32 = cast v0\n    v2: i32 = store b2[i0], v1";
    assert_eq!(bytes(&chain("i32[64]{1}", &second(body))), 256);
}

#[test]
fn another_place_a_second_stage_and_another_width_are_hindrances() {
    let reversed = "    v0: f32 = load b1[-i0 + 63]\n    v1: f32 = store b2[i0], v0";
    assert_eq!(bytes(&chain("f32[64]{1}", &second(reversed))), 512);
    let late = "    v0: f32 = const 2\n    v1: f32 = store b2[i0], v0\n    v2: f32 = load b1[i0]";
    assert_eq!(bytes(&chain("f32[64]{1}", &second(late))), 512);
    let wider = "    v0: f32 = load b1[i0]\n    v1: f64 = cast v0\n    v2: f64 = store b2[i0], v1";
    assert_eq!(bytes(&chain("f64[64]{1}", &second(wider))), 768);
    let twice = "    v0: f32 = load b1[i0]\n    v1: f32 = load b1[0]\n    v2: f32 = add v0, v1\n    v3: f32 = store b2[i0], v2";
    assert_eq!(bytes(&chain("f32[64]{1}", &second(twice))), 512);
    let stages = "loop \"second\" outer [64]\n  stage []\n    v0: f32 = load b1[i0]\n  stage []\n    v0: f32 = load b1[i0]\n    v1: f32 = store b2[i0], v0";
    assert_eq!(bytes(&chain("f32[64]{1}", stages)), 512);
}

#[test]
fn what_is_read_later_is_kept() {
    let body = "    v0: f32 = load b1[i0]\n    v1: f32 = store b2[i0], v0";
    let mut program = chain("f32[64]{1}", &second(body));
    let again = program.steps[1].clone();
    program.steps.push(again);
    program.plan = kernel_ir::ArenaPlan::of(&program);
    assert_eq!(bytes(&program), 512);
}

/// The bytes of the arena where epilogues of templates may write over what they read.
fn bytes_over_operands(program: &Program) -> u64 {
    program.plan.place_over_operands(program, &|_| None).unwrap().1
}

/// A product of `a` and the input whose epilogue adds `addend` to it.
fn product(addend: &str) -> Program {
    let body = format!(
        "matmul \"second\" acc f32
  a b1[8, 8]{{8, 1}}+0
  b b0[8, 8]{{8, 1}}+0
  epilogue [8, 8]
    v0: f32 = template
    v1: f32 = load {addend}
    v2: f32 = add v0, v1
    v3: f32 = store b2[8*i0 + i1], v2"
    );
    chain("f32[64]{1}", &body)
}

#[test]
fn an_epilogue_writes_over_what_it_adds_and_never_over_what_is_multiplied() {
    let factor = product("b1[8*i0 + i1]");
    assert_eq!(bytes_over_operands(&factor), 512);
    // The same with a product of other memory.
    let text = product("b1[8*i0 + i1]").to_string().replace("  a b1[8, 8]", "  a b0[8, 8]");
    let mut addend: Program = text.parse().unwrap();
    addend.plan = kernel_ir::ArenaPlan::of(&addend);
    kernel_ir::verify(&addend).unwrap();
    assert_eq!(bytes_over_operands(&addend), 256);
    // Executors that store sums there first keep them apart.
    assert_eq!(bytes(&addend), 512);
    let elsewhere = text.replace("load b1[8*i0 + i1]", "load b1[8*i1 + i0]");
    let mut elsewhere: Program = elsewhere.parse().unwrap();
    elsewhere.plan = kernel_ir::ArenaPlan::of(&elsewhere);
    assert_eq!(bytes_over_operands(&elsewhere), 512);
}

/// A part of one buffer, at whose place another one's part is stored: both wholes may be one memory, and code that names the
/// parts must know it.
#[test]
fn parts_of_buffers_share_memory_where_the_whole_do() {
    let text = "kir 1.6
program \"parts\"
buffer b0 \"x\" f32[64]{1}+0 input 0
buffer b1 \"a\" f32[2, 64]{64, 1}+0 arena
buffer b2 \"a_part\" f32[64]{1}+64 view b1
buffer b3 \"b\" f32[2, 64]{64, 1}+0 arena
buffer b4 \"b_part\" f32[64]{1}+64 view b3
buffer b5 \"y\" f32[64]{1}+0 output
input \"x\" b0
output \"y\" b5[64]{1}+0
init:
steps:
loop \"first\" outer [2, 64]
  stage []
    v0: f32 = load b0[i1]
    v1: f32 = store b1[i0, i1], v0
loop \"second\" outer [64]
  stage []
    v0: f32 = load b2[i0]
    v1: f32 = neg v0
    v2: f32 = store b4[i0], v1
loop \"third\" outer [64]
  stage []
    v0: f32 = load b4[i0]
    v1: f32 = store b5[i0], v0
plan bytes 0:
  b1 live 0..1 at 0
  b3 live 1..2 at 512
";
    let planned = |text: &str| {
        let mut program: Program = text.parse().unwrap();
        program.plan = kernel_ir::ArenaPlan::of(&program);
        kernel_ir::verify(&program).unwrap();
        program
    };
    let program = planned(text);
    assert_eq!(bytes(&program), 512);
    let of = |n: u32| kernel_ir::BufId(n);
    assert!(program.plan.may_share(&program, of(2), of(4)));
    assert!(program.plan.may_share(&program, of(4), of(1)));
    // Parts of one buffer are apart, or the same to every reader.
    assert!(!program.plan.may_share(&program, of(1), of(2)));
    // From another place than it is stored to.
    assert_eq!(bytes(&planned(&text.replace("a_part\" f32[64]{1}+64", "a_part\" f32[64]{1}+0"))), 1024);
}
