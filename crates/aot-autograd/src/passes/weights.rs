//! Products with dequantized constant weights become products with quantized ones: `a · ((w - zero) factor)`, where factors and zero
//! points are those of groups along the sum, of columns, or of the whole matrix. Weights stay small in memory, and the backend
//! dequantizes them where it multiplies. Products whose other operand is quantized as well are integer products where those rules
//! apply (`integers`), which run before.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

use super::integers::{Shared, shared};
use super::matching::{def, def_of, permutation, sizes, swaps_last_two, through};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[product];

/// Most views and conversions between an operand and its integers.
const DEEPEST: usize = 8;

/// Applies the rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

/// `matmul(a, dequantized b)`.
fn product(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    let c = &site.call;
    let floats = matches!(site.meta.dtype, DType::F32 | DType::BF16 | DType::F16);
    if c.op.target != "prims.matmul" || site.meta.rank() != 2 || !floats {
        return Ok(None);
    }
    let (a, w) = (c.value("a")?, c.value("b")?);
    let Some(found) = Weights::of(b.graph(), site, w) else { return Ok(None) };
    let w_sizes = b.sizes(w)?;
    let (Some(k), n) = (w_sizes[0].as_const(), w_sizes[1].clone()) else { return Ok(None) };
    let Some(factor) = found.columns(b.graph(), &found.factor, (k, &n)) else { return Ok(None) };
    let zero = match &found.zero {
        Some(zero) => match found.columns(b.graph(), zero, (k, &n)) {
            Some(zero) => Some(zero),
            None => return Ok(None),
        },
        None => None,
    };
    let count = |c: &Columns| if let Columns::Groups(_, groups) = c { *groups } else { 1 };
    let groups = zero.as_ref().map_or(1, count).max(count(&factor));
    let Some(factor) = factor.build(b, &found, (groups, &n))? else { return Ok(None) };
    let zero = match zero {
        Some(zero) => match zero.build(b, &found, (groups, &n))? {
            Some(zero) => Arg::from(zero),
            None => return Ok(None),
        },
        None => Arg::None,
    };
    let stored = if found.swapped { [n, k.into()] } else { [k.into(), n] };
    let integers = b.reshape(found.integers, &stored)?;
    let integers = if found.swapped { b.permute(integers, &[1, 0])? } else { integers };
    b.call1("prims.dequantized_matmul", vec![a.into(), integers.into(), factor.into(), zero]).map(Some)
}

/// `(integers - zero) * factor`, reshaped and perhaps transposed to the right operand of a product.
struct Weights {
    /// 8-bit integers, in the order of the product's operand (transposed, where it is `swapped`).
    integers: ValueId,
    /// None is 0.
    zero: Option<Arg>,
    factor: Arg,
    /// The sizes at which zero points and factors apply.
    sizes: Shape,
    /// The operand is the transposed of `[n, k]`.
    swapped: bool,
}

impl Weights {
    fn of(graph: &Graph, site: &Site<'_>, v: ValueId) -> Option<Weights> {
        let swap =
            def_of(graph, v, "prims.permute").filter(|c| permutation(c).is_some_and(|p| swaps_last_two(&p)));
        let base = swap.as_ref().map_or(Some(v), |c| c.value("a").ok())?;
        let base = inside(graph, base, |d| d.is_float());
        let call = def(graph, base).filter(|c| c.op.scalar_op() == Some(ScalarOp::Mul))?;
        let [x, y] = call.args else { return None };
        [(x, y), (y, x)].into_iter().find_map(|(moved, factor)| {
            let Arg::Value(moved) = moved else { return None };
            let (plain, zero) = match def(graph, *moved).filter(|c| c.op.scalar_op() == Some(ScalarOp::Sub)) {
                Some(prims::Call { args: [Arg::Value(plain), zero], .. }) => (*plain, Some(zero.clone())),
                _ => (*moved, None),
            };
            let integers = inside(graph, plain, |d| matches!(d, DType::F32 | DType::I8 | DType::U8));
            let short = matches!(graph.meta(integers)?.dtype, DType::I8 | DType::U8);
            let wide = graph.meta(base)?.dtype == DType::F32;
            let sizes = sizes(graph, base)?.into();
            let factor = factor.clone();
            let constant = site.is_constant(v) && site.is_constant(integers);
            (short && wide && constant).then_some(Weights {
                integers,
                zero,
                factor,
                sizes,
                swapped: swap.is_some(),
            })
        })
    }

    /// How an argument is distributed over the matrix `[k, n]`; `None` where it is not by columns and groups along k.
    fn columns(&self, graph: &Graph, arg: &Arg, (k, n): (i64, &SymExpr)) -> Option<Columns> {
        let kept = match shared(graph, arg)? {
            Shared::Number(number) => return Some(Columns::Number(number)),
            Shared::Single(v) => return Some(Columns::Single(v)),
            Shared::Broadcast(v) => v,
        };
        let own = sizes(graph, kept)?;
        if own.len() != self.sizes.len() || graph.meta(kept)?.dtype != DType::F32 {
            return None;
        }
        if !self.swapped {
            // One for each column, which is the last dimension.
            let last = own.last() == Some(n) && ir_core::numel(own) == *n;
            return last.then_some(Columns::Groups(kept, 1));
        }
        // Those of the first dimensions, and one for all of the others.
        let first = own.iter().zip(&self.sizes).take_while(|(own, all)| own == all).count();
        let rest = own[first..].iter().all(|s| *s == SymExpr::ONE);
        let length = ir_core::numel(&self.sizes[first..]).as_const().filter(|l| *l > 0 && k % *l == 0)?;
        rest.then_some(Columns::Groups(kept, k / length))
    }
}

/// The value inside of reshapes and conversions between dtypes that are `kept`.
fn inside(graph: &Graph, mut v: ValueId, kept: impl Fn(DType) -> bool) -> ValueId {
    for _ in 0..DEEPEST {
        let converted = through(graph, v, "prims.convert");
        let converted = converted.filter(|a| graph.meta(*a).is_some_and(|m| kept(m.dtype)));
        match converted.or_else(|| through(graph, v, "prims.reshape")) {
            Some(a) => v = a,
            None => break,
        }
    }
    v
}

/// Numbers of the columns of a matrix.
enum Columns {
    /// One.
    Number(f64),
    /// One, that of a value.
    Single(ValueId),
    /// One for each column and each of so many groups.
    Groups(ValueId, i64),
}

impl Columns {
    /// The numbers as `[groups, n]`; `None` where there are others than that.
    fn build(
        &self,
        b: &mut Builder<'_>,
        weights: &Weights,
        (groups, n): (i64, &SymExpr),
    ) -> Result<Option<ValueId>, OpError> {
        let out = [groups.into(), n.clone()];
        let all = match *self {
            Columns::Number(number) => return b.full(&out, number, DType::F32).map(Some),
            Columns::Single(v) => {
                let v = b.cast(v, DType::F32)?;
                b.reshape(v, &[SymExpr::ONE, SymExpr::ONE])?
            }
            Columns::Groups(v, own) if weights.swapped => {
                let v = b.reshape(v, &[n.clone(), own.into()])?;
                b.permute(v, &[1, 0])?
            }
            Columns::Groups(v, own) => b.reshape(v, &[own.into(), n.clone()])?,
        };
        let rows = &b.sizes(all)?[0];
        if *rows != SymExpr::ONE && *rows != out[0] {
            return Ok(None);
        }
        b.expand(all, &out).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes, evaluate, graph};
    use super::*;

    const GROUPS: &str = "%x: f32[2, 8] = input \"x\"
%w: i8[3, 8] = parameter \"w\"
%t: f32[6, 1] = parameter \"t\"
%z: f32[6, 1] = parameter \"z\"

%wr: i8[6, 4] = prims.reshape(%w, [6, 4])
%wf: f32[6, 4] = prims.convert(%wr, f32)
%ze: f32[6, 4] = prims.expand(%z, [6, 4])
%wz: f32[6, 4] = prims.sub(%wf, %ze)
%te: f32[6, 4] = prims.expand(%t, [6, 4])
%wd: f32[6, 4] = prims.mul(%wz, %te)
%wm: f32[3, 8] = prims.reshape(%wd, [3, 8])
%wt: f32[8, 3] = prims.permute(%wm, [1, 0])
%y: f32[2, 3] = prims.matmul(%x, %wt)
return %y";

    fn same(body: &str) {
        let mut after = graph(body);
        run(&mut after, &PassCx::inference());
        assert!(after.to_string().contains("prims.dequantized_matmul"), "{after}");
        let pairs = evaluate(&graph(body));
        for (x, y) in pairs[0].iter_f64().zip(evaluate(&after)[0].iter_f64()) {
            assert!((x - y).abs() < 1e-4, "{x} {y}");
        }
    }

    #[test]
    fn weights_with_factors_of_groups_stay_quantized() {
        let expected =
            "prims.reshape prims.permute prims.reshape prims.permute prims.permute prims.dequantized_matmul";
        changes(run, &PassCx::inference(), GROUPS, expected);
        same(GROUPS);
        // Weights that a call changes would be packed in each.
        assert_unchanged(run, &PassCx::training(), GROUPS);
        // Factors that vary within a group have no such form.
        let varying = GROUPS.replace("f32[6, 1] = parameter \"t\"", "f32[1, 4] = parameter \"t\"");
        assert_unchanged(run, &PassCx::inference(), &varying);
    }

    #[test]
    fn weights_with_factors_of_columns_stay_quantized() {
        let columns = "%x: bf16[2, 8] = input \"x\"
%w: u8[8, 3] = parameter \"w\"
%t: f32[1, 3] = parameter \"t\"

%wf: f32[8, 3] = prims.convert(%w, f32)
%wz: f32[8, 3] = prims.sub(%wf, 128.0)
%te: f32[8, 3] = prims.expand(%t, [8, 3])
%wd: f32[8, 3] = prims.mul(%wz, %te)
%wb: bf16[8, 3] = prims.convert(%wd, bf16)
%y: bf16[2, 3] = prims.matmul(%x, %wb)
return %y";
        let mut after = graph(columns);
        run(&mut after, &PassCx::inference());
        assert!(after.to_string().contains("prims.dequantized_matmul"), "{after}");
        same(
            &columns
                .replace("bf16", "f32")
                .replace("%wb: f32[8, 3] = prims.convert(%wd, f32)\n", "")
                .replace("%wb", "%wd"),
        );
    }
}
