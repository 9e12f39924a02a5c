//! Products and convolutions of 8-bit integers with exact sums, and the same program with products of converted values instead:
//! for readers of older minors, and for backends that have no arithmetic on 8-bit integers.
//!
//! Not here: quantization. Scales, and zero points that data decides, are ordinary arithmetic around a product.

use ir_core::{DType, Shape, SymExpr, contiguous_strides};

use crate::{
    ArenaPlan, BodyBuilder, BufId, Buffer, Conv, Epilogue, Inst, InstKind, LoopKernel, Operand, Program,
    ScalarOp, Stage, Step, Storage, StoreMode, Val,
};

/// Whether a step multiplies 8-bit integers with sums in `i32`. Operands of a product may be `i8` and `u8`.
pub fn is_integer_product(program: &Program, step: &Step) -> bool {
    let (a, b, acc) = match step {
        Step::Matmul(m) => (&m.a, &m.b, m.acc),
        Step::Conv(c) => (&c.input, &c.weight, c.acc),
        _ => return false,
    };
    let short =
        |o: &Operand| program.buffers.get(o.buf).is_some_and(|b| matches!(b.dtype, DType::I8 | DType::U8));
    acc == DType::I32 && short(a) && short(b)
}

impl Program {
    /// The same program with integer products as products in `f32` of converted operands; `None` where there are none. Sums
    /// beyond 2²⁴ are rounded.
    pub fn with_float_products(&self) -> Option<Program> {
        widened(self, is_integer_product, |w, step, calls, out| w.product(step, calls, out))
    }
}

type Wanted = fn(&Program, &Step) -> bool;
/// Replaces operands of a step, which is one of a call (`true`) or of the init list; steps that make them go to the list.
type Widen = fn(&mut Widening<'_>, &mut Step, bool, &mut Vec<Step>);

/// The same program with `widen` applied to the steps that are `wanted`; `None` where there are none.
pub(crate) fn widened(program: &Program, wanted: Wanted, widen: Widen) -> Option<Program> {
    let any = |steps: &[Step]| steps.iter().any(|s| contains(program, s, wanted));
    if !any(&program.init) && !any(&program.steps) {
        return None;
    }
    let mut made = Program { init: Vec::new(), steps: Vec::new(), ..program.clone() };
    let mut widening = Widening { program: &mut made, constants: Vec::new(), wanted, widen };
    let init = widening.list(&program.init, false);
    let steps = widening.list(&program.steps, true);
    let constants = widening.constants;
    (made.init, made.steps) = (init, steps);
    made.init.extend(constants);
    made.plan = ArenaPlan::of(&made);
    Some(made)
}

fn contains(program: &Program, step: &Step, wanted: Wanted) -> bool {
    wanted(program, step) || step.nested().into_iter().flatten().any(|s| contains(program, s, wanted))
}

/// The rewriting of a program's steps.
pub(crate) struct Widening<'p> {
    pub(crate) program: &'p mut Program,
    /// Conversions of constants, for the end of the init steps.
    pub(crate) constants: Vec<Step>,
    wanted: Wanted,
    widen: Widen,
}

impl Widening<'_> {
    /// Steps of a call (`calls`) or of the init list.
    fn list(&mut self, steps: &[Step], calls: bool) -> Vec<Step> {
        let mut out = Vec::with_capacity(steps.len());
        for step in steps {
            let mut step = step.clone();
            if let Step::Together(t) = &mut step
                && t.steps.iter().any(|s| (self.wanted)(self.program, s))
            {
                // Conversions stand before products, so the members are no longer independent.
                out.extend(self.list(&t.steps, calls));
                continue;
            }
            for nested in step.nested_mut() {
                *nested = self.list(nested, calls);
            }
            if (self.wanted)(self.program, &step) {
                (self.widen)(self, &mut step, calls, &mut out);
            }
            out.push(step);
        }
        out
    }

    fn product(&mut self, step: &mut Step, calls: bool, out: &mut Vec<Step>) {
        let name = step.name().to_owned();
        let (a, b, acc, zero, epilogue) = match step {
            Step::Matmul(m) => (&mut m.a, &mut m.b, &mut m.acc, &mut m.zero, &mut m.epilogue),
            Step::Conv(Conv { input, weight, acc, zero, epilogue, .. }) => {
                (input, weight, acc, zero, epilogue)
            }
            _ => return,
        };
        for (operand, zero, which) in [(a, *zero, "a"), (b, 0, "b")] {
            let constant = calls && self.is_constant(operand);
            let convert = self.converted(operand, zero, format!("{name}_{which}"), constant || !calls);
            if constant { self.constants.push(convert) } else { out.push(convert) }
        }
        (*acc, *zero) = (DType::F32, 0);
        *epilogue = in_float(epilogue);
    }

    /// Whether an operand is the same in every call, with sizes that are numbers.
    pub(crate) fn is_constant(&self, o: &Operand) -> bool {
        let root = &self.program.buffers[self.program.root(o.buf)];
        let known = o.sizes.iter().chain(&o.strides).chain([&o.offset]).all(|e| e.as_const().is_some());
        known && matches!(root.storage, Storage::Constant(_) | Storage::Persistent)
    }

    /// Makes the operand a dense `f32` tensor, less `zero`, and returns the step that computes it.
    fn converted(&mut self, o: &mut Operand, zero: i64, name: String, kept: bool) -> Step {
        let dtype = self.program.buffers[o.buf].dtype;
        let view = self.view(o, format!("{name}_integers"));
        let dense = self.dense(name.clone(), DType::F32, &o.sizes, kept);
        let index: Shape = (0..o.sizes.len() as u32).map(SymExpr::loop_var).collect();
        let mut b = BodyBuilder::new();
        let x = b.load(view, dtype, index.clone());
        let mut x = b.cast(x, DType::F32);
        if zero != 0 {
            let zero = b.constant(zero, DType::F32);
            x = b.op(ScalarOp::Sub, &[x, zero]);
        }
        b.store(dense, index, x, StoreMode::Write);
        let outer = o.sizes.clone();
        o.strides = contiguous_strides(&o.sizes);
        (o.buf, o.offset) = (dense, SymExpr::ZERO);
        each_point(name, outer, b)
    }

    /// A buffer that is an operand's view of its memory.
    pub(crate) fn view(&mut self, o: &Operand, name: String) -> BufId {
        let view = Buffer {
            name,
            dtype: self.program.buffers[o.buf].dtype,
            sizes: o.sizes.clone(),
            strides: o.strides.clone(),
            offset: o.offset.clone(),
            storage: Storage::View(self.program.root(o.buf)),
        };
        self.program.buffers.push(view)
    }

    /// A dense buffer, which lives as long as the program where it is `kept`.
    pub(crate) fn dense(&mut self, name: String, dtype: DType, sizes: &[SymExpr], kept: bool) -> BufId {
        let storage = if kept { Storage::Persistent } else { Storage::Arena };
        let (sizes, strides): (Shape, Shape) = (sizes.into(), contiguous_strides(sizes));
        self.program.buffers.push(Buffer { name, dtype, sizes, strides, offset: SymExpr::ZERO, storage })
    }
}

/// The step that runs a body at each point of a domain.
pub(crate) fn each_point(name: String, outer: Shape, body: BodyBuilder) -> Step {
    let stages = vec![Stage { inner: Shape::new(), insts: body.finish() }];
    Step::Loop(LoopKernel { name, origins: Vec::new(), outer, accs: Vec::new(), stages })
}

/// The epilogue of a product in `f32`, which converts the result to `i32` first.
fn in_float(epilogue: &Epilogue) -> Epilogue {
    let mut insts: Vec<Inst> = Vec::with_capacity(epilogue.insts.len() + 1);
    let mut places: Vec<Val> = Vec::with_capacity(epilogue.insts.len());
    for inst in &epilogue.insts {
        let mut inst = inst.clone();
        inst.kind.map_vals(&|v| places[v.0 as usize]);
        if matches!(inst.kind, InstKind::Template) {
            insts.push(Inst { dtype: DType::F32, kind: InstKind::Template });
            inst.kind = InstKind::Cast(Val(insts.len() as u32 - 1));
        }
        insts.push(inst);
        places.push(Val(insts.len() as u32 - 1));
    }
    Epilogue { ranges: epilogue.ranges.clone(), insts }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCT: &str = "kir 1.8
program \"product\"
buffer b0 \"x\" u8[4, 8]{8, 1}+0 input 0
buffer b1 \"w\" i8[8, 3]{3, 1}+0 constant 0
buffer b2 \"y\" i32[4, 3]{3, 1}+0 output
input \"x\" b0
constant \"w\" b1
output \"y\" b2[4, 3]{3, 1}+0
init:
steps:
matmul \"mm\" acc i32 zero 7 from \"mm\"
  a b0[4, 8]{8, 1}+0
  b b1[8, 3]{3, 1}+0
  epilogue [4, 3]
    v0: i32 = template
    v1: i32 = store b2[i0, i1], v0
plan:
";

    #[test]
    fn older_readers_get_products_of_converted_values() {
        let program: Program = PRODUCT.parse().unwrap();
        crate::verify(&program).unwrap();
        assert_eq!(program.needs_minor(), 8);
        let older = Program::from_bytes(&program.to_bytes_at(7).unwrap()).unwrap();
        crate::verify(&older).unwrap();
        assert_eq!(older.needs_minor(), 0);
        let names: Vec<&str> = older.init.iter().chain(&older.steps).map(Step::name).collect();
        assert_eq!(names, ["mm_b", "mm_a", "mm"], "weights are converted once");
        assert_eq!(program.with_float_products().unwrap().with_float_products(), None);
    }

    #[test]
    fn a_zero_point_is_a_number_of_the_operand() {
        let wrong: Program = PRODUCT.replace("zero 7", "zero -7").parse().unwrap();
        assert!(crate::verify(&wrong).is_err());
        assert_eq!(
            PRODUCT.parse::<Program>().unwrap().to_string().parse::<Program>().unwrap(),
            PRODUCT.parse().unwrap()
        );
    }
}
