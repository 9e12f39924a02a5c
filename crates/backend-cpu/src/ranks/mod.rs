//! The engine of collectives that needs no other software: ranks are threads of one process (`threads`), or processes that a
//! launcher gave an address to meet at (`sockets`). Where there is an MPI, the plugin `mpi` is the quicker one.

mod sockets;
mod threads;

use plugin_sdk::{CollectiveEngine, Communicator, PluginError, World, rendezvous};

/// The engine.
pub(crate) struct Engine;

impl CollectiveEngine for Engine {
    fn join(&self, world: &World) -> Result<Box<dyn Communicator>, PluginError> {
        match rendezvous::host_and_port(&world.address) {
            Some((host, port)) => sockets::join(world, host, port),
            None => threads::join(world),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kernel_ir::{CollectiveOp, Combine};
    use plugin_sdk::{BlockExchange, CollectiveEngine as _, Communicator, DType, PluginError, World};

    use super::Engine;

    /// A name for threads, and an address for processes.
    fn places(name: &str) -> [String; 2] {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        [name.to_owned(), format!("127.0.0.1:{}", free.local_addr().expect("an address").port())]
    }

    /// Runs `body` as the ranks of a world, each in a thread.
    fn ranks<R: Send>(
        address: &str,
        size: usize,
        body: impl Fn(usize, Box<dyn Communicator>) -> R + Sync,
    ) -> Vec<R> {
        std::thread::scope(|scope| {
            let body = &body;
            let all: Vec<_> = (0..size)
                .map(|rank| {
                    scope.spawn(move || {
                        let device = plugin_sdk::DeviceId { device_type: 1, device_id: 0 };
                        let timeout = Some(Duration::from_secs(5));
                        let world = World { rank, size, device, address: address.into(), timeout };
                        let communicator = Engine.join(&world).unwrap_or_else(|e| panic!("{e}"));
                        body(rank, communicator)
                    })
                })
                .collect();
            all.into_iter().map(|t| t.join().expect("no rank panics")).collect()
        })
    }

    fn start(
        c: &dyn Communicator,
        op: CollectiveOp,
        send: &[f32],
        receive: &mut [f32],
        blocks: usize,
    ) -> Result<u64, PluginError> {
        let exchange = BlockExchange {
            op,
            dtype: DType::F32,
            count: if op.blocks().0 { send.len() / blocks } else { send.len() },
            send: send.as_ptr().cast(),
            receive: receive.as_mut_ptr().cast(),
            stream: plugin_sdk::Stream::DEFAULT,
            step: "test",
        };
        // SAFETY: both slices have the blocks of the exchange, and the callers wait before they use them.
        unsafe { c.start(&exchange) }
    }

    fn run(
        c: &dyn Communicator,
        op: CollectiveOp,
        send: &[f32],
        blocks: usize,
    ) -> Result<Vec<f32>, PluginError> {
        let count = if op.blocks().0 { send.len() / blocks } else { send.len() };
        let mut receive = vec![-1.0f32; if op.blocks().1 { count * blocks } else { count }];
        let ticket = start(c, op, send, &mut receive, blocks)?;
        c.wait(ticket).map(|()| receive)
    }

    #[test]
    fn every_exchange_of_three_ranks() {
        let mean = CollectiveOp::AllReduce(Combine::Mean);
        let scatter = CollectiveOp::ReduceScatter(Combine::Max);
        let shift = |wraps| CollectiveOp::Shift { by: 1, wraps };
        for place in places("every") {
            let found = ranks(&place, 3, |rank, c| {
                let own = [rank as f32, 10.0 + rank as f32];
                let three: Vec<f32> = (0..3).map(|n| (10 * rank + n) as f32).collect();
                let all = [
                    run(&*c, mean, &own, 3),
                    run(&*c, CollectiveOp::AllGather, &own, 3),
                    run(&*c, scatter, &three, 3),
                    run(&*c, CollectiveOp::AllToAll, &three, 3),
                    run(&*c, CollectiveOp::Broadcast { root: 2 }, &own, 3),
                    run(&*c, shift(false), &own, 3),
                    run(&*c, shift(true), &own, 3),
                ];
                // No rank leaves while another one still waits.
                run(&*c, CollectiveOp::AllGather, &[0.0], 3).expect("it succeeds");
                all.map(|r| r.expect("it succeeds"))
            });
            for (rank, [mean, gathered, scattered, turned, sent, shifted, around]) in
                found.into_iter().enumerate()
            {
                let r = rank as f32;
                assert_eq!(mean, [1.0, 11.0]);
                assert_eq!(gathered, [0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
                assert_eq!(scattered, [20.0 + r]);
                assert_eq!(turned, [r, 10.0 + r, 20.0 + r]);
                assert_eq!(sent, [2.0, 12.0]);
                let before = [r - 1.0, 9.0 + r];
                assert_eq!(shifted, if rank == 0 { [0.0, 0.0] } else { before });
                assert_eq!(around, if rank == 0 { [2.0, 12.0] } else { before });
            }
        }
    }

    /// Blocks that no buffer of a socket holds, of a size that ranks cannot part evenly, several at once.
    #[test]
    fn large_exchanges_overlap() {
        const COUNT: usize = 1_000_003;
        let sum = CollectiveOp::AllReduce(Combine::Sum);
        for place in places("large") {
            ranks(&place, 3, |rank, c| {
                let send: Vec<f32> = (0..COUNT).map(|i| ((i * 31 + rank) % 17) as f32).collect();
                let (mut first, mut second) = (vec![0.0f32; COUNT], vec![0.0f32; 3 * COUNT]);
                let one = start(&*c, sum, &send, &mut first, 3).expect("it starts");
                let two = start(&*c, CollectiveOp::AllGather, &send, &mut second, 3).expect("it starts");
                // In any order.
                c.wait(two).expect("it succeeds");
                c.wait(one).expect("it succeeds");
                let of = |i: usize, rank: usize| ((i * 31 + rank) % 17) as f32;
                assert!((0..COUNT).all(|i| first[i] == of(i, 0) + of(i, 1) + of(i, 2)));
                assert!((0..3 * COUNT).all(|i| second[i] == of(i % COUNT, i / COUNT)));
            });
        }
    }

    #[test]
    fn groups_split_by_color_in_the_order_of_keys() {
        for place in places("split") {
            let found = ranks(&place, 4, |rank, c| {
                let half = c.split(rank % 2, 10 - rank).expect("a group");
                run(&*half, CollectiveOp::AllGather, &[rank as f32], 2).expect("it succeeds")
            });
            assert_eq!(found, [[2.0, 0.0], [3.0, 1.0], [2.0, 0.0], [3.0, 1.0]]);
        }
    }

    #[test]
    fn ranks_that_differ_or_leave_are_errors() {
        for place in places("differ") {
            let found = ranks(&place, 2, |rank, c| {
                run(&*c, CollectiveOp::AllGather, &vec![0.0; 1 + rank], 2).map_err(|e| e.to_string())
            });
            let told = |e: &String| {
                e.contains("programs differ") || e.contains("rank 0 of") || e.contains("rank 1 of")
            };
            assert!(found.iter().all(|r| r.as_ref().is_err_and(told)), "{found:?}");
            let told = |r: &Result<_, String>| r.as_ref().is_err_and(|e| e.contains("programs differ"));
            assert!(found.iter().any(told), "{found:?}");
        }
        for place in places("leave") {
            let found = ranks(&place, 2, |rank, c| match rank {
                0 => Ok(Vec::new()),
                _ => run(&*c, CollectiveOp::AllGather, &[0.0], 2).map_err(|e| e.to_string()),
            });
            let told = |e: &String| e.contains("rank 0 of") && e.contains("has left");
            assert!(found[1].as_ref().is_err_and(told), "{found:?}");
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_an_error() {
        for address in places("alone") {
            let device = plugin_sdk::DeviceId { device_type: 1, device_id: 0 };
            for rank in 0..2 {
                let timeout = Some(Duration::from_millis(200));
                let world = World { rank, size: 2, device, address: address.clone(), timeout };
                let error = Engine.join(&world).err().expect("nobody else comes").to_string();
                assert!(error.contains("within 200ms"), "{error}");
            }
        }
    }
}
