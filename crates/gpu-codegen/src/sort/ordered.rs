//! Atomic additions in a fixed order, for deterministic targets. Every summand becomes an item whose key is its address;
//! the items are sorted (stably, so summands of one address keep the order of the points), and one thread per address adds
//! them. Other forms (several additions, inner loops) are run by a single thread: slow, but in order.

use ir_core::{DType, SymExpr};
use kernel_ir::{AccDecl, AccId, BufId, InstKind, LoopKernel, Program, ReduceOp, StoreMode};

use crate::sort::Merging;
use crate::text::body::{BodyWriter, Effects, accumulator};
use crate::text::template::{assemble, blocks_of, unravel, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Variant};

/// A combining store whose result depends on the order: not of integers, and not a maximum or minimum.
fn combining(kind: &InstKind, dtype: DType) -> Option<(BufId, ReduceOp)> {
    let InstKind::Store { buf, mode, .. } = kind else { return None };
    let op = match mode {
        StoreMode::Write => return None,
        StoreMode::Add => ReduceOp::Sum,
        StoreMode::Reduce(op) => *op,
    };
    (dtype.is_float() && matches!(op, ReduceOp::Sum | ReduceOp::Prod)).then_some((*buf, op))
}

/// Whether the result of a kernel depends on the order of its threads.
pub(crate) fn unordered(k: &LoopKernel) -> bool {
    k.stages.iter().flat_map(|s| &s.insts).any(|i| combining(&i.kind, i.dtype).is_some())
}

/// Generates the kernels of such an addition, where its form is supported.
pub(crate) fn sorted(program: &Program, k: &LoopKernel) -> Result<Option<Variant>, GenError> {
    let [stage] = &k.stages[..] else { return Ok(None) };
    let mut stores = stage.insts.iter().filter_map(|i| combining(&i.kind, i.dtype));
    let (Some((buf, op)), None, true) = (stores.next(), stores.next(), stage.inner.is_empty()) else {
        return Ok(None);
    };
    let points = volume(&k.outer);
    let bounds = program.bounds();
    let most = points.range(&bounds).1.unwrap_or(1 << 32).max(1);
    if most > 1 << 32 || !k.accs.is_empty() {
        return Ok(None);
    }
    let root = program.root(buf);
    let dtype = program.buffers[buf].dtype;
    let short = program.buffers[root].span().range(&bounds).1.is_some_and(|n| n < i64::from(u32::MAX));
    let (item, item_bytes) = if short { ("u64", 8) } else { ("LongItem", 16) };
    let ty = memory_type(dtype)?;
    let values = Some((ty, dtype.size() as i64));
    let merging = Merging { rows: SymExpr::ONE, length: points, item, item_bytes, values };
    let writer = BodyWriter { program, extents: &k.outer, prefix: "v", guard: None, store_guard: None };
    let mut uses = merging.uses();
    let mut make = unravel(&writer, &k.outer, 0, "at", &mut uses);
    make.push_str(&writer.write(
        &stage.insts,
        &Collect { key: if short { "u32" } else { "u64" } },
        &mut uses,
    )?);
    let mut kernels = vec![merging.pieces(&writer, uses, &make)?];
    kernels.extend(merging.merges(&writer, most)?);
    kernels.push(add_up(&merging, &writer, root, ty, accumulator(&AccDecl { op, dtype }))?);
    Ok(Some(Variant { name: "ordered".into(), kernels, scratch: merging.scratch() }))
}

/// The kernel in which the thread of an address's first item adds the items that follow.
fn add_up(
    merging: &Merging,
    writer: &BodyWriter<'_>,
    root: BufId,
    ty: &str,
    op: &str,
) -> Result<Kernel, GenError> {
    let mut uses = merging.uses();
    let count = writer.expr(&merging.length, &mut uses);
    let memory = uses.memory(root);
    uses.written.insert(root);
    uses.loaded.insert(root);
    let sorted = merging.sorted(&count);
    let body = format!(
        "{sorted}for (i64 p = blockIdx.x * (i64){THREADS} + threadIdx.x; p < {count}; p += (i64)gridDim.x * {THREADS}) {{
const u64 to_address = item_address(sorted[p]);
if (is_last(sorted[p]) || (p > 0 && item_address(sorted[p - 1]) == to_address)) continue;
Wide<{ty}>::type sum = to<Wide<{ty}>::type>({memory}[to_address]);
for (i64 q = p; q < {count} && !is_last(sorted[q]) && item_address(sorted[q]) == to_address; ++q)
sum = combine<{op}>(sum, to<Wide<{ty}>::type>(scratch2[item_position(sorted[q])]));
{memory}[to_address] = to<{ty}>(sum);
}}
"
    );
    let launch = Launch::flat(blocks_of(&merging.length, i64::from(THREADS)), THREADS);
    assemble(writer.program, ENTRY, &uses, launch, &body)
}

/// The effects of a body whose additions become items.
struct Collect {
    /// The C++ type of keys.
    key: &'static str,
}

impl Effects for Collect {
    fn reduce(&self, _: AccId, _: &str, _: Option<&str>) -> Result<String, GenError> {
        Err(GenError::Malformed("a reduction without a loop".into()))
    }
    fn acc(&self, _: AccId) -> String {
        "0".into()
    }
    fn scan(&self, _: &str, _: DType, _: ReduceOp, _: &str) -> Result<String, GenError> {
        Err(GenError::Malformed("a scan without a loop".into()))
    }
    fn template(&self) -> Result<String, GenError> {
        Err(GenError::Malformed("`template` outside of an epilogue".into()))
    }
    fn combine(&self, element: &str, _: &str, _: &str, value: &str) -> String {
        let memory = element.split('[').next().unwrap_or(element);
        let key = self.key;
        format!("{{ make_item(item, ({key})(&{element} - {memory}), (u32)at); scratch2[at] = {value}; }}")
    }
}
