//! Which of a call's recordings runs next. Kernels' launches can be updated to other addresses, calls of a library cannot: so memory
//! that a library writes is the caller's only in a recording whose last results nobody holds any more, and what a library
//! reads has to lie where it lay. A few recordings in other memory serve callers that hold results for some time, or pass
//! tensors of several places in turn.
//!
//! Not here: what a recording is (`instance`), and anything of a device.

/// Recordings of one set of sizes that give their memory away. Two serve a caller that holds the last results while it asks for
/// the next.
const MOST_GIVING: usize = 2;

/// What a call finds of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Whether it copies what libraries wrote for the caller, and keeps its own memory.
    pub(super) copies: bool,
    /// Whether nobody holds what libraries wrote in it.
    pub(super) is_free: bool,
    /// How many inputs that libraries read lie elsewhere now.
    pub(super) moved: usize,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It runs this recording.
    Replay(usize),
    /// It makes another recording.
    Record { copies: bool },
    /// It makes this recording again, for the present addresses.
    Again(usize),
}

/// The choice among recordings. One that is not free is never chosen, unless it copies.
pub(super) fn choose(all: &[Standing]) -> Choice {
    let giving = || all.iter().enumerate().filter(|(_, s)| !s.copies);
    let free = giving().filter(|(_, s)| s.is_free).min_by_key(|(_, s)| s.moved);
    match free {
        Some((n, s)) if s.moved == 0 => return Choice::Replay(n),
        _ if giving().count() < MOST_GIVING => return Choice::Record { copies: false },
        Some((n, _)) => return Choice::Again(n),
        None => {}
    }
    match all.iter().position(|s| s.copies) {
        None => Choice::Record { copies: true },
        Some(n) if all[n].moved == 0 => Choice::Replay(n),
        Some(n) => Choice::Again(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn giving(is_free: bool, moved: usize) -> Standing {
        Standing { copies: false, is_free, moved }
    }
    const fn copying(moved: usize) -> Standing {
        Standing { copies: true, is_free: true, moved }
    }

    #[test]
    fn a_free_recording_that_fits_runs() {
        assert_eq!(choose(&[giving(true, 0)]), Choice::Replay(0));
        assert_eq!(choose(&[giving(false, 0), giving(true, 0)]), Choice::Replay(1));
        assert_eq!(choose(&[copying(0), giving(true, 3), giving(true, 0)]), Choice::Replay(2));
    }

    #[test]
    fn others_are_made_while_there_are_few() {
        let more = Choice::Record { copies: false };
        assert_eq!(choose(&[]), more);
        assert_eq!(choose(&[giving(false, 0)]), more, "its results are held");
        assert_eq!(choose(&[giving(true, 1)]), more, "an input moved");
        assert_eq!(choose(&[giving(false, 0), copying(0)]), more, "one that copies does not count");
    }

    #[test]
    fn then_the_free_one_with_the_fewest_inputs_elsewhere_is_made_again() {
        assert_eq!(choose(&[giving(true, 2), giving(true, 1)]), Choice::Again(1));
        assert_eq!(choose(&[giving(false, 0), giving(true, 5), copying(0)]), Choice::Again(1));
    }

    #[test]
    fn results_are_copied_where_all_are_held() {
        let held = [giving(false, 0); MOST_GIVING];
        let with = |one| [held[0], held[1], one];
        assert_eq!(choose(&held), Choice::Record { copies: true });
        assert_eq!(choose(&with(copying(0))), Choice::Replay(2));
        assert_eq!(choose(&with(copying(1))), Choice::Again(2));
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
            match choose(&all) {
                Choice::Replay(n) => assert!(all[n].is_free && all[n].moved == 0, "{all:?}"),
                Choice::Again(n) => assert!(all[n].is_free && all[n].moved > 0, "{all:?}"),
                Choice::Record { copies: true } => assert!(all.iter().all(|s| !s.copies), "{all:?}"),
                Choice::Record { copies: false } => {
                    assert!(all.iter().filter(|s| !s.copies).count() < MOST_GIVING, "{all:?}");
                }
            }
        }
    }
}
