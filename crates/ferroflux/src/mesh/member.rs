//! A rank that has joined the others of its mesh: the communicators of the mesh's axes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plugin_host::{Communicator, DeviceId, LoadedExecutable, World, dlpack};
use sharding::Mesh;

use super::Place;
use super::clock::Clock;
use super::shard::Exchange;
use crate::{Error, profiler};

/// A rank of a mesh, joined with the others. Clones are the same rank.
#[derive(Clone, Debug)]
pub struct Member(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mesh: Mesh,
    rank: usize,
    world: Communicator,
    /// The groups along the axes, by name.
    groups: Vec<(String, Communicator)>,
    /// Exchanges of different calls must not mix: all ranks make them in one order.
    turn: Mutex<()>,
    clock: Clock,
}

impl Member {
    /// Joins the ranks of a mesh by the engine of a plugin (`mpi`; `cpu` for ranks that are threads of one process). Returns
    /// when all have joined. What the thread does from then on is this rank's work in traces ([`crate::profiler`]).
    ///
    /// # Errors
    /// A mesh of another number of ranks than there are, a plugin without an engine, a rank that does not come.
    pub fn join(mesh: &Mesh, place: &Place, engine: &str) -> Result<Member, Error> {
        if mesh.ranks() != place.size {
            let (ranks, size) = (mesh.ranks(), place.size);
            let what = format!(
                "`{mesh}` has {ranks} ranks, but {size} processes were started: start as many, or change the mesh"
            );
            return Err(Error::Mesh(what));
        }
        let backend = crate::registry().load(engine)?;
        let missing = || Error::Mesh(format!("backend `{engine}` has no engine for exchanges between ranks"));
        let found = backend.collectives()?.ok_or_else(missing)?;
        // An engine for devices exchanges the memory of its own plugin's.
        let host = DeviceId { device_type: dlpack::DL_CPU, device_id: place.local_rank as i32 };
        let device = if backend.has_device_memory() { backend.device()? } else { host };
        let (rank, size) = (place.rank, place.size);
        let world = found.join(&World {
            rank,
            size,
            device,
            address: place.address.clone(),
            timeout: place.timeout,
        })?;
        let mut groups = Vec::new();
        for (axis, info) in mesh.axes().iter().enumerate() {
            let (color, key) = mesh.color(axis, rank);
            groups.push((info.name.clone(), world.split(color, key, (key, info.size))?));
        }
        let clock = Clock::of(&world, rank)?;
        let (mesh, turn) = (mesh.clone(), Mutex::new(()));
        let member = Member(Arc::new(Inner { mesh, rank, world, groups, turn, clock }));
        profiler::joined(rank, member.name(), clock.shift);
        Ok(member)
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.0.mesh
    }
    /// The rank's number.
    pub fn rank(&self) -> usize {
        self.0.rank
    }
    /// The rank's place along every axis.
    pub fn coordinates(&self) -> Vec<usize> {
        self.0.mesh.coordinates(self.0.rank)
    }

    /// Its name in traces and on pages: `rank 1 (dp=0, tp=1)`.
    pub fn name(&self) -> String {
        let places = self.0.mesh.axes().iter().zip(self.coordinates());
        let places: Vec<String> = places.map(|(axis, at)| format!("{}={at}", axis.name)).collect();
        format!("rank {} ({})", self.0.rank, places.join(", "))
    }
    /// Its clock among those of all ranks.
    pub(crate) fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The bytes of all ranks, in their order; every rank passes as many.
    ///
    /// # Errors
    /// The engine's.
    pub fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let _turn = self.turn();
        Ok(self.0.world.all_gather(own)?)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// The engine's.
    pub fn barrier(&self) -> Result<(), Error> {
        self.all_gather(&[0]).map(drop)
    }

    /// Ends the exchanges of the other ranks with an error, where the engine can: for a rank that cannot go on.
    pub fn abort(&self) {
        self.0.groups.iter().for_each(|(_, group)| group.abort());
        self.0.world.abort();
    }

    /// Held by the one call that exchanges.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an executable the groups of the mesh, after the ranks have compared their lists of exchanges: all of them which
    /// exchanges there are, those of a group also their sizes, and which stand side by side: an engine runs these as one, on all ranks or on none.
    /// Where a rank has others, all ranks are told what differs.
    pub(super) fn attach(
        &self,
        executable: &mut LoadedExecutable,
        exchanges: &[Exchange],
    ) -> Result<Option<String>, Error> {
        let groups: Vec<(&str, &Communicator)> = self.0.groups.iter().map(|(n, c)| (n.as_str(), c)).collect();
        executable.attach_groups(&groups)?;
        let _turn = self.turn();
        let ops: String = exchanges.iter().map(|e| format!("{} over {};", e.op, e.group)).collect();
        tracing::debug!(target: "sharding", rank = self.0.rank, "exchanges: {ops}");
        let mut found = difference(&self.0.world, "", &ops)?;
        for (name, group) in groups {
            let own = exchanges.iter().filter(|e| e.group == *name);
            let own = own.map(|e| format!("{} of {};", e.op, e.sizes)).collect::<String>();
            found = found.or(difference(group, name, &own)?);
        }
        let beside: String = exchanges.iter().map(|e| format!("{};", e.beside)).collect();
        found = found.or(difference(&self.0.world, "", &beside)?);
        // Groups may differ within while others do not, and all ranks go on in one way.
        let all = self.0.world.all_gather(&[u8::from(found.is_some())])?;
        let rank = all.iter().position(|other| *other == [1]);
        Ok(found.or(
            rank.map(|rank| format!("the ranks of a group of rank {rank} have compiled different exchanges"))
        ))
    }
}

/// Compares a text of all ranks of a group, and tells who has another one; an empty name is all of the mesh.
fn difference(group: &Communicator, name: &str, text: &str) -> Result<Option<String>, Error> {
    let all = group.all_gather(&tensor::formula::fnv1a64(text).to_le_bytes())?;
    let of = if name.is_empty() { String::new() } else { format!(" of `{name}`") };
    let told = |rank: usize| {
        format!(
            "rank {rank}{of} has compiled other exchanges than rank 0: the ranks must have the same model, plan and options"
        )
    };
    Ok(all.iter().position(|other| *other != all[0]).map(told))
}
