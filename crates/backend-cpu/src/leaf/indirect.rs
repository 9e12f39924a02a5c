//! Index expressions as lanes, and accesses with an address for each lane: gathers and scatters of elements of 32 and 64 bits.
//! Indices have 64 bits, so that no size of a buffer is too large.

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::Val;

use super::build::by_width;
use super::codes as c;
use super::emit::{Emit, plain};
use super::encode::{Base, Code, Lanes as EmitLanes, RDI, RDX, Rm};
use super::ir::{Inst, Place, V};
use super::lower::{Input, Lower, Regs};
use super::zmm::{ALL, MASK_SCRATCH, SCRATCH};
use crate::math::Lanes;
use crate::vir::{Access, Class};

impl Lower<'_> {
    /// The lanes of an index expression.
    pub(super) fn index(&mut self, e: &SymExpr) -> Option<Regs> {
        let e = self.here(e);
        self.lanes_of(&e)
    }

    fn lanes_of(&mut self, e: &SymExpr) -> Option<Regs> {
        if let Some(known) = self.indices.get(e) {
            return Some(known.clone());
        }
        let regs = match self.spaced(e) {
            Some(regs) => regs,
            None => self.sum(e)?,
        };
        self.indices.insert(e.clone(), regs.clone());
        Some(regs)
    }

    /// An expression that is evenly spaced along the axis.
    fn spaced(&mut self, e: &SymExpr) -> Option<Regs> {
        let (step, rest) = e.affine_in(&Atom::Loop(self.axis))?;
        let step = i32::try_from(step.as_const()?).ok()?;
        self.fixed(&rest)?;
        self.can_follow(e)?;
        let slot = self.slot(Input::Index { turn: self.turn, expr: e.clone() });
        self.follow(slot, e, 1)?;
        let mut lanes = |part| {
            let d = self.b.value(Class::I64);
            self.b.push(Inst::Index { d, slot, step, part });
            d
        };
        Some(Regs::from_slice(&[lanes(0), lanes(1)]))
    }

    /// Any other: the sum of its terms.
    fn sum(&mut self, e: &SymExpr) -> Option<Regs> {
        let (mut spaced, mut rest) = (SymExpr::ZERO, Vec::new());
        let (terms, constant) = e.terms();
        for (coef, factors) in terms {
            let term = factors.iter().fold(SymExpr::from_i64(coef), |x, f| x * SymExpr::atom(f.clone()));
            let along = term.affine_in(&Atom::Loop(self.axis)).filter(|(step, _)| step.as_const().is_some());
            let plain = along.is_some_and(|(_, rest)| self.fixed(&rest).is_some())
                && self.can_follow(&term).is_some();
            if plain {
                spaced = spaced + term;
            } else {
                rest.push((coef, factors));
            }
        }
        let spaced = spaced + SymExpr::from_i64(constant);
        // All of it is evenly spaced, but by a number that instructions do not hold.
        if spaced == *e {
            return None;
        }
        let mut total = if spaced == SymExpr::ZERO { None } else { Some(self.lanes_of(&spaced)?) };
        for (coef, factors) in rest {
            let mut product: Option<Regs> = None;
            for factor in factors {
                let x = self.atom(factor)?;
                product = Some(match product {
                    None => x,
                    Some(p) => self.map2(&p, &x, |b, x, y| b.multiply_wide(x, y)),
                });
            }
            let product = self.times(product?, coef);
            total = Some(match total {
                None => product,
                Some(t) => self.map2(&t, &product, |b, x, y| b.iadd(x, y)),
            });
        }
        total
    }

    fn times(&mut self, x: Regs, by: i64) -> Regs {
        if by == 1 {
            return x;
        }
        let power = by > 0 && by.count_ones() == 1;
        let number = if power { i64::from(by.trailing_zeros()) } else { by };
        let by = self.b.wide(number as u64, Class::I64);
        self.map1(&x, |b, x| match power {
            true => b.two(c::VPSLLVQ, Class::I64, x, by),
            false => b.multiply_wide(x, by),
        })
    }

    fn atom(&mut self, atom: &Atom) -> Option<Regs> {
        match atom {
            Atom::Value(n) => {
                let (v, dtype) = (self.get(Val(*n))?, self.dtype(Val(*n)));
                self.cast(dtype, DType::I64, &v)
            }
            Atom::FloorDiv(ab) => Some(self.divided(&ab.0, ab.1.as_const()?)?.0),
            Atom::Mod(ab) => Some(self.divided(&ab.0, ab.1.as_const()?)?.1),
            Atom::Min(ab) | Atom::Max(ab) => {
                let smaller = matches!(atom, Atom::Min(_));
                let (x, y) = (self.lanes_of(&ab.0)?, self.lanes_of(&ab.1)?);
                Some(self.map2(&x, &y, |b, x, y| b.extreme_integer(smaller, x, y)))
            }
            Atom::Loop(_) | Atom::Sym(_) => self.spaced(&SymExpr::atom(atom.clone())),
        }
    }

    /// Quotient and remainder by a positive constant. The quotient in float64 is off by one at most for indices below 2^50, which
    /// the remainder tells.
    fn divided(&mut self, e: &SymExpr, by: i64) -> Option<(Regs, Regs)> {
        if !(1..1 << 50).contains(&by) {
            return None;
        }
        let x = self.lanes_of(e)?;
        let b = &mut self.b;
        let (mut quotients, mut rests) = (Regs::new(), Regs::new());
        for x in x {
            let (q, rest) = if by.count_ones() == 1 {
                let shift = b.wide(u64::from(by.trailing_zeros()), Class::I64);
                let low = b.wide(by as u64 - 1, Class::I64);
                (b.shift_right_wide(x, shift), b.and(x, low))
            } else {
                let inverse = b.wide((1.0 / by as f64).to_bits(), Class::F64);
                let (by, one) = (b.wide(by as u64, Class::I64), b.wide(1, Class::I64));
                let zero = b.wide(0, Class::I64);
                let float = b.wide_to_float(x);
                let q = b.fmul(float, inverse);
                let q = b.float_to_wide(q);
                let product = b.multiply_wide(q, by);
                let rest = b.isub(x, product);
                use cranelift_codegen::ir::condcodes::IntCC;
                let low = b.icmp(IntCC::SignedLessThan, rest, zero);
                let (q_down, rest_up) = (b.isub(q, one), b.iadd(rest, by));
                let (q, rest) = (b.select(low, q_down, q), b.select(low, rest_up, rest));
                let high = b.icmp(IntCC::SignedGreaterThanOrEqual, rest, by);
                let (q_up, rest_down) = (b.iadd(q, one), b.isub(rest, by));
                (b.select(high, q_up, q), b.select(high, rest_down, rest))
            };
            quotients.push(q);
            rests.push(rest);
        }
        Some((quotients, rests))
    }

    // Memory.

    /// The base of an access with an address for each lane, and the lanes' distances from it in elements.
    fn spread(&mut self, at: &Access) -> Option<(Place, Regs)> {
        if !self.b.target().has_spread() || !matches!(at.dtype.size(), 4 | 8) || at.dtype == DType::Bool {
            return None;
        }
        let address = self.here(&at.address);
        let (mut base, mut apart) = (SymExpr::ZERO, SymExpr::ZERO);
        let (terms, constant) = address.terms();
        for (coef, factors) in terms {
            let term = factors.iter().fold(SymExpr::from_i64(coef), |x, f| x * SymExpr::atom(f.clone()));
            let fixed = self.fixed(&term).is_some() && self.can_follow(&term).is_some();
            let part = if fixed { &mut base } else { &mut apart };
            *part = &*part + term;
        }
        let base = base + SymExpr::from_i64(constant);
        let index = self.lanes_of(&apart)?;
        let size = at.dtype.size();
        let slot =
            self.slot(Input::Address { turn: self.turn, at: Access { address: base.clone(), ..at.clone() } });
        self.follow(slot, &base, size as i64)?;
        Some((Place { slot, scale: size.trailing_zeros() as u8, part: 0, offset: 0, uniform: true }, index))
    }

    /// A load with an address for each lane.
    pub(super) fn gather(&mut self, at: &Access, mask: Option<V>) -> Option<Regs> {
        let class = Class::of(at.dtype);
        let (place, index) = self.spread(at)?;
        let code: Code = by_width(class, c::VGATHERQPS, c::VGATHERQPD);
        let parts: Regs = (0..2u8)
            .map(|part| {
                let mask = mask.map(|m| self.b.part_of_mask(m, part, Class::I64));
                let d = self.b.value(class);
                let at = Place { part, ..place };
                self.b.push(Inst::Gather { code, d, at, index: index[usize::from(part)], mask });
                d
            })
            .collect();
        Some(if class.wide() { parts } else { self.halves(class, parts[0], parts[1]) })
    }

    /// A store with an address for each lane; of equal ones the last stays.
    pub(super) fn scatter(&mut self, at: &Access, value: &Regs, mask: Option<V>) -> Option<()> {
        let class = Class::of(at.dtype);
        let (place, index) = self.spread(at)?;
        let code: Code = by_width(class, c::VSCATTERQPS, c::VSCATTERQPD);
        let values = if class.wide() {
            value.clone()
        } else {
            let high = self.b.upper_half(value[0]);
            Regs::from_slice(&[value[0], high])
        };
        for part in 0..2u8 {
            let mask = mask.map(|m| self.b.part_of_mask(m, part, Class::I64));
            let at = Place { part, ..place };
            let (index, value) = (index[usize::from(part)], values[usize::from(part)]);
            self.b.push(Inst::Scatter { code, value, at, index, mask });
        }
        Some(())
    }
}

impl Emit<'_> {
    pub(super) fn scatter(&mut self, code: Code, value: V, (at, index): (Place, V), mask: Option<V>) {
        let value = self.register(value, SCRATCH[0]);
        let index = self.register(index, SCRATCH[1]);
        let mask = self.consumed(mask, at.part);
        let to = self.spread(at, index);
        self.asm.evex(code, value, 0, to, EmitLanes { mask, zero: false }, None);
    }

    /// Zero where the mask is false. The result is in another register than the index.
    pub(super) fn gather(&mut self, code: Code, d: V, (at, index): (Place, V), mask: Option<V>) {
        let index = self.register(index, SCRATCH[0]);
        let to = self.result(d, SCRATCH[1]);
        let into = if to == index { SCRATCH[1] } else { to };
        self.asm.evex(c::VPXORD, into, into, Rm::Reg(into), ALL, None);
        let mask = self.consumed(mask, at.part);
        let from = self.spread(at, index);
        self.asm.evex(code, into, 0, from, EmitLanes { mask, zero: false }, None);
        if into != to {
            self.asm.evex(c::VMOVUPS, to, 0, Rm::Reg(into), ALL, None);
        }
        self.settle(d, to);
    }

    /// A mask as [`Emit::lanes`] gives, in a register that an instruction may clear.
    fn consumed(&mut self, mask: Option<V>, part: u8) -> u8 {
        let own = MASK_SCRATCH[1];
        match self.lanes(mask, part) {
            0 => self.asm.vex(c::KXNORW, own, own, Rm::Reg(own), None),
            k => self.asm.vex(c::KMOVW, own, 0, Rm::Reg(k), None),
        }
        own
    }

    /// The elements of an access with an address for each lane.
    fn spread(&mut self, at: Place, index: u8) -> Rm {
        let base = self.address_register(at.slot).unwrap_or_else(|| {
            self.asm.load(RDX, RDI, at.slot as i32 * 8);
            RDX
        });
        plain(Base::Lanes { base, index, scale: at.scale, displacement: at.offset })
    }
}
