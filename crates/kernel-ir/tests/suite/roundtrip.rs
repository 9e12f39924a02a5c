//! Properties of both forms of a program over random programs and random damage: what is written reads back equal, and no
//! text and no bytes whatever make the readers or the verifier panic.

#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{self, Rng};
use kernel_ir::{Program, verify};

/// Random programs; every one passes the verifier, or the generator is wrong.
fn programs(count: u64) -> impl Iterator<Item = (u64, Program)> {
    (0..count).map(|seed| (seed, common::program(&mut Rng::new(seed))))
}

/// Equality by bits: a `NaN` scale is equal to itself.
fn same(a: &Program, b: &Program) -> bool {
    a.to_bytes() == b.to_bytes()
}

#[test]
fn random_programs_read_back_from_text() {
    for (seed, program) in programs(3000) {
        verify(&program).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{program}"));
        let text = program.to_string();
        let read: Program = text.parse().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert!(same(&read, &program), "seed {seed}:\n{text}\n{read}");
        assert_eq!(read.to_string(), text, "seed {seed}");
    }
}

#[test]
fn random_programs_read_back_from_bytes() {
    for (seed, program) in programs(3000) {
        let bytes = program.to_bytes();
        let read = Program::from_bytes(&bytes).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{program}"));
        assert_eq!(read.to_string(), program.to_string(), "seed {seed}");
        assert_eq!(read.to_bytes(), bytes, "seed {seed}");
    }
}

/// Whatever reads must be judged without a panic; what the verifier accepts must still round-trip.
fn judge(program: &Program, counts: &mut [usize; 2]) {
    counts[0] += 1;
    if verify(program).is_ok() {
        counts[1] += 1;
        let text = program.to_string();
        let read: Program = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert!(same(&read, program), "{text}\n{read}");
        assert!(same(&Program::from_bytes(&program.to_bytes()).unwrap(), program), "{text}");
    }
}

/// What a damaged place may say instead: ids and sizes beyond every table, and expressions that overflow.
const ABSURD: &[&str] = &[
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "(s0 - 9223372036854775807*s0 - 9*s0) // (-s0)",
    "((i0 // s0)*(s0 + s1) // s0)*(s0 + s1) // s0",
    "v4294967295",
    "i4294967295",
    "s4294967295",
    "b4294967295",
    "acc4294967295",
    "view b0",
    "bytes 0",
    "1 // 0",
    "min(max(s0, i0), v0)",
    "nan(0x7ff8000000000001)",
    "1e999",
];

#[test]
fn damaged_text_is_an_error_or_a_program() {
    let (mut rng, mut counts) = (Rng::new(11), [0; 2]);
    for (_, program) in programs(400) {
        let text = program.to_string();
        for _ in 0..20 {
            let mut damaged = text.clone().into_bytes();
            for _ in 0..=rng.below(2) {
                let at = rng.below(damaged.len());
                match rng.below(5) {
                    0 => damaged[at] = rng.pick(b"()[]{}\"\\,:=#-0129svbi.+*/% \n"),
                    1 => damaged.truncate(at.max(1)),
                    2 => drop(damaged.remove(at)),
                    _ => replace_number(&mut damaged, at, &mut rng),
                }
                if damaged.is_empty() {
                    damaged.push(b'k');
                }
            }
            if let Ok(program) = String::from_utf8_lossy(&damaged).parse::<Program>() {
                judge(&program, &mut counts);
            }
        }
    }
    assert!(
        counts[0] > 500 && counts[1] > 50 && counts[1] < counts[0],
        "the damage tests nothing: {counts:?}"
    );
}

/// Puts something absurd, or another number, in place of the next digits.
fn replace_number(text: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let Some(start) = text[at..].iter().position(u8::is_ascii_digit).map(|n| n + at) else { return };
    let len = text[start..].iter().take_while(|c| c.is_ascii_digit()).count();
    let new = if rng.flip() { rng.pick(ABSURD).to_string() } else { rng.below(12).to_string() };
    text.splice(start..start + len, new.into_bytes());
}

#[test]
fn damaged_bytes_are_an_error_or_a_program() {
    let (mut rng, mut counts) = (Rng::new(13), [0; 2]);
    for (_, program) in programs(400) {
        let bytes = program.to_bytes();
        for _ in 0..20 {
            let mut damaged = bytes.clone();
            for _ in 0..=rng.below(2) {
                let at = no_letter(&damaged, &mut rng);
                match rng.below(6) {
                    0 => damaged[at] ^= 1 << rng.below(8),
                    1 if rng.below(4) == 0 => damaged.truncate(at),
                    2 if rng.below(4) == 0 => drop(damaged.remove(at)),
                    // Headers of the longest arrays, texts, maps; large and negative numbers.
                    3 => damaged[at] = rng.pick(&[0xdd, 0xdf, 0xdb, 0xc6, 0xcf, 0xd3, 0xcb, 0xc0, 0xff]),
                    _ if damaged[at] < 12 => damaged[at] = rng.below(12) as u8,
                    _ => damaged[at] = rng.below(128) as u8,
                }
                if damaged.is_empty() {
                    damaged.push(b'F');
                }
            }
            if let Ok(program) = Program::from_bytes(&damaged) {
                judge(&program, &mut counts);
            }
        }
    }
    assert!(
        counts[0] > 300 && counts[1] > 50 && counts[1] < counts[0],
        "the damage tests nothing: {counts:?}"
    );
}

/// A place that is not a letter where one is found soon: damage to a field's name only makes the field missing.
fn no_letter(bytes: &[u8], rng: &mut Rng) -> usize {
    let place = |rng: &mut Rng| if bytes.is_empty() { 0 } else { rng.below(bytes.len()) };
    let letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_lowercase);
    (0..8).map(|_| place(rng)).find(|at| !letter(*at)).unwrap_or(0)
}

/// A loop over an expression, which must read quickly or be refused.
fn with_index(expr: &str) -> String {
    format!(
        "kir 1.0 program \"p\"\nbuffer b0 \"y\" f32[4]{{1}}+0 output\ninit: steps:\nloop \"k\" outer [4]\nstage []\n\
         v0: i64 = index {expr}\nplan bytes 0:"
    )
}

#[test]
fn absurd_expressions_are_refused() {
    assert!(verify(&with_index("i0 // 2").parse().unwrap()).is_ok());
    let doubling = (0..200).fold("i0".to_string(), |e, _| format!("({e} // s0)*(s0 + s1)"));
    let cases = [
        "(".repeat(100_000),
        "-".repeat(100_000),
        format!("i0{}", " // s0".repeat(100_000)),
        format!("i0{}", " % s0".repeat(100_000)),
        format!("i0{}", " // s0*(s0 + s1)".repeat(60)),
        format!("0{}", (0..100_000).map(|n| format!(" + s{n}")).collect::<String>()),
        format!("s0{}", "*s0".repeat(100_000)),
        format!("1{}", "*(s0 + s1 + s2)".repeat(100)),
        "min(s0, ".repeat(100_000),
        doubling,
    ];
    for case in cases {
        let error = with_index(&case).parse::<Program>().unwrap_err();
        assert!(error.line == 6, "{}: {error}", &case[..20]);
    }
}

#[test]
fn wide_shapes_are_refused_before_they_are_multiplied() {
    let wide = (0..300).map(|n| format!("s{n}")).collect::<Vec<_>>().join(" + ");
    let symbols: String = (0..300).map(|n| format!("symbol s{n} \"\" 1..\n")).collect();
    let text = format!(
        "kir 1.0 program \"p\"\n{symbols}buffer b0 \"y\" f32[{wide}]{{{wide}}}+0 output\ninit: steps: plan:"
    );
    let program: Program = text.parse().unwrap();
    assert!(verify(&program).unwrap_err().to_string().contains("too many terms"));
}
