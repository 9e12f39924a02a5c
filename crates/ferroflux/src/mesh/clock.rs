//! The time that the ranks of a mesh have in common, measured once, when they join: by messages that all ranks send and receive, so
//! that none is received before it was sent. Clocks that drift are not corrected later.

use plugin_host::Communicator;

use crate::profiler::now;
use crate::{Error, seeds};

/// How often ranks exchange their times; the best bounds count.
const ROUNDS: usize = 8;

/// A rank's clock, in nanoseconds, and its process among those of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// To be added to the process's time; `None` where all ranks are of one process.
    pub(crate) shift: Option<u64>,
    /// By how much the times of two ranks may differ at most at this moment.
    pub(crate) accuracy: u64,
    /// Whether the rank is the first one of its process.
    pub(crate) first: bool,
}

/// When a rank has begun an exchange of times and when it has had the times of all, in its own time.
#[derive(Clone, Copy, Debug)]
struct Round {
    before: i128,
    after: i128,
}

/// What is to be added to the times of `own` for those of `other`, and by how much that may be wrong. An exchange ends on no rank
/// before it has begun on all of them.
fn difference(own: &[Round], other: &[Round]) -> (i128, i128) {
    let pairs = || own.iter().zip(other);
    let least = pairs().map(|(own, other)| other.before - own.after).max().unwrap_or(0);
    let most = pairs().map(|(own, other)| other.after - own.before).min().unwrap_or(0);
    ((least + most).div_euclid(2), (most - least + 1).div_euclid(2).max(0))
}

impl Clock {
    /// Measures that of a rank; all ranks call it.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn of(world: &Communicator, rank: usize) -> Result<Clock, Error> {
        let processes = numbers(world, &[i128::from(seeds::of_process())])?;
        let first = processes.iter().position(|p| *p == processes[rank]) == Some(rank);
        if processes.iter().all(|p| *p == processes[0]) {
            return Ok(Clock { shift: None, accuracy: 0, first });
        }
        let (mut own, mut other) = (Vec::new(), Vec::new());
        let mut last = 0;
        // One more, by which the first rank's end of the last one is known.
        for _ in 0..=ROUNDS {
            let before = i128::from(now());
            let all = numbers(world, &[before, last])?;
            last = i128::from(now());
            own.push(Round { before, after: last });
            other.push(Round { before: all[0][0], after: all[0][1] });
        }
        // The end that a message has is that of the exchange before.
        let ends: Vec<i128> = other.iter().skip(1).map(|r| r.after).collect();
        let other: Vec<Round> = other.iter().zip(ends).map(|(r, after)| Round { after, ..*r }).collect();
        let same = processes[rank] == processes[0];
        let (shift, accuracy) = if same { (0, 0) } else { difference(&own, &other) };
        let all = numbers(world, &[shift, accuracy])?;
        let earliest = all.iter().map(|n| n[0]).min().unwrap_or(0);
        // Two ranks are each compared with the first one.
        let mut wrong: Vec<i128> = all.iter().map(|n| n[1]).collect();
        wrong.sort_unstable();
        let whole = |n: i128| u64::try_from(n).unwrap_or(0);
        let accuracy = whole(wrong.iter().rev().take(2).sum());
        Ok(Clock { shift: Some(whole(shift - earliest)), accuracy, first })
    }
}

/// Brings numbers of all ranks together, as many of each.
fn numbers(world: &Communicator, own: &[i128]) -> Result<Vec<Vec<i128>>, Error> {
    let sent: Vec<u8> = own.iter().flat_map(|n| n.to_le_bytes()).collect();
    let all = world.all_gather(&sent)?;
    let number = |bytes: &[u8]| i128::from_le_bytes(bytes.try_into().unwrap_or_default());
    Ok(all.iter().map(|bytes| bytes.chunks_exact(size_of::<i128>()).map(number).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two clocks of which one is 1,000 ahead; messages of different lengths of time, and a rank that comes late.
    #[test]
    fn the_difference_of_clocks_is_within_its_bounds() {
        // The beginning on the one rank, on the other, and the ends, in true time.
        let rounds = [(0, 900, 905, 950), (1000, 1010, 1030, 1020), (1100, 1050, 1140, 1125)];
        let own: Vec<Round> =
            rounds.iter().map(|r| Round { before: r.0 + 1000, after: r.2 + 1000 }).collect();
        let other: Vec<Round> = rounds.iter().map(|r| Round { before: r.1, after: r.3 }).collect();
        let (shift, wrong) = difference(&own, &other);
        assert!((shift + 1000).abs() <= wrong && wrong < 25, "{shift} {wrong}");
        // Bounds are those of the best rounds: the first one, by which the other rank came late, and the second one.
        assert_eq!((shift, wrong), (-993, 13));
        assert_eq!(difference(&other, &own), (992, 13));
    }
}
