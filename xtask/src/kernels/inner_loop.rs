//! The inner loop of a kernel for AMD's GPUs, found in its assembly text, and how busy it keeps the matrix cores: cycles that a SIMD's
//! instructions of each kind take, by AMD's instruction set manuals and matrix instruction calculator.
//!
//! With two waves or more to a SIMD, one's matrix instructions run beside another's arithmetic and reads, so that the slowest kind says how
//! long a turn takes; what one wave waits for memory is hidden by the others and is not counted.

use std::collections::BTreeMap;

use crate::kernels::clang::is_matrix;

/// A loop with the path through it that a wave takes in its steady state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InnerLoop {
    /// Its instructions.
    pub(crate) code: Vec<String>,
    pub(crate) cycles: Cycles,
}

/// Cycles of a SIMD for one wave's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cycles {
    /// Matrix cores.
    pub(crate) matrix: f64,
    /// Arithmetic on vectors, and the issue of matrix instructions, which takes its place.
    pub(crate) vector: f64,
    /// The local data share, which the SIMDs of a compute unit share.
    pub(crate) share: f64,
}

impl Cycles {
    /// The part of the matrix cores' issue rate that is used.
    pub(crate) fn part(&self) -> f64 {
        self.matrix / self.matrix.max(self.vector).max(self.share).max(1.0)
    }
}

/// How long instructions of an architecture take.
struct Machine {
    /// Cycles of an instruction on vectors, of one that is computed by quarters, and of a matrix instruction by the number behind its
    /// name: `32x32x8`.
    vector: f64,
    quarter: f64,
    matrix: &'static [(&'static str, f64)],
    /// Whether matrix instructions leave the vector unit free.
    beside: bool,
    lanes: f64,
    /// SIMDs that share a local data share of 128 bytes a cycle.
    simds: f64,
}

/// By the calculator's "execution cycles" of CDNA 2 and 3, RDNA 3 and 4.
fn machine(architecture: &str) -> Machine {
    let cdna = |matrix| Machine { vector: 4.0, quarter: 16.0, matrix, beside: true, lanes: 64.0, simds: 4.0 };
    let rdna = |matrix| Machine { vector: 1.0, quarter: 4.0, matrix, beside: false, lanes: 32.0, simds: 2.0 };
    match architecture {
        "gfx90a" => cdna(&[("32x32x8", 64.0), ("16x16x16", 32.0), ("32x32x2", 64.0), ("16x16x4", 32.0)]),
        "gfx1100" => rdna(&[("16x16x16", 32.0)]),
        "gfx1201" => rdna(&[("16x16x16", 16.0)]),
        _ => cdna(&[("32x32x8", 32.0), ("16x16x16", 16.0), ("32x32x2", 64.0), ("16x16x4", 32.0)]),
    }
}

/// A run of instructions that is left at its end alone.
struct Block {
    from: usize,
    until: usize,
    next: Vec<usize>,
    /// Whether a turn ends here.
    again: bool,
}

/// The loop with the most matrix instructions, the shortest of several; `None` where no loop has any.
pub(crate) fn find(code: &[String], architecture: &str) -> Option<InnerLoop> {
    let labels: BTreeMap<&str, usize> =
        code.iter().enumerate().filter_map(|(n, line)| Some((line.strip_suffix(':')?, n))).collect();
    let back = code.iter().enumerate().filter_map(|(n, line)| {
        let start = *labels.get(branch(line)?)?;
        (start < n).then_some((start, n))
    });
    // Compilers put what a turn ends with behind a first jump back: a loop reaches to the last one.
    let mut loops: BTreeMap<usize, usize> = BTreeMap::new();
    for (from, until) in back {
        let end = loops.entry(from).or_default();
        *end = (*end).max(until);
    }
    let count = |from: usize, until: usize| code[from..until].iter().filter(|l| is_matrix(l)).count();
    let mut all: Vec<(usize, usize)> =
        loops.into_iter().filter(|&(from, until)| count(from, until) > 0).collect();
    all.sort_by_key(|&(from, until)| (std::cmp::Reverse(count(from, until)), until - from));
    let machine = machine(architecture);
    // What is left in the middle alone has no path that comes back.
    all.into_iter().find_map(|(from, until)| {
        let blocks = blocks(&code[from..=until], &labels, from);
        let code = path(&code[from..=until], &blocks, &machine);
        let cycles = cycles(&code, &machine);
        (cycles.matrix > 0.0).then_some(InnerLoop { code, cycles })
    })
}

/// Where a branch goes.
fn branch(line: &str) -> Option<&str> {
    line.strip_prefix("s_cbranch_")
        .or(line.strip_prefix("s_branch"))
        .and_then(|rest| rest.split(' ').next_back())
}

/// The blocks of a loop, whose first line has the number `first` in the function.
fn blocks(code: &[String], labels: &BTreeMap<&str, usize>, first: usize) -> Vec<Block> {
    let mut starts = vec![0];
    for (n, line) in code.iter().enumerate() {
        if line.ends_with(':') {
            starts.push(n);
        }
        if branch(line).is_some() {
            starts.push(n + 1);
        }
    }
    starts.sort_unstable();
    starts.dedup();
    starts.retain(|n| *n < code.len());
    let block_at = |line: usize| starts.iter().position(|s| *s == line);
    let ends = starts.iter().skip(1).copied().chain([code.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(&from, until)| {
            let last = &code[until - 1];
            let target = branch(last)
                .and_then(|label| labels.get(label))
                .and_then(|line| line.checked_sub(first))
                .and_then(block_at);
            let falls = (!last.starts_with("s_branch")).then(|| block_at(until)).flatten();
            let again = target == Some(0);
            let next = target.into_iter().chain(falls).filter(|n| starts[*n] > from).collect();
            Block { from, until, next, again }
        })
        .collect()
}

/// The path from the first block to the last one that leaves out no matrix instruction and no access to memory, and of what is left
/// takes the shortest: tiles that need no look at each score.
fn path(code: &[String], blocks: &[Block], machine: &Machine) -> Vec<String> {
    let cost = |block: &Block| -> f64 {
        let lines = &code[block.from..block.until];
        let kept = lines
            .iter()
            .filter(|l| is_matrix(l) || l.starts_with("global_load") || l.starts_with("ds_"))
            .count();
        cycles(lines, machine).vector - 1e6 * kept as f64
    };
    let mut least: Vec<Option<(f64, Option<usize>)>> = vec![None; blocks.len()];
    for (n, block) in blocks.iter().enumerate().rev() {
        let after = block.next.iter().filter_map(|m| least[*m].map(|(sum, _)| (sum, Some(*m))));
        let ends = block.again.then_some((0.0, None));
        let best = after.chain(ends).min_by(|a, b| a.0.total_cmp(&b.0));
        least[n] = best.map(|(sum, next)| (sum + cost(block), next));
    }
    let (mut out, mut at) = (Vec::new(), Some(0));
    while let Some(n) = at {
        out.extend(code[blocks[n].from..blocks[n].until].iter().filter(|l| !l.ends_with(':')).cloned());
        at = least[n].and_then(|(_, next)| next);
    }
    out
}

fn cycles(code: &[String], machine: &Machine) -> Cycles {
    let mut sum = Cycles::default();
    for line in code {
        let name = line.split(' ').next().unwrap_or_default();
        if is_matrix(name) {
            let known = machine.matrix.iter().find(|(shape, _)| name.contains(shape));
            let time = known.map_or(machine.vector, |(_, time)| *time);
            sum.matrix += time;
            sum.vector += if machine.beside { machine.vector } else { time };
        } else if name.starts_with("v_") {
            let by_quarters = ["v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos"];
            let slow = by_quarters.iter().any(|part| name.starts_with(part));
            sum.vector += if slow { machine.quarter } else { machine.vector };
        } else if name.starts_with("ds_") {
            sum.share += share_bytes(name) * machine.lanes / 128.0 * machine.simds;
        }
    }
    sum
}

/// Bytes that a lane moves.
fn share_bytes(name: &str) -> f64 {
    let each = [("b128", 16.0), ("b96", 12.0), ("b64", 8.0), ("b32", 4.0)];
    let one = each.iter().find(|(width, _)| name.contains(width)).map_or(4.0, |(_, bytes)| *bytes);
    if name.contains("2_b")
        || name.contains("2st64")
        || name.starts_with("ds_load_2")
        || name.starts_with("ds_store_2")
    {
        2.0 * one
    } else {
        one
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failing test may panic

    use super::{Cycles, find};

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// The steady state keeps the loads that a branch may skip, and skips the slow way.
    #[test]
    fn the_path_of_the_steady_state() {
        let code = lines(
            "v_mov_b32 v0, 0
            .LBB0_1:
            s_cbranch_scc1 .LBB0_2
            global_load_dwordx4 v[0:3], v4, s[0:1]
            .LBB0_2:
            v_mfma_f32_32x32x8_bf16 a[0:15], v[0:1], v[2:3], a[0:15]
            s_cbranch_scc1 .LBB0_3
            v_add_f32 v0, v0, v1
            v_add_f32 v0, v0, v1
            s_branch .LBB0_4
            .LBB0_3:
            v_exp_f32_e32 v1, v2
            .LBB0_4:
            ds_write_b128 v0, v[0:3]
            s_cbranch_scc0 .LBB0_1
            s_endpgm",
        );
        let found = find(&code, "gfx942").unwrap();
        assert!(found.code.iter().any(|l| l.starts_with("global_load")));
        assert!(!found.code.iter().any(|l| l.starts_with("v_exp")));
        assert_eq!(found.cycles, Cycles { matrix: 32.0, vector: 12.0, share: 32.0 });
        assert_eq!(find(&code[..2], "gfx942"), None);
    }
}
