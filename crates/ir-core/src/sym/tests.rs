//! Canonical form, ranges and text of symbolic expressions.

use super::*;

fn e(text: &str) -> SymExpr {
    text.parse().unwrap_or_else(|err| panic!("{text}: {err}"))
}

struct Loops(Vec<SymExpr>);

impl Bounds for Loops {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        (matches!(leaf, Atom::Sym(_)).then_some(1), None)
    }
    fn extent(&self, loop_var: u32) -> Option<SymExpr> {
        self.0.get(loop_var as usize).cloned()
    }
}

#[test]
fn sums_are_canonical() {
    assert_eq!(e("2*s0 - s0"), e("s0"));
    assert_eq!(e("(s0 + 1)*(s0 - 1)"), e("s0*s0 - 1"));
    assert_eq!(e("s1*s0"), e("s0*s1"));
    assert_eq!(e("s0 - s0"), SymExpr::ZERO);
}

#[test]
fn divisions_split_exactly() {
    assert_eq!(e("(4*i0 + i1) // 4"), e("i0 + i1 // 4"));
    assert_eq!(e("(4*i0 + i1) % 4"), e("i1 % 4"));
    assert_eq!(e("(s0*i0 + i1) // s0"), e("i0 + i1 // s0"));
    assert_eq!(e("(6*s0) // (2*s0)"), e("3"));
    assert_eq!(e("(s0*s1 + s0) // (s1 + 1)"), e("s0"));
    assert_eq!(e("(i0 // 2) // 3"), e("i0 // 6"));
    assert_eq!(e("-7 // 2"), e("-4"));
    assert_eq!(e("-7 % 2"), e("1"));
}

#[test]
fn ranges_remove_divisions() {
    let known = Loops(vec![e("8"), e("4"), e("s0")]);
    assert_eq!(e("(4*i0 + i1) // 4").simplify(&known), e("i0"));
    assert_eq!(e("(4*i0 + i1) % 4").simplify(&known), e("i1"));
    assert_eq!(e("(s0*i0 + i2) // s0").simplify(&known), e("i0"));
    assert_eq!(e("(s0*i0 + i2) % s0").simplify(&known), e("i2"));
    assert_eq!(e("(4*i2 + i1) // (4*s0)").simplify(&known), e("0"));
    assert_eq!(e("min(i0, 7)").simplify(&known), e("i0"));
    assert_eq!(e("i0 // 3").simplify(&known), e("i0 // 3"));
}

#[test]
fn a_divided_index_joins_again() {
    let known = Loops(vec![e("64"), e("768")]);
    assert_eq!(e("768*8*(i0 // 8) + 768*(i0 % 8) + i1").simplify(&known), e("768*i0 + i1"));
    assert_eq!(e("64*s0*(i0 // s0) + 64*(i0 % s0)").simplify(&known), e("64*i0"));
    assert_eq!(e("64*(i1 // 64) + i1 % 64").simplify(&known), e("i1"));
}

#[test]
fn text_reads_back() {
    for text in [
        "-(i0 // 2)",
        "3*(i0 % 4) - s1 + 2",
        "min(s0, 2*s1)",
        "(s0 + 1) // 2",
        "-s0 - 1",
        "s0*s0*i1",
        "(i0 // 3) % 5",
    ] {
        let once = e(text);
        assert_eq!(e(&once.to_string()), once, "{text} -> {once}");
    }
}

#[test]
fn random_expressions_keep_their_value() {
    let mut seed = 7u64;
    let mut next = |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    let known = Loops(vec![e("6"), e("5"), e("s0")]);
    for _ in 0..3000 {
        let leaves = [e("i0"), e("i1"), e("i2"), e("s0"), e("1"), e("3"), e("-2")];
        let mut x = leaves[next(7) as usize].clone();
        let s0 = next(4) as i64 + 1;
        let env = [next(6) as i64, next(5) as i64, next(s0 as u64) as i64];
        let leaf = |a: &Atom| match a {
            Atom::Sym(_) => Some(s0),
            Atom::Loop(i) => Some(env[*i as usize]),
            _ => None,
        };
        let mut expected = x.eval(&leaf).unwrap();
        for _ in 0..5 {
            let y = &leaves[next(7) as usize];
            let v = y.eval(&leaf).unwrap();
            let c = next(5) as i64 + 1;
            (x, expected) = match next(6) {
                0 => (&x + y, expected + v),
                1 => (&x - y, expected - v),
                2 => (&x * y, expected * v),
                3 => (x.floor_div(&c.into()), expected.div_euclid(c)),
                4 => (x.modulo(&c.into()), expected.rem_euclid(c)),
                _ => (x.sym_min(y), expected.min(v)),
            };
        }
        assert_eq!(x.eval(&leaf), Some(expected), "{x}");
        let simple = x.simplify(&known);
        assert_eq!(simple.eval(&leaf), Some(expected), "{x} -> {simple}");
        assert_eq!(e(&x.to_string()), x);
        let (lo, hi) = x.range(&known);
        assert!(
            lo.is_none_or(|lo| lo <= expected) && hi.is_none_or(|hi| hi >= expected),
            "{x}: {lo:?} {hi:?}"
        );
    }
}

#[test]
fn bad_text_is_an_error() {
    for text in ["", "s", "1 +", "(1", "1 // 0", "99999999999999999999", "x0", "min(1", &"(".repeat(1000)] {
        assert!(text.parse::<SymExpr>().is_err(), "{text}");
    }
}

#[test]
fn affine_parts() {
    let (coef, rest) = e("3*s0*i0 + i1 + 2").affine_in(&Atom::Loop(0)).unwrap();
    assert_eq!((coef, rest), (e("3*s0"), e("i1 + 2")));
    assert!(e("i0*i0").affine_in(&Atom::Loop(0)).is_none());
    assert!(e("i0 // 2").affine_in(&Atom::Loop(0)).is_none());
}

#[test]
fn the_ends_of_i64_read_back() {
    let min = SymExpr::from_i64(i64::MIN);
    let cases = [
        min.clone(),
        e("s0") + &min,
        e("s0") * &min,
        e("s0 + s1") * &min,
        min.floor_div(&e("s0")),
        e("s0").floor_div(&min),
        e("s0 // 2") * &min - e("s1"),
    ];
    for case in cases {
        assert_eq!(e(&case.to_string()), case, "{case}");
    }
    // The rest of `i64::MIN / -1` overflows.
    let _ = e("(0 - 9223372036854775807*s0 - 9*s0) // (-s0)");
    let _ = e("(0 - 9223372036854775807*s0 - 9*s0) % (-1)");
}

#[test]
fn hostile_text_is_refused_quickly() {
    let doubling = (0..60).fold("i0".to_string(), |x, _| format!("({x} // s0)*(s0 + s1)"));
    let cases = [
        doubling,
        format!("i0{}", " // s0 // s1".repeat(1000)),
        format!("s0{}", "*s0".repeat(5000)),
        (0..5000).map(|n| format!("s{n} + ")).collect::<String>() + "1",
        " ".repeat(1 << 18) + "1",
    ];
    for case in cases {
        assert!(case.parse::<SymExpr>().is_err(), "{}", &case[..40]);
    }
    // The deepest that reads prints and reads back.
    let deep = (0..64).fold("i0".to_string(), |x, n| format!("(2*({x}) + 1) // s{n}"));
    assert_eq!(e(&e(&deep).to_string()), e(&deep));
}

/// Symbols from 2 to 64, but the second, which has no end, and the third, of which nothing is known.
struct Ranges;

impl Bounds for Ranges {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        match leaf {
            Atom::Sym(SymId(1)) => (Some(2), None),
            Atom::Sym(SymId(2)) => (None, None),
            _ => (Some(2), Some(64)),
        }
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

#[test]
fn sizes_are_told_as_the_caller_sees_them() {
    let check = |text: &str, expected: Option<&str>| {
        let e: SymExpr = text.parse().unwrap();
        assert_eq!(e.allowed(&Ranges).as_deref(), expected, "{text}");
    };
    check("s0", Some("from 2 to 64"));
    check("s1", Some("at least 2"));
    check("2*s0", Some("a multiple of 2 from 4 to 128"));
    check("32*s1", Some("a multiple of 32, at least 64"));
    check("2*s0 + 1", Some("from 5 to 129 in steps of 2"));
    check("s0 - 2", Some("from 0 to 62"));
    check("3*s2", Some("a multiple of 3"));
    check("3*s2 + 4", Some("1 more than a multiple of 3"));
    check("7", Some("7"));
    check("s0*s1", None);
    check("s0 // 2", None);
    let twice: SymExpr = "2*s0".parse().unwrap();
    let said = twice.describe_mismatch(0, 130, None, &Ranges);
    assert_eq!(said, "dimension 0 is 130; it must be a multiple of 2 from 4 to 128");
    let said = twice.describe_mismatch(1, 6, Some(8), &Ranges);
    assert_eq!(said, "dimension 1 is 6; it must be 8, which the sizes before it make of `2*s0`");
}
