//! Parallel loops: every task once, with and without a team, nested, panicking.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::team;

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

fn check_loops() {
    for round in 0..200 {
        let tasks = round % 37;
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        team::par_for(tasks, &|i| {
            team::par_for(2, &|_| ());
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "round {round}");
    }
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 5] {
        pool(threads).install(|| {
            check_loops();
            team::with(check_loops);
            team::with(|| team::with(check_loops));
            check_loops();
        });
    }
    team::with(check_loops);
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_survives() {
    pool(3).install(|| {
        team::with(|| {
            let caught = std::panic::catch_unwind(|| {
                team::par_for(8, &|i| assert!(i != 5, "task five"));
            });
            assert!(caught.is_err());
            check_loops();
        });
        let caught = std::panic::catch_unwind(|| team::with(|| panic!("body")));
        assert!(caught.is_err());
        check_loops();
    });
}
