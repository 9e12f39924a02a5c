//! The engine of collectives within a process: ranks are threads, and the last rank that arrives at an exchange performs it
//! for all. It is for tests and for machines without an MPI; ranks in processes of their own take the plugin `mpi`.
//!
//! Ranks meet by the name in [`World::address`]. Programs of such ranks run on one thread each (option `threads=1`): threads
//! of a shared pool that wait for each other would leave none to work.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernel_ir::runtime::{combine_into, divide};
use kernel_ir::{CollectiveOp, Combine};
use plugin_sdk::{BlockExchange, Communicator, DType, ErrorKind, PluginError, World};

/// How long a rank is waited for where the world does not say.
const PATIENCE: Duration = Duration::from_secs(300);

/// Groups that are being joined: how many ranks have come, by name.
static MEETINGS: Mutex<Option<HashMap<String, Meeting>>> = Mutex::new(None);

struct Meeting {
    group: Arc<Group>,
    come: usize,
}

/// Ranks that exchange.
struct Group {
    name: String,
    size: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Exchanges and splits in progress, by number.
    open: HashMap<u64, Round>,
    joined: usize,
    /// Why no exchange completes any more.
    broken: Option<String>,
}

/// One exchange or split.
#[derive(Default)]
struct Round {
    posted: Vec<Option<Post>>,
    /// Where the ranks of a split go: the group and the number in it.
    split: Vec<Option<(Arc<Group>, usize)>>,
    done: bool,
    /// Ranks that have seen its end.
    seen: usize,
}

#[derive(Clone)]
enum Post {
    Exchange(Block),
    Split { color: usize, key: usize },
}

/// What a rank exchanges.
#[derive(Clone)]
struct Block {
    op: CollectiveOp,
    dtype: DType,
    count: usize,
    send: *const u8,
    receive: *mut u8,
    step: String,
}

// SAFETY: the memory stays valid and unused by its owner until the exchange is complete, by the contract of
// `Communicator::start`; the last rank to arrive uses it under the group's lock.
unsafe impl Send for Block {}

/// A rank of a group.
struct Rank {
    group: Arc<Group>,
    rank: usize,
    next: Mutex<u64>,
}

/// Joins the ranks of a world, which are threads of this process.
pub(super) fn join(world: &World) -> Result<Box<dyn Communicator>, PluginError> {
    let timeout = world.timeout.unwrap_or(PATIENCE);
    let group = {
        let mut meetings = lock(&MEETINGS);
        let meetings = meetings.get_or_insert_default();
        let open = meetings.entry(world.address.clone()).or_insert_with(|| Meeting {
            group: Group::new(world.address.clone(), world.size, timeout),
            come: 0,
        });
        if open.group.size != world.size {
            let what = format!("rank {} joins {} ranks, others {}", world.rank, world.size, open.group.size);
            return Err(PluginError::invalid(what));
        }
        open.come += 1;
        let group = Arc::clone(&open.group);
        if open.come == world.size {
            // The name is free again: the next ranks of this name are another group.
            meetings.remove(&world.address);
        }
        group
    };
    let mut state = lock(&group.state);
    state.joined += 1;
    group.changed.notify_all();
    let deadline = Instant::now() + timeout;
    while state.joined < group.size {
        state = group.wait_until(state, deadline).map_err(|state| {
            let come = state.joined;
            drop(state);
            lock(&MEETINGS).get_or_insert_default().remove(&world.address);
            late(format!("{come} of {} ranks have joined `{}` within {timeout:?}", group.size, group.name))
        })?;
    }
    drop(state);
    Ok(Box::new(Rank { group, rank: world.rank, next: Mutex::new(0) }))
}

fn late(what: String) -> PluginError {
    PluginError::new(ErrorKind::Unavailable, what)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    fn new(name: String, size: usize, timeout: Duration) -> Arc<Group> {
        Arc::new(Group { name, size, timeout, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Waits for a change; gives the lock back as an error after the deadline.
    fn wait_until<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
    ) -> Result<MutexGuard<'a, State>, MutexGuard<'a, State>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(state);
        }
        Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Rank {
    /// Adds this rank to its next round; the last one completes it.
    fn post(&self, post: Post) -> Result<u64, PluginError> {
        let number = {
            let mut next = lock(&self.next);
            *next += 1;
            *next
        };
        let size = self.group.size;
        let mut state = lock(&self.group.state);
        if let Some(why) = &state.broken {
            return Err(late(why.clone()));
        }
        let round = state.open.entry(number).or_default();
        round.posted.resize(size, None);
        round.posted[self.rank] = Some(post);
        let all: Option<Vec<Post>> = round.posted.iter().cloned().collect();
        let Some(all) = all else { return Ok(number) };
        let completed = complete(&self.group, &all, &mut round.split);
        round.done = completed.is_ok();
        state.broken = completed.clone().err();
        self.group.changed.notify_all();
        completed.map(|()| number).map_err(PluginError::invalid)
    }

    /// Waits for the end of a round, and takes what it gave this rank.
    fn finish(&self, number: u64) -> Result<Option<(Arc<Group>, usize)>, PluginError> {
        let deadline = Instant::now() + self.group.timeout;
        let mut state = lock(&self.group.state);
        loop {
            if let Some(round) = state.open.get_mut(&number).filter(|r| r.done) {
                let given = round.split.get_mut(self.rank).and_then(Option::take);
                round.seen += 1;
                if round.seen == self.group.size {
                    state.open.remove(&number);
                }
                return Ok(given);
            }
            if let Some(why) = &state.broken {
                return Err(late(why.clone()));
            }
            state = self.group.wait_until(state, deadline).map_err(|mut state| {
                let missing: Vec<usize> = state
                    .open
                    .get(&number)
                    .map(|r| (0..r.posted.len()).filter(|i| r.posted[*i].is_none()).collect())
                    .unwrap_or_default();
                let (name, timeout) = (&self.group.name, self.group.timeout);
                let why = format!("ranks {missing:?} of `{name}` did not come within {timeout:?}");
                // Nobody may use this rank's memory from now on.
                state.broken = Some(why.clone());
                self.group.changed.notify_all();
                late(why)
            })?;
        }
    }
}

impl Communicator for Rank {
    fn split(&self, color: usize, key: usize) -> Result<Box<dyn Communicator>, PluginError> {
        let number = self.post(Post::Split { color, key })?;
        let (group, rank) =
            self.finish(number)?.ok_or_else(|| PluginError::internal("a split without a group"))?;
        Ok(Box::new(Rank { group, rank, next: Mutex::new(0) }))
    }

    unsafe fn start(&self, e: &BlockExchange<'_>) -> Result<u64, PluginError> {
        let (send, receive, step) = (e.send, e.receive, e.step.to_owned());
        self.post(Post::Exchange(Block { op: e.op, dtype: e.dtype, count: e.count, send, receive, step }))
    }

    fn wait(&self, ticket: u64) -> Result<(), PluginError> {
        self.finish(ticket).map(drop)
    }

    fn abort(&self) {
        let mut state = lock(&self.group.state);
        state
            .broken
            .get_or_insert_with(|| format!("rank {} of `{}` ended the exchange", self.rank, self.group.name));
        self.group.changed.notify_all();
    }
}

/// A rank that leaves while others wait for it ends their exchanges.
impl Drop for Rank {
    fn drop(&mut self) {
        let mut state = lock(&self.group.state);
        let (rank, name) = (self.rank, &self.group.name);
        state.broken.get_or_insert_with(|| format!("rank {rank} of `{name}` has left"));
        self.group.changed.notify_all();
    }
}

/// Performs a round to which all ranks have come.
fn complete(
    group: &Arc<Group>,
    all: &[Post],
    splits: &mut Vec<Option<(Arc<Group>, usize)>>,
) -> Result<(), String> {
    let blocks: Option<Vec<&Block>> =
        all.iter().map(|p| if let Post::Exchange(b) = p { Some(b) } else { None }).collect();
    if let Some(blocks) = blocks {
        return exchange(&blocks);
    }
    let asked: Option<Vec<(usize, usize)>> = all
        .iter()
        .map(|p| if let Post::Split { color, key } = p { Some((*color, *key)) } else { None })
        .collect();
    let asked = asked.ok_or("some ranks split the group while others exchange")?;
    splits.resize(all.len(), None);
    for (rank, (color, _)) in asked.iter().enumerate() {
        if splits[rank].is_some() {
            continue;
        }
        let mut members: Vec<usize> = (0..asked.len()).filter(|r| asked[*r].0 == *color).collect();
        members.sort_by_key(|r| (asked[*r].1, *r));
        let new = Group::new(format!("{}/{color}", group.name), members.len(), group.timeout);
        members.iter().enumerate().for_each(|(n, r)| splits[*r] = Some((Arc::clone(&new), n)));
    }
    Ok(())
}

fn exchange(all: &[&Block]) -> Result<(), String> {
    let first = all[0];
    for (rank, block) in all.iter().enumerate() {
        if (block.op, block.dtype, block.count) != (first.op, first.dtype, first.count) {
            return Err(format!(
                "rank {rank} is at step `{}` ({:?}, {} elements of {}), rank 0 at `{}` ({:?}, {} of {}): the ranks' programs differ",
                block.step,
                block.op,
                block.count,
                block.dtype,
                first.step,
                first.op,
                first.count,
                first.dtype
            ));
        }
    }
    let bytes = first.count * first.dtype.size();
    let copy = |from: *const u8, to: *mut u8| {
        // SAFETY: all pointers are to blocks of `bytes` bytes, valid by the contract of `Communicator::start`, and operands
        // do not overlap results.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
    };
    let at = |p: *const u8, block: usize| p.wrapping_add(block * bytes);
    let out = |p: *mut u8, block: usize| p.wrapping_add(block * bytes);
    // In the order of ranks, so that all get the same bits.
    let reduce = |how: Combine, block: usize, to: *mut u8| -> Result<(), String> {
        copy(at(first.send, block), to);
        for other in &all[1..] {
            // SAFETY: as for the copy; memory of tensors is aligned to its elements.
            unsafe { combine_into(how, first.dtype, to, at(other.send, block), first.count)? };
        }
        if how == Combine::Mean {
            // SAFETY: the result's block has this many elements, valid by the contract of `Communicator::start`.
            unsafe { divide(first.dtype, to, first.count, all.len()) };
        }
        Ok(())
    };
    for (rank, own) in all.iter().enumerate() {
        match first.op {
            CollectiveOp::AllReduce(how) => match rank {
                0 => reduce(how, 0, own.receive)?,
                _ => copy(first.receive, own.receive),
            },
            CollectiveOp::ReduceScatter(how) => reduce(how, rank, own.receive)?,
            CollectiveOp::AllGather => {
                all.iter().enumerate().for_each(|(n, other)| copy(other.send, out(own.receive, n)));
            }
            CollectiveOp::AllToAll => {
                all.iter().enumerate().for_each(|(n, other)| copy(at(other.send, rank), out(own.receive, n)));
            }
            CollectiveOp::Broadcast { root } => {
                let root = all.get(root as usize).ok_or_else(|| format!("there is no rank {root}"))?;
                copy(root.send, own.receive);
            }
            CollectiveOp::Shift { by, wraps } => {
                let (from, size) = (rank as i64 - i64::from(by), all.len() as i64);
                match from {
                    from if wraps => copy(all[from.rem_euclid(size) as usize].send, own.receive),
                    from if (0..size).contains(&from) => copy(all[from as usize].send, own.receive),
                    // SAFETY: the result has this many bytes.
                    _ => unsafe { own.receive.write_bytes(0, bytes) },
                }
            }
        }
    }
    Ok(())
}
