//! Tensors with few channels, rearranged in scratch memory from space to depth: a block of adjacent points becomes one
//! point with the channels of all of them, padded with zeros ("folded"). A convolution that moves from block to block over
//! such a tensor has many channels and few window points, which suits tensor cores.
//!
//! Not here: which convolutions are computed this way, and the choice of block sizes (the backend).

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::{Operand, Program};

use crate::library::epilogue::{WIDTH, Walk};
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, blocks_of, element, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, Param, THREADS};

/// How a tensor `[n, c, spatial…]` (or `[c, n, spatial…]`) is folded: into the dense tensor `[n, blocks…, filled]`, whose
/// last dimension has the points of a block in row-major order, each with its channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The dimension of channels, 0 or 1.
    pub channel: usize,
    /// Channels.
    pub channels: i64,
    /// Channels of a folded point: those of all points of a block, padded with zeros.
    pub filled: i64,
    /// Points per block in each spatial dimension.
    pub points: Vec<i64>,
    /// Zeros before the tensor's first point in each spatial dimension.
    pub lead: Vec<i64>,
    /// Number of blocks in each spatial dimension.
    pub counts: Vec<i64>,
}

impl Blocks {
    /// The dimensions of the original tensor in the folded order, outermost first.
    pub fn order(&self) -> Vec<usize> {
        let rank = self.points.len() + 2;
        [1 - self.channel.min(1)].into_iter().chain(2..rank).chain([self.channel.min(1)]).collect()
    }

    /// The sizes of the folded tensor, for an original with these sizes.
    fn sizes(&self, sizes: &[SymExpr]) -> Vec<SymExpr> {
        let mut folded = sizes.to_vec();
        for (size, n) in folded.iter_mut().skip(2).zip(&self.counts) {
            *size = SymExpr::from_i64(*n);
        }
        if let Some(size) = folded.get_mut(self.channel) {
            *size = SymExpr::from_i64(self.filled);
        }
        folded
    }

    /// The number of elements of the folded tensor, for an original with these sizes.
    pub fn elements(&self, sizes: &[SymExpr]) -> SymExpr {
        volume(&self.sizes(sizes))
    }

    /// Points per block.
    fn volume(&self) -> i64 {
        self.points.iter().product()
    }

    pub(crate) fn check(&self, rank: usize, width: usize) -> Result<(), GenError> {
        let lists = [self.points.len(), self.lead.len(), self.counts.len()];
        let fits = rank >= 2 && self.channel < 2 && lists == [rank - 2; 3];
        let positive = self.points.iter().chain(&self.counts).all(|n| *n > 0) && self.channels > 0;
        let room = self.filled >= self.channels * self.volume() && self.filled % width as i64 == 0;
        match fits && positive && room && self.lead.iter().all(|n| *n >= 0) {
            true => Ok(()),
            false => {
                Err(GenError::Malformed(format!("no blocks of a tensor of {rank} dimensions: {self:?}")))
            }
        }
    }

    /// Address in the folded tensor of the element at loop variables `i0, i1, …` of the original.
    pub(crate) fn place(&self) -> String {
        let mut at = format!("i{}", 1 - self.channel.min(1));
        let mut point = String::from("0");
        for (d, ((points, lead), count)) in self.points.iter().zip(&self.lead).zip(&self.counts).enumerate() {
            let from = format!("(i{} + {lead})", d + 2);
            at = format!("({at} * {count} + {from} / {points})");
            point = format!("({point} * {points} + {from} % {points})");
        }
        format!("{at} * {} + {point} * {} + i{}", self.filled, self.channels, self.channel)
    }
}

/// Returns the kernel that copies an operand, folded, to scratch buffer `scratch`.
///
/// # Errors
/// [`GenError::Malformed`] where the blocks do not fit the tensor or the padded channels are not whole vectors;
/// [`GenError::DType`] for a dtype without a C++ type.
pub fn fold(program: &Program, operand: &Operand, blocks: &Blocks, scratch: u32) -> Result<Kernel, GenError> {
    let dtype = program.buffers[operand.buf].dtype;
    let lanes = (WIDTH / dtype.size().max(1)).max(1);
    let rank = operand.sizes.len();
    blocks.check(rank, lanes)?;
    let (extents, order) = (blocks.sizes(&operand.sizes), blocks.order());
    let walk = Walk::new(program, &extents, &order)?;
    let ty = memory_type(dtype)?;
    let mut uses = Uses::default();
    uses.scratch.push(ty);
    let writer = BodyWriter { program, extents: &extents, prefix: "e", guard: None, store_guard: None };
    let mut index: Vec<String> =
        (0..rank).map(|d| if d < 2 { format!("i{d}") } else { format!("p{d}") }).collect();
    index[blocks.channel] = "channel".into();
    let index: Vec<&str> = index.iter().map(String::as_str).collect();
    let from = element(&writer, operand, &index, &mut uses);
    let (mut points, mut inside) = (String::new(), format!("c < {}", blocks.channels * blocks.volume()));
    for d in (2..rank).rev() {
        let (of, lead) = (blocks.points[d - 2], blocks.lead[d - 2]);
        let size = writer.expr(&operand.sizes[d], &mut uses);
        let _ = writeln!(points, "const idx p{d} = i{d} * {of} + point % {of} - {lead}; point /= {of};");
        let _ = write!(inside, " && p{d} >= 0 && p{d} < {size}");
    }
    let (channel, channels) = (blocks.channel, blocks.channels);
    let first = if lanes > 1 { "first" } else { "i" };
    let body = format!(
        "Vec<{ty}, {lanes}> part = {{}};
#pragma unroll
for (int u = 0; u < {lanes}; ++u) {{
const idx c = {first}{channel} + u, channel = c % {channels};
idx point = c / {channels};
{points}if ({inside}) part.v[u] = {from};
}}
((Vec<{ty}, {lanes}> *)scratch0)[g] = part;
"
    );
    let body = walk.text(&writer, lanes, &body, &mut uses);
    let launch = Launch::flat(blocks_of(&volume(&extents), i64::from(THREADS) * lanes as i64), THREADS);
    let mut kernel = assemble(program, ENTRY, &uses, launch, &body)?;
    for param in &mut kernel.params {
        if let Param::Scratch(n) = param {
            *n = scratch;
        }
    }
    Ok(kernel)
}
