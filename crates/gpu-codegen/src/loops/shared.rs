//! The points of a stage that the threads of a team share: vectors where a row is contiguous, single elements before the first
//! whole vector of a row and behind the last one. Rows need not begin at whole vectors: where they do is a number of the row.
//! And loops without reductions whose rows are such, one row or a part of it per team.
//!
//! Not here: what happens at the points (`wide` for vectors), and how a team combines its results.

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::{LoopKernel, Program};

use crate::loops::wide::Wide;
use crate::loops::{LoopEffects, divides, hint};
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{unravel, volume};
use crate::{GenError, THREADS};

/// Elements of which the parts of a row are multiples, so that they begin at whole vectors where the row does.
const WHOLE: i64 = 64;
/// Points from which rows are taken by teams: below, a launch takes longer than what it moves.
const ENOUGH: i64 = 256 * 1024;
/// Rows up to this long are taken by waves.
const WAVE_ROW: i64 = 2048;
/// Points of a row that a block takes.
const BLOCK_ROW: i64 = 8192;

/// The team's range of the points, as text; all where the row has one team.
pub(crate) struct Range<'a> {
    pub(crate) begin: &'a str,
    pub(crate) end: &'a str,
    /// Number of teams that share the row.
    pub(crate) parts: i64,
}

/// The declarations of a part's range: `begin` and `end` of part `part` of `parts`, both variables, of `count` points.
pub(crate) fn range_of_part(count: &str) -> String {
    format!(
        "const idx chunk = ((idx)({count} + parts - 1) / parts + {0}) / {WHOLE} * {WHOLE}, \
         begin = imin<idx>({count}, part * chunk), end = imin<idx>({count}, begin + chunk);\n",
        WHOLE - 1
    )
}

/// Returns the loops over the points of stage `n` that `threads` threads share, `rank` being the place of a thread among them. `adds`
/// stands before what is done for each point.
pub(crate) fn points(
    head: &BodyWriter<'_>,
    (k, n): (&LoopKernel, usize),
    threads: u32,
    range: Option<&Range<'_>>,
    (effects, adds): (&LoopEffects<'_>, &str),
    uses: &mut Uses,
) -> Result<String, GenError> {
    let stage = &k.stages[n];
    let prefix = format!("v{n}_");
    let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
    let writer = BodyWriter { extents: &extents, prefix: &prefix, ..*head };
    let count = writer.expr(&volume(&stage.inner), uses);
    let (begin, end) = range.map_or(("0", count.as_str()), |r| (r.begin, r.end));
    let parts = range.map_or(1, |r| r.parts);
    let mut out = String::new();
    let single = |uses: &mut Uses| -> Result<String, GenError> {
        let index = unravel(&writer, &stage.inner, k.outer.len(), "q", uses);
        Ok(index + adds + &writer.write(&stage.insts, effects, uses)?)
    };
    // What is counted one by one has one loop, without points before and behind the vectors.
    let wide = Wide::of_team(head.program, k, n, threads, parts).filter(|_| adds.is_empty());
    let Some(wide) = wide else {
        if let Some(rows) = Wide::of_rows(head.program, k, n, threads, parts) {
            return rows.rows_text(&writer, threads, (begin, end), (effects.pairs, adds), uses);
        }
        // NVRTC 13.0 crashes where it unrolls some loops that divide their counter.
        out.push_str(if divides(stage) { "#pragma unroll 1\n" } else { "#pragma unroll 4\n" });
        let from = if begin == "0" { "rank".to_owned() } else { format!("{begin} + rank") };
        let _ = writeln!(out, "for (idx q = {from}; q < {end}; q += {threads}) {{");
        out.push_str(&single(uses)?);
        out.push_str("}\n");
        return Ok(out);
    };
    out.push_str(&wide.team_text(&writer, threads, (begin, end), effects.pairs, uses)?);
    if wide.has_edges() {
        let _ = writeln!(
            out,
            "for (idx e = rank; e < lead + ({end} - whole); e += {threads}) {{\n\
             const idx q = e < lead ? {begin} + e : whole + (e - lead);"
        );
        out.push_str(&single(uses)?);
        out.push_str("}\n");
    }
    Ok(out)
}

/// A loop over points by rows: the kernel with the points of a row as an inner loop, the threads that share it, and how many
/// teams of them a row has.
pub(crate) struct RowPoints {
    pub(crate) kernel: LoopKernel,
    pub(crate) team: u32,
    pub(crate) parts: i64,
}

impl RowPoints {
    /// `None` where no vectors are accessed so.
    pub(crate) fn of(program: &Program, k: &LoopKernel, wave: u32) -> Option<RowPoints> {
        let last = k.outer.iter().rposition(|e| *e != SymExpr::ONE)?;
        let [stage] = &k.stages[..] else { return None };
        let points = hint(program, &volume(&k.outer));
        if !k.accs.is_empty() || !stage.inner.is_empty() || last == 0 || points < ENOUGH {
            return None;
        }
        let row = hint(program, &k.outer[last]);
        let (team, parts) = match row < WAVE_ROW {
            true => (wave, 1),
            false => (THREADS, (row + BLOCK_ROW - 1) / BLOCK_ROW),
        };
        let mut kernel = k.clone();
        kernel.stages[0].inner = k.outer[last..].iter().cloned().collect();
        kernel.outer.truncate(last);
        let fits = Wide::of_team(program, &kernel, 0, team, parts).is_some();
        fits.then_some(RowPoints { kernel, team, parts })
    }
}
