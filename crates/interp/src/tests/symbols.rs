//! Size symbols are bound from equations in any order, and contradictions are found.

use ir_core::{SymExpr, SymId};

use crate::{Bindings, Conflict};

fn expr(text: &str) -> SymExpr {
    text.parse().unwrap()
}

fn solve(equations: &[(&str, i64)]) -> Result<Bindings, (usize, Conflict)> {
    let equations: Vec<_> = equations.iter().map(|(e, v)| (expr(e), *v)).collect();
    let mut bindings = Bindings::new();
    bindings.solve(&equations).map(|()| bindings)
}

#[test]
fn affine_sizes_are_solved() {
    let b = solve(&[("2*s0 + 1", 9), ("s1", 5), ("s2 - s0", 3)]).unwrap();
    assert_eq!([b.get(SymId(0)), b.get(SymId(1)), b.get(SymId(2))], [Some(4), Some(5), Some(7)]);
    assert_eq!(b.eval(&expr("s0*s1 // 3")), Some(6));
    assert_eq!(b.eval(&expr("s0 + s9")), None);
}

#[test]
fn order_does_not_matter() {
    let b = solve(&[("s0*s1", 12), ("s0 // 2 + s1", 5), ("s0", 4)]).unwrap();
    assert_eq!(b.get(SymId(1)), Some(3));
}

#[test]
fn contradictions_are_named() {
    let differs = Conflict::Differs { expr: "s0".into(), value: 5, expected: 4 };
    assert_eq!(solve(&[("s0", 4), ("s0", 5)]).unwrap_err(), (1, differs));
    assert!(matches!(solve(&[("2*s0", 5)]).unwrap_err(), (0, Conflict::NoSolution { .. })));
    assert!(matches!(solve(&[("s0*s1", 6)]).unwrap_err(), (0, Conflict::Undetermined { .. })));
    assert!(matches!(solve(&[("s0 // 2", 6)]).unwrap_err(), (0, Conflict::Undetermined { .. })));
    // A product that has become 0 decides nothing, and cannot be 6.
    assert!(matches!(solve(&[("s0", 0), ("s0*s1", 6)]).unwrap_err(), (1, Conflict::Differs { .. })));
    assert!(solve(&[("s0 - 9223372036854775807", -9223372036854775807)]).is_ok());
    assert!(solve(&[("s0 + 9223372036854775807", -9223372036854775807)]).is_err());
}
