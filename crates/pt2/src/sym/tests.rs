//! Expressions as PyTorch writes them, and hostile ones.

use super::*;

const BOUNDS: Bounds = Bounds { bytes: 64 << 10, depth: 100 };

fn symbol(name: &str) -> Result<SymExpr, String> {
    match name {
        "s77" => Ok("s0".parse().unwrap()),
        "s60" => Ok("s1".parse().unwrap()),
        "u0" => Ok("s2".parse().unwrap()),
        other => Err(format!("no symbol `{other}`")),
    }
}

fn value(text: &str) -> Result<Value, String> {
    parse(text, &BOUNDS, &mut |name| symbol(name))
}

fn int(text: &str) -> SymExpr {
    match value(text) {
        Ok(Value::Int(e)) => e,
        other => panic!("{text}: {other:?}"),
    }
}

fn eval(e: &SymExpr, s0: i64) -> i64 {
    e.eval(&|_| Some(s0)).unwrap()
}

#[test]
fn srepr_and_plain_forms_agree() {
    let s = "Symbol('s77', positive=True, integer=True)";
    for (srepr, plain) in [
        (format!("Add(Mul(Integer(2), {s}), Integer(1))"), "2*s77 + 1"),
        (format!("Add(FloorDiv(Add({s}, Integer(-3)), Integer(2)), Integer(1))"), "(s77 - 3)//2 + 1"),
        (format!("Max({s}, Mul(Integer(2), Symbol('s60', positive=True, integer=True)))"), "Max(s77, 2*s60)"),
        (format!("Pow({s}, Integer(2))"), "s77**2"),
        (format!("Mod({s}, Integer(3))"), "s77 % 3"),
        (format!("CleanDiv({s}, Integer(3))"), "s77 // 3"),
        (format!("ceiling(Mul(Rational(1, 2), {s}))"), "-(-s77 // 2)"),
        (format!("CeilToInt(IntTrueDiv({s}, Integer(2)))"), "-(-s77 // 2)"),
        (format!("FloorToInt(Mul(Float('1.5', precision=53), ToFloat({s})))"), "3*s77 // 2"),
        (format!("ModularIndexing({s}, Integer(4), Integer(3))"), "(s77 // 4) % 3"),
        (format!("LShift({s}, Integer(3))"), "8*s77"),
    ] {
        assert_eq!(int(&srepr), int(plain), "{srepr}");
    }
}

#[test]
fn rounding_and_choices_compute_what_python_does() {
    let trunc = int("TruncToInt(IntTrueDiv(s77, 3))");
    let round = int("RoundToInt(IntTrueDiv(s77, 4))");
    let choice = int(
        "Piecewise(ExprCondPair(Integer(7), StrictLessThan(Symbol('s77'), Integer(3))), ExprCondPair(s77, true))",
    );
    for n in -9..=9i64 {
        assert_eq!(eval(&trunc, n), n / 3, "trunc {n}");
        assert_eq!(eval(&round, n) as f64, (n as f64 / 4.0).round_ties_even(), "round {n}");
        assert_eq!(eval(&choice, n), if n < 3 { 7 } else { n }, "piecewise {n}");
    }
}

#[test]
fn truth_is_zero_or_one() {
    for (text, holds) in [
        ("GreaterThan(Symbol('u0', integer=True), Integer(0))", (|n| n >= 0) as fn(i64) -> bool),
        ("u0 < 4", |n| n < 4),
        ("Ne(u0, 2)", |n| n != 2),
        ("And(Equality(u0, 3), u0 >= 1)", |n| n == 3),
        ("Or(u0 <= -1, Not(u0 < 5))", |n| n <= -1 || n >= 5),
        ("u0 >= 0 and u0 <= 2", |n| (0..=2).contains(&n)),
    ] {
        let Ok(Value::Truth(e)) = value(text) else { panic!("{text}: {:?}", value(text)) };
        for n in -4..8 {
            assert_eq!(eval(&e, n), i64::from(holds(n)), "{text} at {n}");
        }
    }
}

#[test]
fn conjunctions_give_facts() {
    let count = |text: &str| facts(text, &BOUNDS, &mut |name| symbol(name)).unwrap().len();
    assert_eq!(count("u0 >= 2"), 1);
    assert_eq!(count("And(LessThan(u0, 10), u0 > 1)"), 2);
    assert_eq!(count("Eq(u0, 4)"), 2);
    assert_eq!(count("GreaterThan(Symbol('u0', integer=True), Integer(0))"), 1);
    assert_eq!(count("Eq(Symbol('u0', integer=True), Mul(Integer(2), Symbol('s77', integer=True)))"), 2);
    assert_eq!(count("Ne(u0, 4)"), 0);
    assert_eq!(count("Or(u0 >= 1, u0 <= 7)"), 0);
    assert_eq!(count("Not(u0 >= 1)"), 0);
}

#[test]
fn what_is_no_integer_is_an_error() {
    for text in [
        "",
        "s77 +",
        "zuf0",
        "sqrt(s77)",
        "Pow(s77, s60)",
        "Pow(s77, 65)",
        "s77 // 0",
        "Float('0.1')",
        "'s77'",
        "s77 s60",
        "Symbol(3)",
        "Mod(s77)",
        "Mod(s77, 2, 3)",
        "99999999999999999999",
        "Piecewise((1, s77 > 2))",
        "é",
    ] {
        let got = value(text);
        assert!(!matches!(got, Ok(Value::Int(_))), "{text}: {got:?}");
    }
}

#[test]
fn hostile_expressions_end_quickly() {
    let product: String = (0..60).map(|i| format!("(s77 + s60 + {i})*")).collect::<String>() + "1";
    let tower = "Pow(".repeat(90) + "s77" + &", 64)".repeat(90);
    let powers = "Mul(s77, s60, s77)**64";
    let deep = "(".repeat(30_000);
    let minus = "-".repeat(60_000) + "1";
    let huge = "4611686018427387904*4611686018427387904*s77 // -1";
    let floors: String = (0..2000).map(|i| format!("(s77 // {}) + ", i + 2)).collect::<String>() + "1";
    for text in [&product, &tower, powers, &deep, &minus, huge, &floors, "Max(", "s77**-9223372036854775808"]
    {
        let started = std::time::Instant::now();
        let _ = value(text);
        assert!(
            started.elapsed().as_millis() < 500,
            "{}: {:?}",
            &text[..20.min(text.len())],
            started.elapsed()
        );
    }
    assert!(value(&product).is_err() && value(&deep).is_err());
}
