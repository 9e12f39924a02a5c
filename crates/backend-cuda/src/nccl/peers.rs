//! The connections between ranks that a launcher started: they bring NCCL's id to every rank, and their end tells that a rank has
//! died. Nothing else is sent: exchanges are NCCL's.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use plugin_sdk::rendezvous::{Meeting, meet, number_of};
use plugin_sdk::{PluginError, World};

use super::api::{Api, UniqueId};
use super::communicator::Shared;
use super::{deadline, gone, new_id};

/// Sent by a rank that leaves as it should.
const LEAVES: u8 = 1;

/// A connection with every other rank, by its number; none where ranks are threads.
#[derive(Default)]
pub(super) struct Peers(Vec<Option<TcpStream>>);

impl Peers {
    /// Connects every two ranks, and gives all of them the first one's id.
    pub(super) fn meet(
        api: &Api,
        world: &World,
        (host, port): (&str, u16),
        timeout: Duration,
    ) -> Result<(UniqueId, Peers), PluginError> {
        let late = |why: String| {
            gone(format!("rank {} of `{}`, within {timeout:?}: {why}", world.rank, world.address))
        };
        let group = number_of((host, port, world.size, "nccl"));
        let meeting = Meeting { rank: world.rank, size: world.size, group, deadline: deadline(timeout) };
        let mut streams = meet(&meeting, host, port).map_err(late)?;
        let mut id = UniqueId([0; 128]);
        if world.rank == 0 {
            id = new_id(api)?;
            for (rank, stream) in streams.iter_mut().enumerate() {
                let Some(stream) = stream else { continue };
                stream.write_all(&id.0).map_err(|e| late(format!("rank {rank} is gone: {e}")))?;
            }
        } else if let Some(Some(first)) = streams.first_mut() {
            let read = first.set_read_timeout(Some(timeout)).and_then(|()| first.read_exact(&mut id.0));
            read.map_err(|e| late(format!("rank 0 is gone: {e}")))?;
        }
        Ok((id, Peers(streams)))
    }

    /// Ends all exchanges when a rank goes without leaving.
    pub(super) fn watch(&self, own: usize, shared: &Arc<Shared>) {
        for (rank, stream) in self.0.iter().enumerate() {
            let Some(Ok(mut stream)) = stream.as_ref().map(TcpStream::try_clone) else { continue };
            let shared = Arc::clone(shared);
            let body = move || {
                let mut said = [0u8];
                let left = stream
                    .set_read_timeout(None)
                    .and_then(|()| stream.read_exact(&mut said))
                    .is_ok_and(|()| said == [LEAVES]);
                if !left {
                    shared.end(&format!("rank {rank} is gone: its connection with rank {own} has ended"));
                }
            };
            // Without the thread a dead rank is noticed by its launcher alone.
            let _ = std::thread::Builder::new().name(format!("rank {rank}")).spawn(body);
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for stream in self.0.iter_mut().flatten() {
            let _ = stream.write_all(&[LEAVES]);
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}
