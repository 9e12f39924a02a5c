//! Products whose rows, or whose depth, fall into groups that the call's data tells: a mixture of experts. Also the same program
//! with one product for each group, for readers of older minors.
//!
//! Not here: how a backend multiplies them.

use ir_core::{DType, Scalar, Shape, SymExpr, contiguous_strides};
use serde::{Deserialize, Serialize};

use crate::integer::{Widening, each_point, widened};
use crate::{
    AccDecl, AccId, BodyBuilder, BufId, Epilogue, Inst, InstKind, LoopKernel, Matmul, Operand, Program,
    ReduceOp, ScalarOp, Stage, Step, StoreMode, Val,
};

/// Groups of consecutive rows of a product's `a`, or of consecutive places of what it sums over. Place `p` is in the first group
/// `g` with `ends[g] > p`, and in none where there is no such group: ends may be any numbers, in any order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Groups {
    /// `[g]` of `i32` or `i64`; `g` is a number.
    pub ends: Operand,
    /// What is divided.
    pub along: Along,
}

/// What groups divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Along {
    /// The rows of `a` `[m, k]`: each is multiplied with the matrix of its group in `b` `[g, k, n]`, which gives `[m, n]`. Rows
    /// without a group are zeros.
    Rows,
    /// The depth of `a` `[m, k]` and `b` `[k, n]`: sums are those of each group, which gives `[g, m, n]`.
    Depth,
}

impl Along {
    /// All of them.
    pub const ALL: [Along; 2] = [Along::Rows, Along::Depth];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Along::Rows => "rows",
            Along::Depth => "depth",
        }
    }
}

impl Groups {
    /// How many groups there are; `None` where a program breaks the rule that this is a number.
    pub fn count(&self) -> Option<i64> {
        self.ends.sizes.first()?.as_const()
    }

    /// The places of each group, one behind the other, of `count` places in total. What is after the last one is in no group.
    pub fn ranges(ends: impl IntoIterator<Item = i64>, count: usize) -> Vec<std::ops::Range<usize>> {
        let mut first = 0;
        let range = |end: i64| {
            let end = usize::try_from(end).unwrap_or(0).min(count).max(first);
            std::ops::Range { start: std::mem::replace(&mut first, end), end }
        };
        ends.into_iter().map(range).collect()
    }
}

impl Program {
    /// The same program with one product of all rows for each group in place of every product by groups; `None` where there are
    /// none.
    pub fn with_products_for_each_group(&self) -> Option<Program> {
        widened(self, is_grouped, |w, step, calls, out| {
            let Step::Matmul(m) = step else { return };
            let Some(groups) = m.groups.take() else { return };
            let made = Grouped { m, groups: &groups, kept: !calls }.steps(w, out);
            *step = made;
        })
    }
}

fn is_grouped(_: &Program, step: &Step) -> bool {
    matches!(step, Step::Matmul(m) if m.groups.is_some())
}

/// A product whose groups become products.
struct Grouped<'a> {
    m: &'a Matmul,
    groups: &'a Groups,
    /// Whether temporary memory lives as long as the program.
    kept: bool,
}

impl Grouped<'_> {
    /// Adds the products; returns the step behind them.
    fn steps(&self, w: &mut Widening<'_>, out: &mut Vec<Step>) -> Step {
        let (m, ranges) = (self.m, &self.m.epilogue.ranges);
        let sums = w.dense(format!("{}_sums", m.name), m.acc, ranges, self.kept);
        let own = self.numbers(w, out);
        if self.groups.along == Along::Rows {
            let mut b = BodyBuilder::new();
            let zero = b.constant(0, m.acc);
            b.store(sums, vars(ranges.len()), zero, StoreMode::Write);
            out.push(each_point(format!("{}_none", m.name), ranges.clone(), b));
        }
        for g in 0..self.groups.count().unwrap_or(0) {
            let product = match self.groups.along {
                Along::Rows => self.by_rows(g, own, sums),
                Along::Depth => self.by_depth(w, g, own, sums, out),
            };
            out.push(Step::Matmul(product));
        }
        let insts = m.epilogue.insts.iter().map(|inst| match inst.kind {
            InstKind::Template => {
                let kind = InstKind::Load { buf: sums, index: vars(ranges.len()), mask: None };
                Inst { dtype: inst.dtype, kind }
            }
            _ => inst.clone(),
        });
        let stages = vec![Stage { inner: Shape::new(), insts: insts.collect() }];
        Step::Loop(LoopKernel {
            name: m.name.clone(),
            origins: m.origins.clone(),
            outer: ranges.clone(),
            accs: Vec::new(),
            stages,
        })
    }

    /// The group of each place: as many as there are groups where it has none.
    fn numbers(&self, w: &mut Widening<'_>, out: &mut Vec<Step>) -> BufId {
        let places = match self.groups.along {
            Along::Rows => self.m.a.sizes[0].clone(),
            Along::Depth => self.m.a.sizes[1].clone(),
        };
        let name = format!("{}_groups", self.m.name);
        let ends = w.view(&self.groups.ends, format!("{}_ends", self.m.name));
        let own = w.dense(name.clone(), DType::I64, std::slice::from_ref(&places), self.kept);
        let count = self.groups.ends.sizes[0].clone();
        let mut b = BodyBuilder::new();
        let end = b.load(ends, w.program.buffers[ends].dtype, Shape::from_iter([SymExpr::loop_var(1)]));
        let end = b.cast(end, DType::I64);
        let place = b.index(SymExpr::loop_var(0));
        let later = b.op(ScalarOp::Gt, &[end, place]);
        let (number, none) = (b.index(SymExpr::loop_var(1)), b.index(count.clone()));
        let number = b.select(later, number, none);
        b.reduce(AccId(0), number, None);
        let stage = Stage { inner: Shape::from_iter([count.clone()]), insts: b.finish() };
        let mut b = BodyBuilder::new();
        let (least, none) = (b.acc(AccId(0), DType::I64), b.index(count));
        let least = b.op(ScalarOp::Min, &[least, none]);
        b.store(own, vars(1), least, StoreMode::Write);
        out.push(Step::Loop(LoopKernel {
            name,
            origins: Vec::new(),
            outer: Shape::from_iter([places]),
            accs: vec![AccDecl { op: ReduceOp::Min, dtype: DType::I64 }],
            stages: vec![stage, Stage { inner: Shape::new(), insts: b.finish() }],
        }));
        own
    }

    /// All rows by the matrix of a group, of which its own rows are stored.
    fn by_rows(&self, g: i64, own: BufId, sums: BufId) -> Matmul {
        let b = &self.m.b;
        let b = Operand {
            buf: b.buf,
            sizes: b.sizes[1..].into(),
            strides: b.strides[1..].into(),
            offset: &b.offset + &b.strides[0] * g,
        };
        let mut body = BodyBuilder::new();
        let value = body.push(self.m.acc, InstKind::Template);
        let mask = Some(is_own(&mut body, own, g));
        let kind = InstKind::Store { buf: sums, index: vars(2), value, mask, mode: StoreMode::Write };
        body.push(self.m.acc, kind);
        self.product(g, b, self.m.epilogue.ranges.clone(), body)
    }

    /// `a` by what is left of `b` where the places of other groups are zeros.
    fn by_depth(&self, w: &mut Widening<'_>, g: i64, own: BufId, sums: BufId, out: &mut Vec<Step>) -> Matmul {
        let (b, name) = (&self.m.b, format!("{}_depth{g}", self.m.name));
        let dtype = w.program.buffers[b.buf].dtype;
        let whole = w.view(b, format!("{name}_whole"));
        let part = w.dense(name.clone(), dtype, &b.sizes, self.kept);
        let mut body = BodyBuilder::new();
        let (mask, zero) = (is_own(&mut body, own, g), body.constant(0, dtype));
        let value = body.load(whole, dtype, vars(2));
        let value = body.select(mask, value, zero);
        body.store(part, vars(2), value, StoreMode::Write);
        out.push(each_point(name, b.sizes.clone(), body));
        let strides = contiguous_strides(&b.sizes);
        let b = Operand { buf: part, sizes: b.sizes.clone(), strides, offset: SymExpr::ZERO };
        let mut body = BodyBuilder::new();
        let value = body.push(self.m.acc, InstKind::Template);
        let index = std::iter::once(SymExpr::from_i64(g)).chain(vars(2)).collect();
        body.store(sums, index, value, StoreMode::Write);
        self.product(g, b, self.m.epilogue.ranges[1..].into(), body)
    }

    fn product(&self, g: i64, b: Operand, ranges: Shape, body: BodyBuilder) -> Matmul {
        Matmul {
            name: format!("{}_group{g}", self.m.name),
            b,
            epilogue: Epilogue { ranges, insts: body.finish() },
            ..self.m.clone()
        }
    }
}

/// Whether the place `i0` is in group `g`.
fn is_own(b: &mut BodyBuilder, own: BufId, g: i64) -> Val {
    let number = b.load(own, DType::I64, vars(1));
    let g = b.constant(Scalar::Int(g), DType::I64);
    b.op(ScalarOp::Eq, &[number, g])
}

fn vars(count: usize) -> Shape {
    (0..count as u32).map(SymExpr::loop_var).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "kir 1.10
program \"experts\"
buffer b0 \"x\" f32[6, 8]{8, 1}+0 input 0
buffer b1 \"w\" f32[3, 8, 4]{32, 4, 1}+0 constant 0
buffer b2 \"ends\" i32[3]{1}+0 input 1
buffer b3 \"y\" f32[6, 4]{4, 1}+0 output
input \"x\" b0
input \"ends\" b2
constant \"w\" b1
output \"y\" b3[6, 4]{4, 1}+0
init:
steps:
matmul \"mm\" acc f32 from \"mm\"
  a b0[6, 8]{8, 1}+0
  b b1[3, 8, 4]{32, 4, 1}+0
  groups rows b2[3]{1}+0
  epilogue [6, 4]
    v0: f32 = template
    v1: f32 = store b3[i0, i1], v0
plan:
";

    /// The sums of three groups of the depth.
    fn depth() -> String {
        ROWS.replace("f32[3, 8, 4]{32, 4, 1}", "f32[8, 4]{4, 1}")
            .replace("b b1[3, 8, 4]{32, 4, 1}", "b b1[8, 4]{4, 1}")
            .replace("groups rows", "groups depth")
            .replace("f32[6, 4]{4, 1}+0 output", "f32[3, 6, 4]{24, 4, 1}+0 output")
            .replace("b3[6, 4]{4, 1}", "b3[3, 6, 4]{24, 4, 1}")
            .replace("epilogue [6, 4]", "epilogue [3, 6, 4]")
            .replace("b3[i0, i1]", "b3[i0, i1, i2]")
    }

    #[test]
    fn older_readers_get_a_product_for_each_group() {
        for (text, steps) in [(ROWS.to_owned(), 6), (depth(), 8)] {
            let program: Program = text.parse().unwrap();
            crate::verify(&program).unwrap();
            assert_eq!(program.to_string().parse::<Program>().unwrap(), program);
            assert_eq!(Program::from_bytes(&program.to_bytes()).unwrap(), program);
            assert_eq!(program.needs_minor(), 10);
            let older = Program::from_bytes(&program.to_bytes_at(9).unwrap()).unwrap();
            crate::verify(&older).unwrap();
            assert_eq!(older.needs_minor(), 0);
            assert_eq!(older.steps.len(), steps, "{older}");
            assert_eq!(older.with_products_for_each_group(), None);
        }
    }

    #[test]
    fn what_is_no_product_by_groups_is_refused() {
        for (from, to) in [
            ("groups rows", "groups depth"),
            ("\"ends\" i32", "\"ends\" f32"),
            ("b2[3]{1}", "b2[2]{1}"),
            ("\"x\" f32", "\"x\" bf16"),
            ("epilogue [6, 4]", "epilogue [6, 4, 1]"),
        ] {
            let wrong: Program = ROWS.replace(from, to).parse().unwrap();
            assert!(crate::verify(&wrong).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn ends_may_be_any_numbers() {
        assert_eq!(Groups::ranges([2, 2, 5], 6), [0..2, 2..2, 2..5]);
        assert_eq!(Groups::ranges([3, 1, i64::MAX], 4), [0..3, 3..3, 3..4]);
        assert_eq!(Groups::ranges([-1, i64::MIN, 2], 4), [0..0, 0..0, 0..2]);
        // They are the places whose first later end is the group's.
        let ends = [3, -7, 2, 9, 4];
        for (g, range) in Groups::ranges(ends, 8).into_iter().enumerate() {
            for place in 0..8 {
                let first = ends.iter().position(|e| *e > place as i64);
                assert_eq!(range.contains(&place), first == Some(g), "{g} {place}");
            }
        }
    }
}
