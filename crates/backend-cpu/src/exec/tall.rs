//! Epilogues of convolutions whose memory runs along pixels (channels first, gradients to weights): lanes are pixels then, and the blocks that
//! the kernels finish are turned for them (`micro::Lines`).

use ir_core::{Atom, SymExpr};
use kernel_ir::collapse::{Dim, merged};
use kernel_ir::{Epilogue, InstKind, Program};

use crate::clif::Walk;
use crate::micro::{Blocks, Lines};

/// How the pixels of a convolution's result become lanes of its epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tall {
    /// The pixels of all images are one dimension.
    Images,
    /// Those of an image are.
    Pixels,
    /// Those of a line are.
    Line,
}

/// Pixels of a line that are worth a loop of their own.
const LINE: i64 = 8;

impl Tall {
    pub(super) fn blocks(self) -> Blocks {
        match self {
            Tall::Images => Blocks::Joined,
            Tall::Pixels | Tall::Line => Blocks::Tall,
        }
    }

    /// For a result of these sizes `[N, C, …]`.
    pub(super) fn lines(self, out: &[i64]) -> Lines {
        let pixels: i64 = out[2..].iter().product();
        let line = match self {
            Tall::Images => None,
            Tall::Pixels => Some(pixels as usize),
            // PROOF: a convolution has spatial dimensions.
            Tall::Line => out.last().map(|n| *n as usize),
        };
        Lines { rows: pixels as usize, line }
    }
}

/// The epilogue with pixels as lanes, where its accesses then are nearer to each other; `body` has the dimensions `[N, C, …]`.
pub(super) fn tall(program: &Program, body: &Epilogue) -> Option<(Epilogue, Walk, Tall)> {
    let rank = body.ranges.len();
    let wide = distance(program, body, 1);
    let spatial: Vec<usize> = (2..rank).collect();
    let all: Vec<usize> = std::iter::once(0).chain(2..rank).collect();
    let last = rank - 1;
    let long = body.ranges[last].as_const().is_none_or(|n| n >= LINE);
    let found = merged(program, body, &all)
        .map(|(e, axis)| (e, axis, Tall::Images))
        .or_else(|| merged(program, body, &spatial).map(|(e, axis)| (e, axis, Tall::Pixels)))
        .or_else(|| long.then(|| (body.clone(), last as u32, Tall::Line)));
    let (e, column, tall) = found?;
    if distance(program, &e, column) >= wide {
        return None;
    }
    let dim = |d: usize| Dim { var: d as u32, extent: e.ranges[d].clone() };
    let batch = match tall {
        Tall::Images => Vec::new(),
        Tall::Pixels => vec![dim(0)],
        Tall::Line => std::iter::once(0).chain(2..last).map(dim).collect(),
    };
    let walk = Walk { batch, rows: vec![dim(1)], column };
    Some((e, walk, tall))
}

/// How far neighbouring points of a loop are apart in memory: the sum over all accesses, in elements of at most a cache line each.
fn distance(program: &Program, body: &Epilogue, var: u32) -> i64 {
    const LINE: i64 = 16;
    let one = |address: SymExpr| match address.affine_in(&Atom::Loop(var)) {
        Some((step, _)) => step.as_const().map_or(LINE, |n| n.abs().min(LINE)),
        None => LINE,
    };
    let accesses = body.insts.iter().filter_map(|inst| match &inst.kind {
        InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. } => {
            Some(program.buffers[*buf].address(index))
        }
        _ => None,
    });
    accesses.map(one).sum()
}
