//! Building a step: the operations of one register, which the shared formulas ([`crate::math`]) are written over, as
//! instructions of a leaf. What AVX-512 does in one instruction (scaling by a power of two) replaces a formula.
//! Where the targets have different instructions, `masks` chooses.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use rustc_hash::FxHashMap;

use super::codes as c;
use super::encode::{Code, Constant};
use super::ir::{Body, Inst, Invariant, V};
use super::masks::float_predicate;
use super::target::Target;
use crate::math::Lanes;
use crate::vir::Class;

/// A body under construction.
pub(super) struct Build {
    pub(super) body: Body,
    known: FxHashMap<(Invariant, bool), u32>,
}

/// The form of an instruction for lanes of 32 or of 64 bits.
pub(super) fn by_width(class: Class, narrow: Code, wide: Code) -> Code {
    if class.wide() { wide } else { narrow }
}

impl Build {
    pub(super) fn new(target: Target) -> Build {
        Build { body: Body::new(target), known: FxHashMap::default() }
    }

    /// A new value.
    pub(super) fn value(&mut self, class: Class) -> V {
        let id = self.body.values;
        self.body.values += 1;
        V { id, class }
    }
    /// An invariant value; equal bits are one value, whatever their class.
    pub(super) fn invariant(&mut self, what: Invariant, class: Class) -> V {
        if let Some(id) = self.known.get(&(what, class.wide())) {
            return V { id: *id, class };
        }
        let v = self.value(class);
        self.known.insert((what, class.wide()), v.id);
        self.body.invariants.push((v, what));
        v
    }
    pub(super) fn narrow(&mut self, bits: u32, class: Class) -> V {
        self.invariant(Invariant::Constant(Constant::Narrow(bits)), class)
    }
    pub(super) fn wide(&mut self, bits: u64, class: Class) -> V {
        self.invariant(Invariant::Constant(Constant::Wide(bits)), class)
    }
    pub(super) fn push(&mut self, inst: Inst) {
        self.body.insts.push(inst);
    }
    pub(super) fn two(&mut self, code: Code, class: Class, a: V, b: V) -> V {
        let d = self.value(class);
        self.push(Inst::Two { code, d, a, b, imm: None });
        d
    }
    pub(super) fn one(&mut self, code: Code, class: Class, a: V) -> V {
        self.one_with(code, class, a, None)
    }
    pub(super) fn one_with(&mut self, code: Code, class: Class, a: V, imm: Option<u8>) -> V {
        let d = self.value(class);
        self.push(Inst::One { code, d, a, imm });
        d
    }
    fn shift(&mut self, digit: u8, a: V, by: i64) -> V {
        let d = self.value(a.class);
        self.push(Inst::Shift { code: c::VPSHIFTD, digit, d, a, by: by as u8 });
        d
    }
    fn by_class(&mut self, narrow: Code, wide: Code, x: V, y: V) -> V {
        self.two(by_width(x.class, narrow, wide), x.class, x, y)
    }
    fn logic(&mut self, [narrow, wide, mask]: [Code; 3], x: V, y: V) -> V {
        match x.class {
            Class::Mask => self.mask_logic(mask, narrow, x, y),
            _ => self.by_class(narrow, wide, x, y),
        }
    }
}

impl Lanes for Build {
    type V = V;

    fn f32(&mut self, x: f32) -> V {
        self.narrow(x.to_bits(), Class::F32)
    }
    fn f64(&mut self, x: f64) -> V {
        self.wide(x.to_bits(), Class::F64)
    }
    fn i32(&mut self, x: i32) -> V {
        self.narrow(x as u32, Class::I32)
    }
    fn fadd(&mut self, x: V, y: V) -> V {
        self.by_class(c::VADDPS, c::VADDPD, x, y)
    }
    fn fsub(&mut self, x: V, y: V) -> V {
        self.by_class(c::VSUBPS, c::VSUBPD, x, y)
    }
    fn fmul(&mut self, x: V, y: V) -> V {
        self.by_class(c::VMULPS, c::VMULPD, x, y)
    }
    fn fdiv(&mut self, x: V, y: V) -> V {
        self.by_class(c::VDIVPS, c::VDIVPD, x, y)
    }
    fn fabs(&mut self, x: V) -> V {
        let magnitude = match x.class.wide() {
            true => self.wide(i64::MAX as u64, x.class),
            false => self.narrow(i32::MAX as u32, x.class),
        };
        self.and(x, magnitude)
    }
    fn mul_add(&mut self, x: V, y: V, z: V) -> V {
        let d = self.value(x.class);
        self.push(Inst::Fma { d, a: x, b: y, c: z });
        d
    }
    fn smaller(&mut self, x: V, y: V) -> V {
        self.by_class(c::VMINPS, c::VMINPD, x, y)
    }
    fn larger(&mut self, x: V, y: V) -> V {
        self.by_class(c::VMAXPS, c::VMAXPD, x, y)
    }
    fn iadd(&mut self, x: V, y: V) -> V {
        self.by_class(c::VPADDD, c::VPADDQ, x, y)
    }
    fn isub(&mut self, x: V, y: V) -> V {
        self.by_class(c::VPSUBD, c::VPSUBQ, x, y)
    }
    fn and(&mut self, x: V, y: V) -> V {
        self.logic([c::VPANDD, c::VPANDQ, c::KANDW], x, y)
    }
    fn or(&mut self, x: V, y: V) -> V {
        self.logic([c::VPORD, c::VPORQ, c::KORW], x, y)
    }
    fn xor(&mut self, x: V, y: V) -> V {
        self.logic([c::VPXORD, c::VPXORQ, c::KXORW], x, y)
    }
    fn shl(&mut self, x: V, by: i64) -> V {
        self.shift(6, x, by)
    }
    fn sshr(&mut self, x: V, by: i64) -> V {
        self.shift(4, x, by)
    }
    fn ushr(&mut self, x: V, by: i64) -> V {
        self.shift(2, x, by)
    }
    fn fcmp(&mut self, cc: FloatCC, x: V, y: V) -> V {
        self.compare_floats(float_predicate(cc), x, y)
    }
    fn icmp(&mut self, cc: IntCC, x: V, y: V) -> V {
        self.compare_integers(cc, x, y)
    }
    fn select(&mut self, mask: V, x: V, y: V) -> V {
        let d = self.value(x.class);
        self.push(Inst::Blend { d, mask, yes: x, no: y });
        d
    }
    fn as_i32(&mut self, x: V) -> V {
        V { class: Class::I32, ..x }
    }
    fn as_f32(&mut self, x: V) -> V {
        V { class: Class::F32, ..x }
    }
    fn to_float(&mut self, x: V) -> V {
        self.one(c::VCVTDQ2PS, Class::F32, x)
    }
    fn nearest(&mut self, x: V) -> (V, V) {
        self.nearest_of_target(x)
    }
    fn scale(&mut self, v: V, n: V) -> V {
        match self.target() {
            Target::Avx512 => self.two(c::VSCALEFPS, Class::F32, v, n),
            Target::Avx2 => self.scale_in_two(v, n),
        }
    }
    fn scale_bounded(&mut self, v: V, n: V) -> V {
        match self.target() {
            Target::Avx512 => self.two(c::VSCALEFPS, Class::F32, v, n),
            Target::Avx2 => self.scale_exponent(v, n),
        }
    }
}
