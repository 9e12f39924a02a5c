//! Results in memory of the caller: a fused program's outputs become inputs that it writes, so every plugin that writes
//! inputs in place (kernel-ir 1.4) takes them. Results whose size the data decides, and those that share memory with
//! others, are returned as before.

use std::borrow::Cow;

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::runtime::{Binder, SizeSource, Sizes};
use kernel_ir::{BufId, Buffer, InputSpec, OutputSpec, Program, Storage};
use plugin_host::Value;
use smallvec::SmallVec;

use crate::Error;
use crate::pipeline::Kernels;

/// A result for which the caller has the memory.
#[derive(Clone, Debug)]
pub struct LentResult {
    /// Its number among the results.
    pub place: usize,
    /// Element type.
    pub dtype: DType,
    sizes: Shape,
    strides: Shape,
}

/// Sizes and strides of one result in one call, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultLayout {
    /// Number of elements of each dimension.
    pub sizes: SmallVec<[i64; 6]>,
    /// Distances between neighbours.
    pub strides: SmallVec<[i64; 6]>,
}

/// The results for which a caller has the memory, and how their sizes follow from the inputs.
#[derive(Clone, Debug, Default)]
pub(super) struct LentResults {
    pub(super) list: Vec<LentResult>,
    /// The layouts, where no size is symbolic.
    fixed: Option<Vec<ResultLayout>>,
    binder: Option<(Binder, Program)>,
}

impl LentResults {
    /// Of a program to which [`lend`] was applied; `places` are the numbers of the results that it lends, in order,
    /// each with its dtype for the caller where kernels have another.
    pub(super) fn of(program: &Program, places: &[(usize, Option<DType>)]) -> LentResults {
        let Some(first) = program.inputs.len().checked_sub(places.len()) else {
            return LentResults::default();
        };
        let one = |((place, shown), input): (&(usize, Option<DType>), &InputSpec)| {
            let Buffer { dtype, sizes, strides, .. } = program.buffers[input.buf].clone();
            LentResult { place: *place, dtype: shown.unwrap_or(dtype), sizes, strides }
        };
        let list: Vec<LentResult> = places.iter().zip(&program.inputs[first..]).map(one).collect();
        let constant = |e: &SymExpr| e.as_const().is_some();
        if list.iter().all(|r| r.sizes.iter().chain(&r.strides).all(constant)) {
            let none = Sizes::default();
            let fixed = list.iter().map(|r| r.layout(&none)).collect::<Result<_, _>>().ok();
            return LentResults { list, fixed, binder: None };
        }
        let dims = program.inputs[..first].iter().enumerate().flat_map(|(n, input)| {
            let sizes = program.buffers[input.buf].sizes.iter().enumerate();
            sizes.map(move |(dim, size)| (SizeSource::Dim(n, dim), size.clone()))
        });
        let binder = Binder::new(dims, &program.symbols, &[]);
        // Only the table of symbols is needed of it.
        let symbols = Program { symbols: program.symbols.clone(), ..Program::default() };
        LentResults { list, fixed: None, binder: Some((binder, symbols)) }
    }

    /// The layouts in a call with these inputs of the code.
    pub(super) fn layouts(
        &self,
        sizes: &dyn Fn(usize, usize) -> Option<i64>,
    ) -> Result<Cow<'_, [ResultLayout]>, Error> {
        if let Some(fixed) = &self.fixed {
            return Ok(Cow::Borrowed(fixed));
        }
        let Some((binder, symbols)) = &self.binder else { return Ok(Cow::Borrowed(&[])) };
        // A mismatch is reported by the call itself, which knows the inputs' names.
        let sizes = binder.sizes(symbols, sizes).unwrap_or_else(|(_, found)| found);
        self.list.iter().map(|r| r.layout(&sizes)).collect()
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }
}

impl LentResult {
    fn layout(&self, sizes: &Sizes) -> Result<ResultLayout, Error> {
        let all = |list: &Shape| -> Result<SmallVec<[i64; 6]>, Error> {
            let numbers = sizes.all(list).map_err(|e| Error::Internal(e.to_string()))?;
            Ok(numbers.into_iter().map(|n| n.max(0)).collect())
        };
        Ok(ResultLayout { sizes: all(&self.sizes)?, strides: all(&self.strides)? })
    }

    /// Whether a value is memory for it.
    pub(super) fn fits(&self, value: &Value, layout: &ResultLayout) -> bool {
        let sizes = value.sizes().iter().map(|n| *n as i64).eq(layout.sizes.iter().copied());
        self.dtype.carrier() == value.dtype() && sizes
    }
}

/// Makes inputs that the program writes out of those of its outputs that `wanted` names (by number among the graph's
/// results) and that have memory of their own. They are the last inputs, in order, and are stored in place from then on.
pub(crate) fn lend(kernels: &mut Kernels, wanted: &[bool]) {
    let returned = kernels.in_place.iter().enumerate().filter(|(_, stays)| !**stays).map(|(n, _)| n);
    let returned: Vec<usize> = returned.collect();
    if returned.len() != kernels.program.outputs.len() {
        return;
    }
    let program = &kernels.program;
    let may = |(k, spec): (usize, &OutputSpec)| {
        let is_wanted = wanted.get(returned[k]) == Some(&true);
        (is_wanted && has_own_memory(program, spec)).then_some(k)
    };
    let mut chosen: Vec<usize> = program.outputs.iter().enumerate().filter_map(may).collect();
    let first = program.inputs.len();
    while !chosen.is_empty() {
        let made = with_lent(program, &chosen, &returned);
        let hazards = kernel_ir::hazards(&made);
        if hazards.is_empty() {
            if kernel_ir::verify(&made).is_ok() {
                chosen.iter().for_each(|k| kernels.in_place[returned[*k]] = true);
                kernels.program = made;
            }
            return;
        }
        // Such a result is built up in a way that memory of a caller is not.
        let bad = |n: usize| hazards.iter().any(|h| h.input as usize == first + n);
        let before = chosen.len();
        chosen = chosen.iter().enumerate().filter(|(n, _)| !bad(*n)).map(|(_, k)| *k).collect();
        if chosen.len() == before {
            return;
        }
    }
}

/// Whether an output is the whole of a buffer that no other output shows and whose size is known before the call.
fn has_own_memory(program: &Program, spec: &OutputSpec) -> bool {
    let buffer = &program.buffers[spec.buf];
    let others = program.outputs.iter().filter(|o| program.root(o.buf) == spec.buf).count();
    buffer.storage == Storage::Output
        && others == 1
        && spec.offset == SymExpr::ZERO
        && spec.sizes == buffer.sizes
        && spec.strides == buffer.strides
        && !program.is_dynamic(spec.buf)
}

/// The program with these outputs as inputs: the buffer that steps store to becomes a view of the input's.
fn with_lent(program: &Program, chosen: &[usize], returned: &[usize]) -> Program {
    let mut made = program.clone();
    for &k in chosen {
        let old = program.outputs[k].buf;
        let name = format!("result {}", returned[k]);
        let number = made.inputs.len() as u32;
        let memory =
            Buffer { name: name.clone(), storage: Storage::Input(number), ..made.buffers[old].clone() };
        let memory = made.buffers.push(memory);
        let ids: Vec<BufId> = made.buffers.ids().collect();
        for id in ids {
            if id == old || made.buffers[id].storage == Storage::View(old) {
                made.buffers[id].storage = Storage::View(memory);
            }
        }
        made.inputs.push(InputSpec { name, buf: memory, written: true });
    }
    let mut number = 0..;
    made.outputs.retain(|_| !number.next().is_some_and(|n| chosen.contains(&n)));
    made
}
