//! The search of `max-autotune`: products and convolutions by constant weights are run in each of their ways on this machine, in memory
//! of a call's sizes, and the quickest way is taken. Steps of one class (operation, sizes, layout) are timed once.
//!
//! The rule's own way stays where another one is not clearly quicker: times vary by what else the machine does. Not here: what ways there are
//! (`micro::Way`, and the two forms of weights of a convolution), and where choices are kept (`table`).

mod table;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use ir_core::EntityId;
use kernel_ir::runtime::Sizes;
use kernel_ir::{BufId, Storage};

use super::memory::Block;
use super::packs::{self, Packed};
use super::{Buffers, Call, Compiled, ExecError, Op, byte_size, chain};
use crate::clif::{self, Fault};
use crate::micro::{Way, team};
pub(super) use table::Table;

/// Runs of each way at first, and of those that were close in them.
const FIRST_RUNS: usize = 4;
const MORE_RUNS: usize = 12;
/// Ways that took this much longer than the quickest one at first are not run again.
const CLOSE: f64 = 1.25;
/// A way is taken instead of the rule's where it takes less than this share of its time, twice.
const GAIN: f64 = 0.95;
/// Bytes that each thread reads before a run, as much as second-level caches hold: in a call other steps have run meanwhile.
const EVICTED: usize = 2 << 20;

/// A step whose weights are packed.
struct Tunable<'a> {
    op: &'a Op,
    slot: usize,
}

/// One way to compute a step: a form of its weights and how they are multiplied.
struct Candidate {
    name: String,
    /// The weights are in the form that the rule does not choose.
    other: bool,
    way: Option<Way>,
}

/// Weights in the rule's form, and in the other one where there is one.
struct Forms {
    slot: usize,
    other: Option<Packed>,
    /// The slot has the other form at present.
    swapped: bool,
}

impl Forms {
    /// Makes a candidate the present one.
    fn choose(&mut self, candidate: &Candidate, packed: &mut [Option<Packed>]) {
        if candidate.other != self.swapped && self.other.is_some() {
            std::mem::swap(&mut packed[self.slot], &mut self.other);
            self.swapped = candidate.other;
        }
        if let (Some(way), Some(weights)) = (candidate.way, &mut packed[self.slot]) {
            weights.set_way(way);
        }
    }
}

/// The candidates of weights in both forms, the rule's own one first.
fn candidates(packed: &Packed, other: Option<&Packed>) -> Vec<Candidate> {
    let of_form = |packed: &Packed, other: bool| -> Vec<Candidate> {
        let form = packed.form();
        let ways = packed.ways();
        let named = |way: &Way| Candidate { name: format!("{form}{way}"), other, way: Some(*way) };
        match ways.is_empty() {
            true => vec![Candidate { name: form.trim_end_matches(", ").to_owned(), other, way: None }],
            false => ways.iter().map(named).collect(),
        }
    };
    let mut all = of_form(packed, false);
    all.extend(other.into_iter().flat_map(|packed| of_form(packed, true)));
    all
}

impl Compiled {
    /// Chooses a way for each step with packed weights, from the table or by time. `base` has the bound constants; of weights that were `loaded`
    /// from a file it may lack them: they keep their form, and nothing is timed. What cannot be run, or has no memory to run in, keeps the rule's way.
    pub(super) fn tune(
        &self,
        table: &Table,
        (base, loaded): (&Buffers, bool),
        sizes: &Sizes,
        packed: &mut [Option<Packed>],
    ) {
        // Buffers of sizes that only steps tell have no memory outside of a call.
        if self.program.symbols.values().any(|symbol| symbol.unbacked) {
            return;
        }
        let mut steps = Vec::new();
        packs::each(&self.steps, &mut |op, slot| steps.push(Tunable { op, slot }));
        let mut memory = None;
        // Of steps of one class the first is timed; the table tells the others.
        for Tunable { op, slot } in steps {
            let (Some(weights), Some(class)) = (&packed[slot], op.class(sizes)) else { continue };
            let class = format!("{class}, {} threads", self.threads);
            let known = table.get(&class);
            let present = candidates(weights, None);
            let is_present = present.iter().any(|c| Some(&c.name) == known.as_ref());
            let other = if loaded || is_present { None } else { op.packed_otherwise(base, sizes) };
            let all = candidates(weights, other.as_ref());
            let mut forms = Forms { slot, other, swapped: false };
            if all.len() < 2 || loaded && !is_present {
                continue;
            }
            let chosen = match known.and_then(|name| all.iter().position(|c| c.name == name)) {
                Some(chosen) => chosen,
                None => {
                    let memory = match &mut memory {
                        Some(memory) => memory,
                        none => match Memory::new(self, base, sizes) {
                            Ok(new) => none.insert(new),
                            Err(_) => break,
                        },
                    };
                    let Ok(times) = self.times(op, (memory, sizes), &all, &mut forms, packed) else {
                        forms.choose(&all[0], packed);
                        continue;
                    };
                    tracing::info!(target: "autotune", "{}", printed(&class, &all, &times));
                    let chosen = times.chosen;
                    table.put(&class, &all[chosen].name);
                    chosen
                }
            };
            forms.choose(&all[chosen], packed);
        }
        table.keep();
    }

    /// The least times of a step's candidates in turn, and which one is taken.
    ///
    /// # Errors
    /// The step cannot be run.
    fn times(
        &self,
        op: &Op,
        (memory, sizes): (&Memory, &Sizes),
        all: &[Candidate],
        forms: &mut Forms,
        packed: &mut [Option<Packed>],
    ) -> Result<Times, ExecError> {
        let shared = Mutex::new((forms, packed));
        // The team's threads are kept ready as in a call.
        self.in_team(true, &|| {
            let mut guard = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let (forms, packed) = &mut *guard;
            let fault = Fault::default();
            let call = Call { buffers: &memory.buffers, sizes, code: &self.code, fault: &fault };
            let mut rounds = |count: usize, which: &[usize]| -> Result<HashMap<usize, f64>, ExecError> {
                let mut least: HashMap<usize, f64> = which.iter().map(|n| (*n, f64::INFINITY)).collect();
                for _ in 0..count {
                    for n in which {
                        forms.choose(&all[*n], packed);
                        memory.evict();
                        let start = Instant::now();
                        super::run_alone(op, &call, packed)?;
                        let seconds = start.elapsed().as_secs_f64();
                        least.entry(*n).and_modify(|t| *t = t.min(seconds));
                    }
                }
                Ok(least)
            };
            let mut times = rounds(FIRST_RUNS, &(0..all.len()).collect::<Vec<_>>())?;
            let best = times.values().copied().fold(f64::INFINITY, f64::min);
            let mut close: Vec<usize> =
                (0..all.len()).filter(|n| *n == 0 || times[n] <= CLOSE * best).collect();
            if close.len() > 1 {
                for (n, seconds) in rounds(MORE_RUNS, &close)? {
                    times.entry(n).and_modify(|t| *t = t.min(seconds));
                }
            }
            close.sort_by(|a, b| times[a].total_cmp(&times[b]));
            let (first, mut chosen) = (close[0], 0);
            if first != 0 && times[&first] < GAIN * times[&0] {
                let again = rounds(MORE_RUNS, &[0, first])?;
                chosen = if again[&first] < GAIN * again[&0] { first } else { 0 };
            }
            Ok(Times { seconds: (0..all.len()).map(|n| times[&n]).collect(), chosen })
        })?
    }
}

impl Op {
    /// The class of a step with packed weights: what its times depend on. `None` where it cannot be sized or has no class.
    fn class(&self, sizes: &Sizes) -> Option<String> {
        match self {
            Op::Matmul(m, _) => m.class(sizes).ok(),
            Op::Conv(c, _) => c.class(sizes).ok(),
            Op::Narrow(n, _) => n.class(sizes).ok(),
            Op::Staged(s, _) => s.class(sizes).ok().flatten(),
            _ => None,
        }
    }

    /// Its weight in the form that the rule does not choose, where there is one.
    fn packed_otherwise(&self, base: &Buffers, sizes: &Sizes) -> Option<Packed> {
        match self {
            Op::Conv(c, _) => c.pack_otherwise(base, sizes).ok().flatten().map(Packed::Conv),
            _ => None,
        }
    }
}

/// What was measured of a step.
struct Times {
    /// Of each candidate, the least.
    seconds: Vec<f64>,
    chosen: usize,
}

/// The candidates and their times as a table, fastest first, in the form that PyTorch prints.
fn printed(class: &str, all: &[Candidate], times: &Times) -> String {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|a, b| times.seconds[*a].total_cmp(&times.seconds[*b]));
    let best = order.first().map_or(0.0, |n| times.seconds[*n]);
    let mut text = format!("AUTOTUNE {class}\n");
    for n in order {
        let (time, taken) = (times.seconds[n], if n == times.chosen { "  taken" } else { "" });
        let share = 100.0 * best / time.max(f64::MIN_POSITIVE);
        let _ = writeln!(text, "  {:<48} {:>9.4} ms {share:>6.1}%{taken}", all[n].name, 1e3 * time);
    }
    text
}

/// Memory for all buffers of a call. It is zeros, which are valid indices and ordinary numbers.
struct Memory {
    buffers: Buffers,
    evicted: Vec<Block>,
    _blocks: Vec<Block>,
}

impl Memory {
    fn new(compiled: &Compiled, base: &Buffers, sizes: &Sizes) -> Result<Memory, ExecError> {
        let program = &compiled.program;
        let mut buffers = Buffers(base.0.clone());
        buffers.0.resize(program.buffers.len(), clif::ZEROS.address() as *mut u8);
        let mut blocks = Vec::new();
        let zeroed = |bytes: usize| -> Result<Block, ExecError> {
            let block = Block::new(bytes)?;
            // SAFETY: the block has this many bytes.
            unsafe { block.ptr().write_bytes(0, block.len()) };
            Ok(block)
        };
        for (id, buffer) in program.buffers.iter() {
            let own = matches!(buffer.storage, Storage::Input(_) | Storage::Output);
            if let (true, Ok(bytes)) = (own, byte_size(buffer, sizes)) {
                let block = zeroed(bytes)?;
                buffers.0[BufId::index(id)] = block.ptr();
                blocks.push(block);
            }
        }
        let place = compiled.place(sizes)?;
        let arena = zeroed(usize::try_from(place.bytes).unwrap_or(usize::MAX))?;
        for (live, offset) in program.plan.lives.iter().zip(&place.offsets) {
            buffers.0[live.buf.index()] = arena.ptr().wrapping_add(*offset as usize);
        }
        blocks.push(arena);
        // What lies between chained steps has no place in the arena. Steps run one at a time: they share a block.
        let between: Vec<BufId> = chain::all_between(&compiled.steps).collect();
        let bytes = between.iter().map(|b| byte_size(&program.buffers[*b], sizes));
        let shared = zeroed(bytes.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0))?;
        between.iter().for_each(|b| buffers.0[b.index()] = shared.ptr());
        blocks.push(shared);
        let evicted = (0..compiled.threads).map(|_| zeroed(EVICTED)).collect::<Result<_, _>>()?;
        Ok(Memory { buffers, evicted, _blocks: blocks })
    }

    /// Each thread reads memory of its own, so that what it had in its second-level cache is no longer there.
    fn evict(&self) {
        team::par_for(self.evicted.len(), &|n| {
            let block = &self.evicted[n];
            // SAFETY: the block was written and has this many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(block.ptr(), block.len()) };
            let sum = bytes.chunks_exact(64).fold(0u8, |sum, line| sum.wrapping_add(line[0]));
            std::hint::black_box(sum);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::{ConvPlan, ConvShape, Isa, Strides5};

    #[test]
    fn both_forms_of_a_convolution_are_candidates_and_either_can_be_chosen() {
        let shape = ConvShape {
            pad_lo: [0, 1, 1],
            pad_hi: [0, 1, 1],
            ..ConvShape::conv2d(1, 32, [28; 2], 32, [3; 2])
        };
        let rows = Strides5::channels_last(32, [1, 28, 28]);
        let plan = ConvPlan::new(Isa::best(), shape, rows, rows).unwrap();
        let weight = vec![0.5f32; 32 * 32 * 9];
        let strides = [32 * 9, 9, 9, 3, 1];
        // SAFETY: the weight has these strides.
        let (rule, other) = unsafe {
            (plan.pack_constant(weight.as_ptr(), strides), plan.pack_otherwise(weight.as_ptr(), strides))
        };
        assert!(rule.is_winograd());
        let other = other.map(Packed::Conv);
        let mut packed = [None, Some(Packed::Conv(rule))];
        let all = candidates(packed[1].as_ref().unwrap(), other.as_ref());
        assert_eq!(all[0].name, "transformed tiles");
        assert_eq!(all[1].name, "blocks by rule");
        let mut forms = Forms { slot: 1, other, swapped: false };
        for n in [0, 1, 2, 0, 2] {
            forms.choose(&all[n], &mut packed);
            let Some(Packed::Conv(weights)) = &packed[1] else { panic!("the slot holds weights") };
            assert_eq!(weights.is_winograd(), n == 0, "candidate {n}");
        }
    }
}
