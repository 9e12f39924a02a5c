//! Which exchanges of a program become a bucket, and the order of buckets. Each group is divided for itself, so that exchanges
//! of another one in between part nothing; so is each link of a chain of exchanges, such as a gradient's sum over one
//! axis of a mesh and then over another: the second link of a whole bucket follows that bucket.
//!
//! Not here: what stands between buckets (`placement`).

use std::collections::HashMap;

use super::flow::{Flow, Set, Weight};
use super::placement::Placement;

/// Bytes of a bucket: enough that a link is busy, little enough that the first exchanges begin early.
const MAX_BYTES: i64 = 25 << 20;
/// The same for the first one of a group: what follows it begins the sooner.
const FIRST_BYTES: i64 = 1 << 20;

/// Exchanges that are started side by side.
pub(super) struct Bucket {
    /// Their numbers, in order.
    members: Vec<usize>,
    set: Set,
    /// Whether it stands in the place of its first exchange.
    early: bool,
    /// The step where it belongs.
    place: usize,
    /// The bucket of the same group and link behind it.
    next: Option<usize>,
}

/// How many exchanges are chained before each, with loops alone between them.
fn links(flow: &Flow) -> Vec<usize> {
    // For each step the longest chain of exchanges that ends in it.
    let mut chains = vec![0; flow.weights.len()];
    let mut links = Vec::with_capacity(flow.exchanges.len());
    for n in 0..chains.len() {
        let before = flow.before[n].iter().map(|b| chains[*b]).max().unwrap_or(0);
        if flow.number[n].is_some() {
            links.push(before);
        }
        chains[n] = match (flow.number[n], flow.weights[n]) {
            (Some(_), _) => before + 1,
            (None, Weight::Light) => before,
            (None, _) => 0,
        };
    }
    links
}

/// The exchanges that no costly step but other exchanges depends on.
fn terminal(flow: &Flow) -> Vec<bool> {
    let mut needed = Set::default();
    let costly = |n: &usize| flow.weights[*n] != Weight::Light && flow.number[*n].is_none();
    (0..flow.weights.len()).filter(costly).for_each(|n| needed.extend(&flow.needs[n]));
    (0..flow.exchanges.len()).map(|e| !needed.contains(e)).collect()
}

/// Divides the exchanges of a program in which every exchange is behind the last costly step that it depends on.
pub(super) fn divide(flow: &Flow) -> Vec<Bucket> {
    let (links, terminal) = (links(flow), terminal(flow));
    // What only updates read waits as well as they do, so that exchanges of it do not hold up those that they need.
    let waits = |n: usize| flow.number[n].is_some_and(|e| terminal[e]);
    let costly: Vec<usize> =
        (0..flow.weights.len()).filter(|n| flow.weights[*n] != Weight::Light && !waits(*n)).collect();
    let mut all: Vec<Bucket> = Vec::new();
    let mut begun: Vec<&str> = Vec::new();
    let mut order: Vec<usize> = (0..flow.exchanges.len()).collect();
    order.sort_by_key(|e| links[*e]);
    for link in order.chunk_by(|a, b| links[*a] == links[*b]) {
        let earlier = all.len();
        // The last bucket of every group.
        let mut last: HashMap<&str, Growing> = HashMap::new();
        for &number in link {
            let exchange = &flow.exchanges[number];
            let after = all[..earlier].iter().enumerate().rev();
            let after = after
                .filter(|(_, b)| b.members.iter().any(|m| flow.needs[exchange.step].contains(*m)))
                .max_by_key(|(n, b)| (b.place, *n))
                .map(|(n, _)| n);
            let group = exchange.group.as_str();
            let joined = last
                .get_mut(group)
                .is_some_and(|g| g.after == after && g.takes(flow, &costly, &mut all[g.bucket], number));
            if joined {
                continue;
            }
            let most = if begun.contains(&group) { MAX_BYTES } else { FIRST_BYTES };
            begun.push(group);
            let mut set = Set::default();
            set.insert(number);
            let bucket = all.len();
            let grows = Growing { bucket, after, left: most.saturating_sub(exchange.bytes), late: true };
            if let Some(before) = last.insert(group, grows) {
                all[before.bucket].next = Some(bucket);
            }
            all.push(Bucket { members: vec![number], set, early: true, place: exchange.step, next: None });
        }
    }
    all
}

/// A bucket that others may join.
struct Growing {
    bucket: usize,
    /// The last bucket of earlier links that it needs.
    after: Option<usize>,
    /// Bytes that it may still have.
    left: i64,
    /// Whether it may stand in the place of its last exchange.
    late: bool,
}

impl Growing {
    /// Takes one more exchange, if that may be.
    fn takes(&mut self, flow: &Flow, costly: &[usize], bucket: &mut Bucket, number: usize) -> bool {
        let exchange = &flow.exchanges[number];
        let first = flow.exchanges[bucket.members[0]].step;
        let alike = flow.segments[first] == flow.segments[exchange.step];
        let needs = &flow.needs[exchange.step];
        if exchange.bytes > self.left || !alike || bucket.set.meets(needs) {
            return false;
        }
        // Whether all that is costly and depends on the others depends on this one too.
        let late = self.late
            && costly.iter().all(|n| flow.needs[*n].contains(number) || !flow.needs[*n].meets(&bucket.set));
        let early = bucket.early && flow.is_ready(first, number);
        if !late && !early {
            return false;
        }
        self.late = late;
        self.left -= exchange.bytes;
        bucket.early = early;
        bucket.place = if early { first } else { exchange.step };
        bucket.members.push(number);
        bucket.set.insert(number);
        true
    }
}

/// The order of steps in which the exchanges of every bucket follow one another in the bucket's place, and a bucket that is
/// early in that of the one before it where it can be. Loops that read results stand behind what they read at the earliest.
pub(super) fn order(flow: &Flow, buckets: &[Bucket]) -> Vec<usize> {
    let mut order = Order {
        flow,
        buckets,
        needed: buckets.iter().map(|b| needed(flow, b)).collect(),
        placement: Placement::new(flow, &[]),
        exchanged: Set::default(),
        due: Vec::new(),
        held: Vec::new(),
    };
    for n in 0..flow.weights.len() {
        match (flow.number[n], flow.weights[n]) {
            (Some(number), _) => order.exchange(n, number),
            (None, Weight::Fixed) => (0..=n).for_each(|b| order.placement.place(b)),
            (None, Weight::Light) if !order.is_there(n) => order.held.push(n),
            (None, _) => order.placement.place(n),
        }
    }
    order.placement.finished()
}

/// The exchanges that those of a bucket need.
fn needed(flow: &Flow, bucket: &Bucket) -> Set {
    let mut all = Set::default();
    bucket.members.iter().for_each(|m| all.extend(&flow.needs[flow.exchanges[*m].step]));
    all
}

/// The order, in progress.
struct Order<'a> {
    flow: &'a Flow,
    buckets: &'a [Bucket],
    /// For each bucket the exchanges that it needs.
    needed: Vec<Set>,
    placement: Placement<'a>,
    /// What buckets in their places have exchanged.
    exchanged: Set,
    /// Buckets whose place this is once others have theirs.
    due: Vec<usize>,
    /// Loops that read what is not exchanged yet.
    held: Vec<usize>,
}

impl Order<'_> {
    /// Whether all results that a step needs are there.
    fn is_there(&self, n: usize) -> bool {
        self.flow.needs[n].is_within(&self.exchanged)
    }

    /// At an exchange: puts its bucket here if this is the place, the one behind it if that may be ahead, and those that waited
    /// for them.
    fn exchange(&mut self, n: usize, number: usize) {
        let Some(own) = self.buckets.iter().position(|b| b.place == n && b.set.contains(number)) else {
            return;
        };
        self.due.push(own);
        let ahead = self.buckets[own].next.filter(|b| self.buckets[*b].early);
        let ready = |b: &usize| self.buckets[*b].members.iter().all(|e| self.flow.is_ready(n, *e));
        self.due.extend(ahead.filter(ready));
        while let Some(at) = self.due.iter().position(|b| self.needed[*b].is_within(&self.exchanged)) {
            let bucket = &self.buckets[self.due.remove(at)];
            self.placement.side_by_side(bucket.members.iter().map(|m| self.flow.exchanges[*m].step));
            self.exchanged.extend(&bucket.set);
        }
        let (there, held): (Vec<usize>, Vec<usize>) =
            std::mem::take(&mut self.held).into_iter().partition(|n| self.is_there(*n));
        self.held = held;
        there.into_iter().for_each(|n| self.placement.place(n));
    }
}

/// For each bucket the number behind its last exchange, where exchanges are numbered in this order.
pub(super) fn ends(flow: &Flow, buckets: &[Bucket], order: &[usize]) -> Vec<usize> {
    let of = |number: usize| buckets.iter().position(|b| b.set.contains(number));
    let all: Vec<Option<usize>> = order.iter().filter_map(|n| flow.number[*n]).map(of).collect();
    let mut end = 0;
    all.chunk_by(|a, b| a == b)
        .map(|one| {
            end += one.len();
            end
        })
        .collect()
}
