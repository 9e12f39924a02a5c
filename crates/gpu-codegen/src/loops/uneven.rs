//! Loops over the elements of rows that are not whole vectors, in memory where rows begin at multiples of one (`library::rows`): the
//! whole vectors of each row, and the few elements behind them, are two kernels.
//!
//! Not here: reductions along such rows, whose teams take what is left themselves (`wide`).

use ir_core::SymExpr;
use kernel_ir::{LoopKernel, Program};

use crate::loops::hint;
use crate::loops::wide::{LANES, Wide};
use crate::text::template::volume;

/// Points from which a second launch takes less time than accesses of single elements cost.
const ENOUGH: i64 = 256 * 1024;

/// Both parts, where the first one takes vectors and the whole does not.
pub(crate) fn parts(program: &Program, k: &LoopKernel) -> Option<[LoopKernel; 2]> {
    let points = k.accs.is_empty() && k.stages.iter().all(|s| s.inner.is_empty());
    let last = k.outer.iter().rposition(|e| *e != SymExpr::ONE)?;
    let row = k.outer[last].as_const()?;
    let whole = row - row % LANES[0];
    if !points || whole == row || whole == 0 || hint(program, &volume(&k.outer)) < ENOUGH {
        return None;
    }
    let [whole, rest] = [whole, row - whole].map(SymExpr::from_i64);
    let first = k.shifted(last, &SymExpr::ZERO, whole.clone());
    let lanes = |k: &LoopKernel| Wide::of(program, k).map_or(1, |w| w.lanes());
    (lanes(&first) > lanes(k)).then(|| [first, k.shifted(last, &whole, rest)])
}
