//! Consecutive dependent steps as one launch: products of a few rows that share their left operand, fused with the step
//! that computes it (every block computes it itself), and two products of which the second reads what the first stores at
//! the same point.
//!
//! The fused steps count as one step for the memory plan: the outputs of the last may not overlap the inputs of the first.
//! The caller sees to that, and to whether a library would be faster.

use kernel_ir::{BufId, Footprint, InstKind, LoopKernel, Matmul, Program, Step};

use crate::product::gemv::Skinny;
use crate::product::gemv_rows::Rows;
use crate::product::prologue::Prologue;
use crate::{GenError, LaunchGroup, Target, Variant, fuse_launches};

/// Steps at the head of a list, fused into one launch.
pub struct Chain {
    /// Number of steps.
    pub steps: usize,
    /// The candidate implementations, best first by rule; never empty.
    pub candidates: Vec<Variant>,
}

/// Returns the steps at the head of a list that can be one launch; `None` where the first one is launched on its own.
///
/// # Errors
/// The errors of the steps themselves.
pub fn chain(program: &Program, steps: &[Step], target: &Target) -> Result<Option<Chain>, GenError> {
    let (made, rest) = match steps {
        [Step::Loop(k), rest @ ..] => (Some(k), rest),
        _ => (None, steps),
    };
    let before = usize::from(made.is_some());
    match rest {
        [Step::Together(t), ..] => match made {
            Some(k) => shared(program, steps, k, &t.steps, target),
            None => Ok(None),
        },
        [Step::Matmul(a), Step::Matmul(b), ..] => {
            if let Some(rows) = pair(program, a, b).and_then(|rows| with_prologue(program, rows, made, a))
                && is_safe(program, &steps[..before + 2], made.map(|_| a), &rows)
            {
                return Ok(Some(Chain { steps: before + 2, candidates: rows.variants(target)? }));
            }
            single(program, steps, made, a, target)
        }
        [Step::Matmul(a), ..] => single(program, steps, made, a, target),
        _ => Ok(None),
    }
}

/// Fuses a product with the step that computes its left operand.
fn single(
    program: &Program,
    steps: &[Step],
    made: Option<&LoopKernel>,
    product: &Matmul,
    target: &Target,
) -> Result<Option<Chain>, GenError> {
    if made.is_none() {
        return Ok(None);
    }
    let rows = Skinny::of(program, product).and_then(|s| with_prologue(program, Rows::of(s), made, product));
    match rows.filter(|rows| is_safe(program, &steps[..2], Some(product), rows)) {
        Some(rows) => Ok(Some(Chain { steps: 2, candidates: rows.variants(target)? })),
        None => Ok(None),
    }
}

/// Fuses several products with the step that computes the left operand of all.
fn shared(
    program: &Program,
    steps: &[Step],
    made: &LoopKernel,
    members: &[Step],
    target: &Target,
) -> Result<Option<Chain>, GenError> {
    let mut kernels = Vec::with_capacity(members.len());
    for (n, member) in members.iter().enumerate() {
        let Step::Matmul(product) = member else { return Ok(None) };
        let prologue = Prologue::of(program, made, &product.a, n == 0);
        let rows = Skinny::of(program, product).and_then(|s| Rows::of(s).with_prologue(prologue));
        let Some(rows) = rows.filter(|rows| is_safe(program, &steps[..2], Some(product), rows)) else {
            return Ok(None);
        };
        let Some(candidate) = rows.variants(target)?.into_iter().next() else { return Ok(None) };
        kernels.extend(candidate.kernels);
    }
    let mut group = LaunchGroup::default();
    if !kernels.iter().all(|kernel| group.add(program, kernel, target)) {
        return Ok(None);
    }
    let kernel = fuse_launches(program, &group)?;
    Ok(kernel.map(|kernel| Chain { steps: 2, candidates: vec![Variant::single("staged_fused", kernel)] }))
}

fn pair<'a>(program: &'a Program, a: &'a Matmul, b: &'a Matmul) -> Option<Rows<'a>> {
    Rows::pair(Skinny::of(program, a)?, Skinny::of(program, b)?)
}

/// Adds the step that computes the left operand, where there is one.
fn with_prologue<'a>(
    program: &'a Program,
    rows: Rows<'a>,
    made: Option<&'a LoopKernel>,
    product: &'a Matmul,
) -> Option<Rows<'a>> {
    match made {
        Some(k) => rows.with_prologue(Prologue::of(program, k, &product.a, true)),
        None => Some(rows),
    }
}

/// Whether each block may run its part of all these steps: no step writes memory that an earlier one uses, and what a step
/// reads of an earlier one is available in the block: the left operand of `product`, and the values that the products pass
/// on.
fn is_safe(program: &Program, steps: &[Step], product: Option<&Matmul>, rows: &Rows<'_>) -> bool {
    let operand = product.map(|k| program.root(k.a.buf));
    let at_hand: Vec<BufId> = rows.handed().map(|b| program.root(b)).chain(operand).collect();
    // The left operand is available as such, not for reads by an epilogue or as the matrix.
    let otherwise = |step: &Step| match step {
        Step::Matmul(k) => {
            let reads = k.epilogue.insts.iter().filter_map(|i| match &i.kind {
                InstKind::Load { buf, .. } => Some(program.root(*buf)),
                _ => None,
            });
            reads.chain([program.root(k.b.buf)]).any(|b| Some(b) == operand)
        }
        _ => false,
    };
    let mut products = steps.iter().flat_map(|step| match step {
        Step::Together(t) => &t.steps[..],
        other => std::slice::from_ref(other),
    });
    if products.any(otherwise) {
        return false;
    }
    let mut before = Footprint::default();
    for step in steps {
        let own = Footprint::of(program, step);
        let writes = own.writes.iter().any(|b| before.writes.contains(b) || before.reads.contains(b));
        let reads = own.reads.iter().any(|b| before.writes.contains(b) && !at_hand.contains(b));
        if writes || reads {
            return false;
        }
        before.extend(&own);
    }
    true
}
