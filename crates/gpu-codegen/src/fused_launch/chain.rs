//! Steps that follow each other as one launch, although one reads what another one writes: products of a few rows that share
//! their left operand, behind the step that makes it (every block makes it itself), the second of two reading what the first
//! one stores at the same point.
//!
//! The steps are then one to memory too: what the last of them writes shares none with what the first one reads. That is
//! the caller's to see to, as is whether a library is faster.

use kernel_ir::{BufId, Footprint, InstKind, LoopKernel, Matmul, Program, Step};

use crate::product::gemv::Skinny;
use crate::product::gemv_rows::Rows;
use crate::product::prologue::Prologue;
use crate::{GenError, LaunchGroup, Target, Variant, fuse_launches};

/// The first of some steps as one.
pub struct Chain {
    /// How many steps.
    pub steps: usize,
    /// The ways of computing them, the best by rule first; never none.
    pub candidates: Vec<Variant>,
}

/// The steps at the head of a list that are one launch; `None` where the first one is a launch of its own.
///
/// # Errors
/// As for the steps themselves.
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

/// A product and the step that makes its left operand.
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

/// Products that stand together, each behind the step that makes the left operand of all.
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

/// The products behind the step that makes their left operand, where there is one.
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

/// Whether blocks may run all of these steps, each for its own part: no step writes memory that an earlier one uses, and what
/// one reads of an earlier one's it has at hand: the left operand of `product`, what the products hand to each other.
fn is_safe(program: &Program, steps: &[Step], product: Option<&Matmul>, rows: &Rows<'_>) -> bool {
    let operand = product.map(|k| program.root(k.a.buf));
    let at_hand: Vec<BufId> = rows.handed().map(|b| program.root(b)).chain(operand).collect();
    // The operand is at hand as an operand, not as what an epilogue or a matrix reads.
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
