//! Accumulators of reductions and scans: loop-carried variables, one set for each width that a stage's loop runs at, folded
//! into one result when the stage is done. Long sums of floats have a second level (`blocks`).

use cranelift_frontend::Variable;
use ir_core::{DType, Scalar};
use kernel_ir::{AccId, ReduceOp, ScalarOp, Val};

use super::emit::Emit;
use super::values::{Class, Vals};
use crate::vir::VKind;

/// The variables of an accumulator at one width.
#[derive(Clone)]
pub(super) struct Set {
    width: u32,
    value: Vec<Variable>,
    /// Positions of `argmax` and `argmin`.
    position: Vec<Variable>,
    /// The total and its compensation, where `value` is a partial sum.
    total: Option<[Vec<Variable>; 2]>,
}

/// An accumulator: its sets while its stage runs, then its result.
#[derive(Clone, Default)]
pub(super) struct Acc {
    sets: Vec<Set>,
    result: Option<(Vals, u32)>,
}

impl<'f> Emit<'f, '_> {
    fn declare(&mut self, class: Class, init: &Vals) -> Vec<Variable> {
        let ty = self.reg_type(class);
        init.iter()
            .map(|v| {
                let var = self.b.declare_var(ty);
                self.b.def_var(var, *v);
                var
            })
            .collect()
    }

    fn read(&mut self, vars: &[Variable]) -> Vals {
        vars.iter().map(|v| self.b.use_var(*v)).collect()
    }

    fn write(&mut self, vars: &[Variable], x: &Vals) {
        vars.iter().zip(x).for_each(|(v, x)| self.b.def_var(*v, *x));
    }

    /// Prepares an accumulator for a loop at the present width.
    pub(super) fn start_acc(&mut self, acc: AccId, blocked: bool) {
        let decl = self.kernel.accs[acc.0 as usize].clone();
        let class = Class::of(decl.dtype);
        let identity = self.constant(decl.dtype, decl.op.identity(decl.dtype));
        let value = self.declare(class, &identity);
        let total = blocked.then(|| [self.declare(class, &identity), self.declare(class, &identity)]);
        let position = if decl.op.combine().is_none() {
            let last = self.constant(DType::I64, Scalar::Int(i64::MAX));
            self.declare(Class::I64, &last)
        } else {
            Vec::new()
        };
        let width = self.width;
        self.accs[acc.0 as usize].sets.push(Set { width, value, position, total });
    }

    /// Clears the sets and results of an accumulator before its stage begins.
    pub(super) fn clear_acc(&mut self, acc: AccId) {
        self.accs[acc.0 as usize] = Acc::default();
    }

    /// Widths that an accumulator was started at.
    pub(super) fn acc_widths(&self, acc: AccId) -> Vec<u32> {
        self.accs[acc.0 as usize].sets.iter().map(|s| s.width).collect()
    }

    fn set(&self, acc: AccId) -> Set {
        let sets = &self.accs[acc.0 as usize].sets;
        // PROOF: `start_acc` ran for every width of the stage's loop before its body was made.
        sets.iter()
            .find(|s| s.width == self.width)
            .expect("the accumulator was started at this width")
            .clone()
    }

    /// The partial result at the present width.
    pub(super) fn partial(&mut self, acc: AccId) -> Vals {
        let set = self.set(acc);
        self.read(&set.value)
    }

    /// Replaces the partial result at the present width.
    pub(super) fn set_partial(&mut self, acc: AccId, x: &Vals) {
        let set = self.set(acc);
        self.write(&set.value, x);
    }

    /// Combines a value into an accumulator.
    pub(super) fn reduce(&mut self, acc: AccId, value: Val, position: Option<Val>) {
        let decl = self.kernel.accs[acc.0 as usize].clone();
        let set = self.set(acc);
        let old = self.read(&set.value);
        if decl.op.combine().is_none() {
            let x = self.get(value.0 as usize);
            let p = match position {
                Some(p) => self.get(p.0 as usize),
                None => self.constant(DType::I64, Scalar::Int(0)),
            };
            let old_p = self.read(&set.position);
            let (v, p) = self.better(decl.op, decl.dtype, (&old, &old_p), (&x, &p));
            self.write(&set.value, &v);
            return self.write(&set.position, &p);
        }
        let new = match self.product(decl.op, decl.dtype, value) {
            Some((x, y)) => {
                let mut r = self.regs();
                (0..old.len()).map(|i| r.mul_add(x[i], y[i], old[i])).collect()
            }
            None => {
                let x = self.get(value.0 as usize);
                self.combine(decl.op, decl.dtype, &old, &x)
            }
        };
        self.write(&set.value, &new);
    }

    /// The factors, where a float sum adds a product: it is contracted to a fused multiply-add.
    fn product(&mut self, op: ReduceOp, dtype: DType, value: Val) -> Option<(Vals, Vals)> {
        if op != ReduceOp::Sum || !dtype.is_float() || !self.cx.fma {
            return None;
        }
        let (x, y) = match &self.inst(value).kind {
            VKind::Op { op: ScalarOp::Mul, args } => (args[0], args[1]),
            _ => return None,
        };
        Some((self.get(x.0 as usize), self.get(y.0 as usize)))
    }

    /// Combines two values of a reduction that keeps no position.
    pub(super) fn combine(&mut self, op: ReduceOp, dtype: DType, x: &Vals, y: &Vals) -> Vals {
        // PROOF: callers handle `argmax` and `argmin`, the only two without an operator; a scan of them is refused.
        let op = op.combine().unwrap_or(ScalarOp::Max);
        self.op(op, dtype, &[x.clone(), y.clone()])
    }

    /// The better of two (value, position) pairs: NaN first, then the extreme, then the lower position.
    fn better(&mut self, op: ReduceOp, dtype: DType, x: (&Vals, &Vals), y: (&Vals, &Vals)) -> (Vals, Vals) {
        let class = Class::of(dtype);
        let better = if op == ReduceOp::ArgMax { ScalarOp::Gt } else { ScalarOp::Lt };
        let pair = [y.0.clone(), x.0.clone()];
        let mut wins = self.op(better, dtype, &pair);
        let mut equal = self.op(ScalarOp::Eq, dtype, &pair);
        if dtype.is_float() {
            let (xn, yn) = (
                self.op(ScalarOp::Ne, dtype, &[x.0.clone(), x.0.clone()]),
                self.op(ScalarOp::Ne, dtype, &[y.0.clone(), y.0.clone()]),
            );
            let not_xn = self.op(ScalarOp::Not, DType::Bool, std::slice::from_ref(&xn));
            let only_y = self.op(ScalarOp::And, DType::Bool, &[yn.clone(), not_xn]);
            let both = self.op(ScalarOp::And, DType::Bool, &[yn, xn]);
            wins = self.op(ScalarOp::Or, DType::Bool, &[wins, only_y]);
            equal = self.op(ScalarOp::Or, DType::Bool, &[equal, both]);
        }
        let lower = self.op(ScalarOp::Lt, DType::I64, &[y.1.clone(), x.1.clone()]);
        let first = self.op(ScalarOp::And, DType::Bool, &[equal, lower]);
        let take = self.op(ScalarOp::Or, DType::Bool, &[wins, first]);
        (self.select(class, &take, y.0, x.0), self.select(Class::I64, &take, y.1, x.1))
    }

    /// Begins a block of a two-level sum.
    pub(super) fn open_block(&mut self, acc: AccId) {
        let decl = self.kernel.accs[acc.0 as usize].clone();
        let set = self.set(acc);
        let zero = self.constant(decl.dtype, decl.op.identity(decl.dtype));
        self.write(&set.value, &zero);
    }

    /// Adds a block's partial sum to the total.
    pub(super) fn close_block(&mut self, acc: AccId) {
        let set = self.set(acc);
        let Some([total, lost]) = &set.total else { return };
        let (old, partial) = ((self.read(total), self.read(lost)), self.read(&set.value));
        let (sum, left) = self.add_exactly((&old.0, &old.1), &partial);
        self.write(total, &sum);
        self.write(lost, &left);
    }

    /// Folds all sets into the result: lanes stay lanes where the axis is an outer loop, else they are combined.
    pub(super) fn finish_acc(&mut self, acc: AccId, keep_lanes: bool) {
        let decl = self.kernel.accs[acc.0 as usize].clone();
        let sets = std::mem::take(&mut self.accs[acc.0 as usize].sets);
        let mut result: Option<(Vals, Vals)> = None;
        let mut width = 1;
        for set in &sets {
            let saved = std::mem::replace(&mut self.width, set.width);
            let mut v = match &set.total {
                Some([total, lost]) => {
                    let (total, lost) = (self.read(total), self.read(lost));
                    self.whole(&total, &lost)
                }
                None => self.read(&set.value),
            };
            let mut p = self.read(&set.position);
            if keep_lanes {
                width = set.width;
            } else {
                (v, p) = self.fold(decl.op, decl.dtype, v, p);
            }
            self.width = if keep_lanes { set.width } else { 1 };
            result = Some(match result {
                None => (v, p),
                Some((rv, rp)) => self.join(decl.op, decl.dtype, (rv, rp), (v, p)),
            });
            self.width = saved;
        }
        if let Some((v, p)) = result {
            let keeps_position = decl.op.combine().is_none();
            self.accs[acc.0 as usize].result = Some((if keeps_position { p } else { v }, width));
        }
    }

    fn join(&mut self, op: ReduceOp, dtype: DType, x: (Vals, Vals), y: (Vals, Vals)) -> (Vals, Vals) {
        if op.combine().is_none() {
            return self.better(op, dtype, (&x.0, &x.1), (&y.0, &y.1));
        }
        (self.combine(op, dtype, &x.0, &y.0), Vals::new())
    }

    /// Combines all lanes into one, pairwise.
    fn fold(&mut self, op: ReduceOp, dtype: DType, v: Vals, p: Vals) -> (Vals, Vals) {
        if self.width == 1 {
            return (v, p);
        }
        let (mut v, mut p) = (v, p);
        let per = Class::of(dtype).per_reg() as usize;
        // Registers: the upper half onto the lower half, whole groups of four lanes.
        while self.width > 4 {
            let (hv, hp) = (v.len() / 2, p.len() / 2);
            let upper = (Vals::from_slice(&v[hv..]), Vals::from_slice(&p[hp..]));
            v.truncate(hv);
            p.truncate(hp);
            self.width /= 2;
            (v, p) = self.join(op, dtype, (v, p), upper);
        }
        debug_assert_eq!(v.len(), 4 / per);
        let mut lanes: Vec<(Vals, Vals)> = (0..4)
            .map(|lane| {
                let x = self.lane(Class::of(dtype), &v, lane);
                let q = if p.is_empty() {
                    Vals::new()
                } else {
                    Vals::from_elem(self.lane(Class::I64, &p, lane), 1)
                };
                (Vals::from_elem(x, 1), q)
            })
            .collect();
        self.width = 1;
        while lanes.len() > 1 {
            let upper = lanes.split_off(lanes.len() / 2);
            let lower = std::mem::take(&mut lanes);
            lanes = lower.into_iter().zip(upper).map(|(x, y)| self.join(op, dtype, x, y)).collect();
        }
        // PROOF: four lanes fold to one.
        lanes.pop().expect("a register has lanes")
    }

    /// Result of a finished accumulator and its width.
    pub(super) fn acc_result(&mut self, acc: AccId) -> (Vals, u32) {
        match self.accs[acc.0 as usize].result.clone() {
            Some(r) => r,
            // The verifier refuses a read before the reduction; zero keeps a malformed kernel harmless.
            None => {
                let decl = self.kernel.accs[acc.0 as usize].clone();
                let dtype = if decl.op.combine().is_none() { DType::I64 } else { decl.dtype };
                (self.scalar(|e| e.constant(dtype, Scalar::zero(dtype))), 1)
            }
        }
    }

    /// One step of a running combination; the variables live across the innermost loop.
    pub(super) fn scan(&mut self, n: usize, op: ReduceOp, value: Val, dtype: DType) -> Vals {
        let x = self.get(value.0 as usize);
        let vars = self.scans.get(&n).cloned().unwrap_or_default();
        if vars.is_empty() {
            return x;
        }
        let old = self.read(&vars);
        let new = self.combine(op, dtype, &old, &x);
        self.write(&vars, &new);
        new
    }

    /// Sets a scan to its identity, before its loop.
    pub(super) fn start_scan(&mut self, n: usize, op: ReduceOp, dtype: DType) {
        let identity = self.constant(dtype, op.identity(dtype));
        let vars = self.declare(Class::of(dtype), &identity);
        self.scans.insert(n, vars);
    }
}
