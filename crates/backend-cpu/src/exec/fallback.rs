//! Templates as plain loop kernels, for dtypes and forms that the hand-written ones do not take (integer and 16-bit
//! products, transposed convolution, `f64` convolution). It is correct for everything and fast for nothing.

use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    AccDecl, AccId, BodyBuilder, Buffer, Conv, Epilogue, Inst, InstKind, LoopKernel, Matmul, Operand,
    Program, ReduceOp, ScalarOp, Stage, Storage, Val,
};

/// A buffer that reads as the operand does.
fn view(program: &mut Program, o: &Operand) -> (kernel_ir::BufId, DType) {
    let root = program.root(o.buf);
    let base = &program.buffers[o.buf];
    let (name, dtype) = (base.name.clone(), base.dtype);
    let buffer = Buffer {
        name,
        dtype,
        sizes: o.sizes.clone(),
        strides: o.strides.clone(),
        offset: o.offset.clone(),
        storage: Storage::View(root),
    };
    (program.buffers.push(buffer), dtype)
}

fn vars(range: std::ops::Range<u32>) -> Shape {
    range.map(SymExpr::loop_var).collect()
}

/// The epilogue's body as a stage that reads the accumulator.
fn finish(epilogue: &Epilogue) -> Stage {
    let read = |inst: &Inst| match inst.kind {
        InstKind::Template => Inst { dtype: inst.dtype, kind: InstKind::Acc(AccId(0)) },
        _ => inst.clone(),
    };
    Stage { inner: Shape::new(), insts: epilogue.insts.iter().map(read).collect() }
}

fn kernel(
    name: &str,
    origins: &[String],
    acc: DType,
    e: &Epilogue,
    inner: Shape,
    insts: Vec<Inst>,
) -> LoopKernel {
    LoopKernel {
        name: name.to_owned(),
        origins: origins.to_vec(),
        outer: e.ranges.clone(),
        accs: vec![AccDecl { op: ReduceOp::Sum, dtype: acc.compute() }],
        stages: vec![Stage { inner, insts }, finish(e)],
    }
}

/// `acc += (x - zero) * y`; where `inside` is false `x` is zero after the subtraction.
fn multiply_add(b: &mut BodyBuilder, acc: DType, (x, y): (Val, Val), zero: i64, inside: Option<Val>) {
    let (mut x, y) = (b.cast(x, acc.compute()), b.cast(y, acc.compute()));
    if zero != 0 {
        let number = b.constant(zero, acc.compute());
        x = b.op(ScalarOp::Sub, &[x, number]);
        if let Some(inside) = inside {
            let none = b.constant(0, acc.compute());
            x = b.select(inside, x, none);
        }
    }
    let p = b.op(ScalarOp::Mul, &[x, y]);
    b.reduce(AccId(0), p, None);
}

/// A matrix product: outer `[batch…, m, n]`, inner `[k]`.
pub(super) fn matmul(program: &mut Program, m: &Matmul) -> LoopKernel {
    let rank = m.a.sizes.len() as u32;
    let k = SymExpr::loop_var(rank);
    let (row, column) = (SymExpr::loop_var(rank - 2), SymExpr::loop_var(rank - 1));
    let mut a_index = vars(0..rank - 2);
    let mut b_index = a_index.clone();
    a_index.extend([row, k.clone()]);
    b_index.extend([k, column]);
    let ((a, at), (bb, bt)) = (view(program, &m.a), view(program, &m.b));
    let mut b = BodyBuilder::new();
    let (x, y) = (b.load(a, at, a_index), b.load(bb, bt, b_index));
    multiply_add(&mut b, m.acc, (x, y), m.zero, None);
    let inner = Shape::from_iter([m.a.sizes[rank as usize - 1].clone()]);
    kernel(&m.name, &m.origins, m.acc, &m.epilogue, inner, b.finish())
}

/// A convolution: outer `[n, o, spatial…]`, inner `[c / groups, window…]`.
pub(super) fn conv(program: &mut Program, c: &Conv) -> LoopKernel {
    let spatial = c.stride.len() as u32;
    let first = spatial + 2;
    let (channels, outputs) = (c.input.sizes[1].clone(), c.epilogue.ranges[1].clone());
    let groups = SymExpr::from_i64(c.groups.max(1));
    let (per_in, per_out) = (channels.floor_div(&groups), outputs.floor_div(&groups));
    let o = SymExpr::loop_var(1);
    let ci = SymExpr::loop_var(first);
    let group = o.floor_div(&per_out);
    let channel = &group * &per_in + &ci;
    let ((input, it), (weight, wt)) = (view(program, &c.input), view(program, &c.weight));
    let mut b = BodyBuilder::new();
    let mut input_index = Shape::from_iter([SymExpr::loop_var(0), channel.clone()]);
    let mut mask: Option<Val> = None;
    for d in 0..spatial as usize {
        let (out, tap) = (SymExpr::loop_var(2 + d as u32), SymExpr::loop_var(first + 1 + d as u32));
        let size = &c.input.sizes[2 + d];
        let stride = SymExpr::from_i64(c.stride[d]);
        let tap = tap * c.dilation[d];
        let at = if c.transposed {
            let scaled = out + c.padding[d].0 - tap;
            exact(&mut b, &mut mask, &scaled, &stride);
            scaled.floor_div(&stride)
        } else {
            out * &stride + tap - c.padding[d].0
        };
        inside(&mut b, &mut mask, &at, size);
        input_index.push(at);
    }
    let mut weight_index = if c.transposed {
        Shape::from_iter([channel, o.modulo(&per_out)])
    } else {
        Shape::from_iter([o, ci])
    };
    weight_index.extend(vars(first + 1..first + 1 + spatial));
    let x = match mask {
        Some(m) => b.load_masked(input, it, input_index, m),
        None => b.load(input, it, input_index),
    };
    let y = b.load(weight, wt, weight_index);
    multiply_add(&mut b, c.acc, (x, y), c.zero, mask);
    let window = c.weight.sizes[2..].iter().cloned();
    let inner = std::iter::once(per_in).chain(window).collect();
    kernel(&c.name, &c.origins, c.acc, &c.epilogue, inner, b.finish())
}

fn and(b: &mut BodyBuilder, mask: &mut Option<Val>, more: Val) {
    *mask = Some(match *mask {
        Some(m) => b.op(ScalarOp::And, &[m, more]),
        None => more,
    });
}

/// `0 <= at < size`.
fn inside(b: &mut BodyBuilder, mask: &mut Option<Val>, at: &SymExpr, size: &SymExpr) {
    let (at, size) = (b.index(at.clone()), b.index(size.clone()));
    let zero = b.constant(Scalar::Int(0), DType::I64);
    let low = b.op(ScalarOp::Ge, &[at, zero]);
    let high = b.op(ScalarOp::Lt, &[at, size]);
    and(b, mask, low);
    and(b, mask, high);
}

/// `at % by == 0`.
fn exact(b: &mut BodyBuilder, mask: &mut Option<Val>, at: &SymExpr, by: &SymExpr) {
    if *by == SymExpr::ONE {
        return;
    }
    let rest = b.index(at.modulo(by));
    let zero = b.constant(Scalar::Int(0), DType::I64);
    let hit = b.op(ScalarOp::Eq, &[rest, zero]);
    and(b, mask, hit);
}
