//! Products with quantized weights ([`crate::Dequant`]) as products with dequantized ones: for readers of older minors, and for
//! backends that do not multiply quantized weights.

use ir_core::{DType, Shape, SymExpr};

use crate::integer::{Widening, each_point, widened};
use crate::{BodyBuilder, Dequant, Matmul, Operand, Program, ScalarOp, Step, StoreMode};

impl Dequant {
    /// Its factors, and its zero points where there are any.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> {
        [&self.factor].into_iter().chain(&self.zero)
    }
}

impl Program {
    /// The same program with dequantized weights in the dtype of what they are multiplied with; `None` where no product has quantized
    /// ones. Constant weights are dequantized when they are bound.
    pub fn with_dequantized_weights(&self) -> Option<Program> {
        widened(self, is_quantized, |w, step, calls, out| {
            let Step::Matmul(m) = step else { return };
            let mut operands = [&m.b].into_iter().chain(m.dequant.iter().flat_map(Dequant::operands));
            let constant = calls && operands.all(|o| w.is_constant(o));
            drop(operands);
            let Some(made) = dequantized(w, m, constant || !calls) else { return };
            if constant { w.constants.push(made) } else { out.push(made) }
        })
    }
}

/// Whether a step multiplies with quantized weights.
fn is_quantized(_: &Program, step: &Step) -> bool {
    matches!(step, Step::Matmul(m) if m.dequant.is_some())
}

/// Makes a product's `b` a matrix of floats and returns the step that computes it.
fn dequantized(w: &mut Widening<'_>, m: &mut Matmul, kept: bool) -> Option<Step> {
    let d = m.dequant.take()?;
    let lead = m.b.sizes.len() - 2;
    let matrix = Operand {
        buf: m.b.buf,
        sizes: m.b.sizes[lead..].into(),
        strides: m.b.strides[lead..].into(),
        offset: m.b.offset.clone(),
    };
    let to = w.program.buffers[m.a.buf].dtype;
    let name = format!("{}_weights", m.name);
    let integers = w.view(&matrix, format!("{name}_integers"));
    let short = w.program.buffers[integers].dtype;
    // The dimension that is contiguous stays so.
    let swapped = matrix.strides[0] == SymExpr::ONE;
    let turned = |sizes: &[SymExpr]| -> Shape {
        if swapped { sizes.iter().rev().cloned().collect() } else { sizes.into() }
    };
    let sizes = turned(&matrix.sizes);
    let dense = w.dense(name.clone(), to, &sizes, kept);
    let point: Shape = turned(&[SymExpr::loop_var(0), SymExpr::loop_var(1)]);
    let length = &matrix.sizes[0].floor_div(&d.factor.sizes[0]);
    let group: Shape = [point[0].floor_div(length), point[1].clone()].into_iter().collect();
    let mut b = BodyBuilder::new();
    let x = b.load(integers, short, point.clone());
    let mut x = b.cast(x, DType::F32);
    if let Some(zero) = &d.zero {
        let zero = w.view(zero, format!("{name}_zero"));
        let zero = b.load(zero, DType::F32, group.clone());
        x = b.op(ScalarOp::Sub, &[x, zero]);
    }
    let factor = w.view(&d.factor, format!("{name}_factor"));
    let factor = b.load(factor, DType::F32, group);
    let x = b.op(ScalarOp::Mul, &[x, factor]);
    let x = if to == DType::F32 { x } else { b.cast(x, to) };
    b.store(dense, turned(&point), x, StoreMode::Write);
    let strides = ir_core::contiguous_strides(&sizes);
    m.b.strides[lead..].clone_from_slice(&turned(&strides));
    (m.b.buf, m.b.offset) = (dense, SymExpr::ZERO);
    Some(each_point(name, sizes, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCT: &str = "kir 1.9
program \"product\"
buffer b0 \"x\" bf16[4, 8]{8, 1}+0 input 0
buffer b1 \"w\" i8[3, 8]{8, 1}+0 constant 0
buffer b2 \"f\" f32[2, 3]{3, 1}+0 constant 1
buffer b3 \"y\" f32[4, 3]{3, 1}+0 output
input \"x\" b0
constant \"w\" b1
constant \"f\" b2
output \"y\" b3[4, 3]{3, 1}+0
init:
steps:
matmul \"mm\" acc f32 from \"mm\"
  a b0[4, 8]{8, 1}+0
  b b1[8, 3]{1, 8}+0
  factor b2[2, 3]{3, 1}+0
  epilogue [4, 3]
    v0: f32 = template
    v1: f32 = store b3[i0, i1], v0
plan:
";

    #[test]
    fn older_readers_get_dequantized_weights() {
        let program: Program = PRODUCT.parse().unwrap();
        crate::verify(&program).unwrap();
        assert_eq!(program.to_string().parse::<Program>().unwrap(), program);
        assert_eq!(program.needs_minor(), 9);
        let older = Program::from_bytes(&program.to_bytes_at(8).unwrap()).unwrap();
        crate::verify(&older).unwrap();
        assert_eq!(older.needs_minor(), 0);
        let names: Vec<&str> = older.init.iter().map(Step::name).collect();
        assert_eq!(names, ["mm_weights"], "constant weights are dequantized once");
        let Some(Step::Matmul(m)) = older.steps.first() else { panic!("{older}") };
        assert_eq!(older.buffers[m.b.buf].dtype, DType::BF16);
        assert_eq!(m.b.strides.to_vec(), [SymExpr::ONE, SymExpr::from_i64(8)]);
        assert!(older.to_string().contains("load b6[i1 // 4, i0]"), "{older}");
    }

    #[test]
    fn factors_are_those_of_whole_groups() {
        let wrong = PRODUCT.replace("factor b2[2, 3]", "factor b2[1, 2]");
        assert!(crate::verify(&wrong.parse().unwrap()).is_err());
        let wrong = PRODUCT.replace("i8[3, 8]", "f32[3, 8]");
        assert!(crate::verify(&wrong.parse().unwrap()).is_err());
    }
}
