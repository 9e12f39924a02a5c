//! Index arithmetic: size expressions over loop variables, sizes and values, as 64-bit scalar code.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, Value};
use ir_core::{Atom, NoBounds, SymExpr};
use kernel_ir::Val;

use super::emit::Emit;
use super::values::Class;

impl Emit<'_, '_> {
    /// The value of an expression for one lane of the vector axis (lane 0 of a scalar body).
    pub(super) fn expr(&mut self, e: &SymExpr, lane: u32) -> Value {
        let (terms, constant) = e.terms();
        let mut sum: Option<Value> = None;
        for (coef, factors) in terms {
            let mut product: Option<Value> = None;
            for factor in factors {
                let x = self.atom(factor, lane);
                product = Some(product.map_or(x, |p| self.b.ins().imul(p, x)));
            }
            // PROOF: a term of a canonical sum has at least one factor.
            let mut product = product.expect("a term has a factor");
            if coef != 1 {
                product = self.times(product, coef);
            }
            sum = Some(sum.map_or(product, |s| self.b.ins().iadd(s, product)));
        }
        match sum {
            None => self.b.ins().iconst(I64, constant),
            Some(sum) if constant == 0 => sum,
            Some(sum) => self.b.ins().iadd_imm_s(sum, constant),
        }
    }

    /// `x * by` for a constant.
    pub(super) fn times(&mut self, x: Value, by: i64) -> Value {
        match by {
            1 => x,
            _ if by > 0 && by.count_ones() == 1 => self.b.ins().ishl_imm_s(x, i64::from(by.trailing_zeros())),
            _ => self.b.ins().imul_imm_s(x, by),
        }
    }

    fn atom(&mut self, atom: &Atom, lane: u32) -> Value {
        match atom {
            Atom::Sym(id) => self.symbol(*id),
            Atom::Loop(v) => {
                let x = self.loops[*v as usize];
                let on_axis = self.axis == Some(*v) && lane > 0;
                if on_axis { self.b.ins().iadd_imm_s(x, i64::from(lane)) } else { x }
            }
            Atom::Value(n) => self.value_lane(*n, lane),
            Atom::FloorDiv(ab) => self.divide_floor(&ab.0, &ab.1, lane, true),
            Atom::Mod(ab) => self.divide_floor(&ab.0, &ab.1, lane, false),
            Atom::Min(ab) => {
                let (a, b) = (self.expr(&ab.0, lane), self.expr(&ab.1, lane));
                self.b.ins().smin(a, b)
            }
            Atom::Max(ab) => {
                let (a, b) = (self.expr(&ab.0, lane), self.expr(&ab.1, lane));
                self.b.ins().smax(a, b)
            }
        }
    }

    /// An integer value of this body as `i64`.
    fn value_lane(&mut self, n: u32, lane: u32) -> Value {
        let x = self.lane_of(Val(n), lane);
        match Class::of(self.dtype_of(n as usize)) {
            Class::I64 => x,
            Class::Mask => self.b.ins().uextend(I64, x),
            _ => self.b.ins().sextend(I64, x),
        }
    }

    /// Floor division or its remainder; a zero divisor counts as 1 (the host promises that there is none).
    fn divide_floor(&mut self, a: &SymExpr, b: &SymExpr, lane: u32, quotient: bool) -> Value {
        let positive = b.as_const().filter(|d| *d > 0);
        // Loop variables and sizes are not negative; unsigned division by a constant becomes a multiplication.
        let plain = a.is_non_negative(&NoBounds);
        let x = self.expr(a, lane);
        if let Some(d) = positive {
            if d.count_ones() == 1 {
                let by = i64::from(d.trailing_zeros());
                return if quotient {
                    self.b.ins().sshr_imm_s(x, by)
                } else {
                    self.b.ins().band_imm_s(x, d - 1)
                };
            }
            if plain {
                return if quotient { self.b.ins().udiv_imm_s(x, d) } else { self.b.ins().urem_imm_s(x, d) };
            }
        }
        let d = self.expr(b, lane);
        let zero = self.b.ins().iconst(I64, 0);
        let one = self.b.ins().iconst(I64, 1);
        // -1 traps for the smallest integer; sizes are never negative, so both count as 1.
        let bad = self.b.ins().icmp(IntCC::SignedLessThanOrEqual, d, zero);
        let d = self.b.ins().select(bad, one, d);
        if plain {
            return if quotient { self.b.ins().udiv(x, d) } else { self.b.ins().urem(x, d) };
        }
        let rest = self.b.ins().srem(x, d);
        let negative = self.b.ins().icmp(IntCC::SignedLessThan, rest, zero);
        if quotient {
            let q = self.b.ins().sdiv(x, d);
            let less = self.b.ins().iadd_imm_s(q, -1);
            return self.b.ins().select(negative, less, q);
        }
        let more = self.b.ins().iadd(rest, d);
        self.b.ins().select(negative, more, rest)
    }
}
