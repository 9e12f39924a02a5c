//! Which of a call's recordings runs next. Kernels' launches can be updated to other addresses, calls of a library cannot: so memory
//! that a library writes is the caller's only in a recording whose last results nobody holds any more, and what a library
//! reads has to lie where it lay. A few recordings in other memory serve callers that hold results for some time, or pass
//! tensors of several places in turn.
//!
//! Some programs are called many times in each round of the caller's: one compiled layer with the weights of each layer in turn, whose
//! results are held until the backward pass. They get a recording for each call of a round, as long as recordings are found to be of
//! use again ([`Credit`]).
//!
//! Not here: what a recording is (`instance`), and anything of a device.

use std::cmp::Reverse;

/// Recordings of one set of sizes that give their memory away and need no credit. Two serve a caller that holds the last results while it
/// asks for the next.
const MOST_GIVING: usize = 2;
/// Most recordings that give their memory away.
const MOST_WITH_CREDIT: usize = 32;
/// More recordings than `MOST_GIVING` that are made before any is known to be of use again.
const FIRST_CREDIT: usize = 6;
/// More recordings that are made for each one that was of use after others had run.
const CREDIT_OF_A_USE: usize = 2;
/// Where a recording's memory is larger, in bytes, none is made because an input of libraries lies elsewhere.
const LARGE: u64 = 32 << 20;
/// The most bytes of recordings that are made by credit: they keep their memory when the caller lets go of it.
const MOST_BYTES: u64 = 4 << 30;

/// How many more recordings may be made that give their memory away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit(usize);

impl Default for Credit {
    fn default() -> Self {
        Credit(FIRST_CREDIT)
    }
}

impl Credit {
    /// A recording runs that did not run at the call before.
    pub(super) fn earn(&mut self) {
        self.0 = (self.0 + CREDIT_OF_A_USE).min(MOST_WITH_CREDIT);
    }

    /// A recording is made that gives its memory away, beside so many.
    pub(super) fn spend(&mut self, beside: usize) {
        if beside >= MOST_GIVING {
            self.0 = self.0.saturating_sub(1);
        }
    }

    fn allows(self, giving: usize) -> bool {
        giving < MOST_WITH_CREDIT && self.0 > 0
    }
}

/// What a call finds of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Whether it copies what libraries wrote for the caller, and keeps its own memory.
    pub(super) copies: bool,
    /// Whether nobody holds what libraries wrote in it.
    pub(super) is_free: bool,
    /// How many inputs that libraries read lie elsewhere now.
    pub(super) moved: usize,
    /// How many inputs that libraries read it copies in this call, which it could read where they lie.
    pub(super) copied: usize,
    /// The number of the last call that ran it.
    pub(super) used: u64,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It runs this recording.
    Replay(usize),
    /// It makes another recording. `exact`: one that copies no inputs, for the calls of a round that have these.
    Record { copies: bool, exact: bool },
    /// It makes this recording again, for the present addresses.
    Again(usize),
}

/// The choice among recordings of a program, each of which has so many bytes of its own. One that is not free is never chosen, unless it copies.
pub(super) fn choose(all: &[Standing], credit: Credit, bytes: u64) -> Choice {
    let giving = || all.iter().enumerate().filter(|(_, s)| !s.copies);
    // One that copies no inputs first. The one that ran last is given up first: of a round of calls, it waits longest for its turn.
    let free = giving().filter(|(_, s)| s.is_free).min_by_key(|(_, s)| (s.moved, s.copied, Reverse(s.used)));
    let count = giving().count();
    // Where all are held, the caller has as much memory; beside a free one its memory is more than the caller has.
    let small = bytes.saturating_mul(count as u64 + 1) <= MOST_BYTES && (free.is_none() || bytes <= LARGE);
    let more = count < MOST_GIVING || (credit.allows(count) && small);
    match free {
        Some((n, s)) if s.moved == 0 && (s.copied == 0 || !more || count < MOST_GIVING) => {
            return Choice::Replay(n);
        }
        _ if more => return Choice::Record { copies: false, exact: count >= MOST_GIVING },
        Some((n, _)) => return Choice::Again(n),
        None => {}
    }
    match all.iter().position(|s| s.copies) {
        None => Choice::Record { copies: true, exact: false },
        Some(n) if all[n].moved == 0 => Choice::Replay(n),
        Some(n) => Choice::Again(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn giving(is_free: bool, moved: usize) -> Standing {
        Standing { copies: false, is_free, moved, copied: 0, used: 0 }
    }
    const fn copying(moved: usize) -> Standing {
        Standing { copies: true, is_free: true, moved, copied: 0, used: 0 }
    }

    /// The choice for small results without credit.
    fn without(all: &[Standing]) -> Choice {
        choose(all, Credit(0), 1 << 10)
    }

    #[test]
    fn a_free_recording_that_fits_runs() {
        assert_eq!(without(&[giving(true, 0)]), Choice::Replay(0));
        assert_eq!(without(&[giving(false, 0), giving(true, 0)]), Choice::Replay(1));
        assert_eq!(without(&[copying(0), giving(true, 3), giving(true, 0)]), Choice::Replay(2));
        let staged = Standing { copied: 2, used: 9, ..giving(true, 0) };
        assert_eq!(without(&[staged, giving(true, 0)]), Choice::Replay(1), "it copies nothing");
    }

    #[test]
    fn others_are_made_while_there_are_few() {
        let more = Choice::Record { copies: false, exact: false };
        assert_eq!(without(&[]), more);
        assert_eq!(without(&[giving(false, 0)]), more, "its results are held");
        assert_eq!(without(&[giving(true, 1)]), more, "an input moved");
        assert_eq!(without(&[giving(false, 0), copying(0)]), more, "one that copies does not count");
    }

    #[test]
    fn then_the_free_one_with_the_fewest_inputs_elsewhere_is_made_again() {
        assert_eq!(without(&[giving(true, 2), giving(true, 1)]), Choice::Again(1));
        assert_eq!(without(&[giving(false, 0), giving(true, 5), copying(0)]), Choice::Again(1));
        let later = Standing { used: 1, ..giving(true, 1) };
        assert_eq!(without(&[giving(true, 1), later]), Choice::Again(1), "it ran last");
    }

    #[test]
    fn results_are_copied_where_all_are_held() {
        let held = [giving(false, 0); MOST_GIVING];
        let with = |one| [held[0], held[1], one];
        assert_eq!(without(&held), Choice::Record { copies: true, exact: false });
        assert_eq!(without(&with(copying(0))), Choice::Replay(2));
        assert_eq!(without(&with(copying(1))), Choice::Again(2));
    }

    #[test]
    fn credit_makes_more() {
        let (credit, more) = (Credit::default(), Choice::Record { copies: false, exact: true });
        let held = [giving(false, 0); MOST_GIVING];
        let moved = [giving(true, 1); MOST_GIVING];
        assert_eq!(choose(&held, credit, LARGE + 1), more, "the caller has their memory");
        assert_eq!(
            choose(&held, credit, MOST_BYTES),
            Choice::Record { copies: true, exact: false },
            "it would be kept"
        );
        assert_eq!(choose(&moved, credit, LARGE), more);
        let staged = [Standing { copied: 1, ..giving(true, 0) }; MOST_GIVING];
        assert_eq!(choose(&staged, credit, LARGE), more, "one that reads where they lie");
        assert_eq!(without(&staged), Choice::Replay(0));
        assert_eq!(choose(&moved, credit, LARGE + 1), Choice::Again(0), "it would take memory");
        let full = [giving(false, 0); MOST_WITH_CREDIT];
        assert_eq!(choose(&full, credit, 0), Choice::Record { copies: true, exact: false });
    }

    /// A compiled layer that is called for each of many layers, whose results are held until all have run.
    #[test]
    fn layers_in_turn_get_a_recording_each() {
        let (layers, mut credit) = (24, Credit::default());
        // The layer of each recording that gives its memory away.
        let mut known: Vec<usize> = Vec::new();
        let mut copied = 0;
        for _ in 0..6 {
            let mut held: Vec<usize> = Vec::new();
            copied = 0;
            for layer in 0..layers {
                let standing =
                    |(n, own): (usize, &usize)| giving(!held.contains(&n), usize::from(*own != layer));
                let all: Vec<Standing> = known.iter().enumerate().map(standing).collect();
                match choose(&all, credit, LARGE) {
                    Choice::Replay(n) => {
                        credit.earn();
                        held.push(n);
                    }
                    Choice::Record { copies: false, .. } => {
                        credit.spend(known.len());
                        known.push(layer);
                        held.push(known.len() - 1);
                    }
                    Choice::Again(n) => {
                        known[n] = layer;
                        held.push(n);
                    }
                    Choice::Record { copies: true, .. } => copied += 1,
                }
            }
        }
        assert_eq!((copied, known.len()), (0, layers));
    }

    /// Whatever there is: no held memory is written, and there are never more recordings than the limit and one that copies.
    #[test]
    fn held_memory_is_never_chosen() {
        let kinds: Vec<Standing> = [giving(false, 0), giving(false, 1), giving(true, 0), giving(true, 1)]
            .into_iter()
            .chain([copying(0), copying(1)])
            .collect();
        for n in 0..kinds.len().pow(3) {
            let all: Vec<Standing> = [n, n / 6, n / 36].map(|d| kinds[d % 6]).to_vec();
            match without(&all) {
                Choice::Replay(n) => assert!(all[n].is_free && all[n].moved == 0, "{all:?}"),
                Choice::Again(n) => assert!(all[n].is_free && all[n].moved > 0, "{all:?}"),
                Choice::Record { copies: true, .. } => assert!(all.iter().all(|s| !s.copies), "{all:?}"),
                Choice::Record { copies: false, .. } => {
                    assert!(all.iter().filter(|s| !s.copies).count() < MOST_GIVING, "{all:?}");
                }
            }
        }
    }
}
