//! Size expressions as flat postfix code, which a call evaluates without allocation to check its sizes. Kernels do not use
//! it: they have compilers of their own.

use smallvec::SmallVec;

use super::{Atom, SymExpr, poly};

/// Depth of the evaluation stack: no size expression of a real graph comes near.
const MAX_DEPTH: usize = 32;

/// An expression over numbered slots, in postfix order.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCode(Code);

#[derive(Clone, Debug, PartialEq)]
enum Code {
    /// A number and multiples of slots, as most expressions are.
    Sum(i64, SmallVec<[(u32, i64); 2]>),
    /// Anything else.
    Stack(Vec<Op>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    /// Pushes a number.
    Number(i64),
    /// Pushes a slot.
    Slot(u32),
    /// Adds a multiple of a slot to the top.
    AddSlot(u32, i64),
    Add,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

impl SizeCode {
    /// The code of `e`, whose leaves `slot` numbers; `None` where it does not know one, or where the expression nests deeper
    /// than any real one.
    pub fn of(e: &SymExpr, slot: &dyn Fn(&Atom) -> Option<u32>) -> Option<SizeCode> {
        let mut ops = Vec::new();
        push(e, slot, &mut ops)?;
        let mut depth = 0usize;
        for op in &ops {
            match op {
                Op::Number(_) | Op::Slot(_) => depth += 1,
                Op::AddSlot(..) => {}
                _ => depth = depth.checked_sub(1)?,
            }
            if depth > MAX_DEPTH {
                return None;
            }
        }
        Some(SizeCode(sum(&ops).unwrap_or(Code::Stack(ops))))
    }

    /// The value for these slots; `None` where a divisor is zero or a number does not fit.
    // Inlined: guards of a call are sums of one or two slots, many of them.
    #[inline]
    pub fn eval(&self, slots: &[i64]) -> Option<i64> {
        match &self.0 {
            Code::Sum(number, terms) => {
                let mut sum = *number;
                for &(slot, times) in terms {
                    sum = sum.checked_add(slots.get(slot as usize)?.checked_mul(times)?)?;
                }
                Some(sum)
            }
            Code::Stack(ops) => on_stack(ops, slots),
        }
    }
}

/// The code as a sum, where it is one.
fn sum(ops: &[Op]) -> Option<Code> {
    let (Op::Number(number), terms) = ops.split_first()? else { return None };
    let term = |op: &Op| match *op {
        Op::AddSlot(slot, times) => Some((slot, times)),
        _ => None,
    };
    Some(Code::Sum(*number, terms.iter().map(term).collect::<Option<_>>()?))
}

fn on_stack(ops: &[Op], slots: &[i64]) -> Option<i64> {
    let mut stack = [0i64; MAX_DEPTH];
    let mut top = 0;
    for op in ops {
        match *op {
            Op::Number(n) => {
                *stack.get_mut(top)? = n;
                top += 1;
            }
            Op::Slot(slot) => {
                *stack.get_mut(top)? = *slots.get(slot as usize)?;
                top += 1;
            }
            Op::AddSlot(slot, times) => {
                let value = slots.get(slot as usize)?.checked_mul(times)?;
                let place = stack.get_mut(top.checked_sub(1)?)?;
                *place = place.checked_add(value)?;
            }
            op => {
                top = top.checked_sub(1)?;
                let b = *stack.get(top)?;
                let place = stack.get_mut(top.checked_sub(1)?)?;
                *place = op.both(*place, b)?;
            }
        }
    }
    stack.first().copied()
}

impl Op {
    fn both(self, a: i64, b: i64) -> Option<i64> {
        match self {
            Op::Add => a.checked_add(b),
            Op::Mul => a.checked_mul(b),
            Op::FloorDiv => poly::floor_div_i64(a, b),
            Op::Mod => poly::mod_i64(a, b),
            Op::Min => Some(a.min(b)),
            Op::Max => Some(a.max(b)),
            Op::Number(_) | Op::Slot(_) | Op::AddSlot(..) => None,
        }
    }
}

fn push(e: &SymExpr, slot: &dyn Fn(&Atom) -> Option<u32>, ops: &mut Vec<Op>) -> Option<()> {
    let (terms, constant) = e.terms();
    ops.push(Op::Number(constant));
    for (coef, factors) in terms {
        if let [Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_)] = factors {
            ops.push(Op::AddSlot(slot(&factors[0])?, coef));
            continue;
        }
        ops.push(Op::Number(coef));
        for atom in factors {
            push_atom(atom, slot, ops)?;
            ops.push(Op::Mul);
        }
        ops.push(Op::Add);
    }
    Some(())
}

fn push_atom(atom: &Atom, slot: &dyn Fn(&Atom) -> Option<u32>, ops: &mut Vec<Op>) -> Option<()> {
    let (both, op) = match atom {
        Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_) => {
            ops.push(Op::Slot(slot(atom)?));
            return Some(());
        }
        Atom::FloorDiv(ab) => (ab, Op::FloorDiv),
        Atom::Mod(ab) => (ab, Op::Mod),
        Atom::Min(ab) => (ab, Op::Min),
        Atom::Max(ab) => (ab, Op::Max),
    };
    push(&both.0, slot, ops)?;
    push(&both.1, slot, ops)?;
    ops.push(op);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(atom: &Atom) -> Option<u32> {
        match atom {
            Atom::Sym(id) => Some(id.0),
            _ => None,
        }
    }

    #[test]
    fn code_gives_what_the_expression_gives() {
        let texts = [
            "7",
            "s0 - s1",
            "3*s0*s1 + s1*s1 - 4",
            "(s0 + 3) // s1 - s0 % 4",
            "min(s0, 2*s1) + max(s0 - s1, 0)*(s1 // 2)",
            "s0 // (s1 - s1 % 2)",
        ];
        for text in texts {
            let e: SymExpr = text.parse().unwrap();
            let code = SizeCode::of(&e, &slot).unwrap();
            for a in [-3, 0, 1, 5, i64::MAX] {
                for b in [0, 1, 4] {
                    let leaf = |atom: &Atom| Some([a, b][slot(atom)? as usize]);
                    assert_eq!(code.eval(&[a, b]), e.eval(&leaf), "{text} of {a}, {b}");
                }
            }
        }
        assert_eq!(SizeCode::of(&SymExpr::loop_var(0), &slot), None);
    }
}
