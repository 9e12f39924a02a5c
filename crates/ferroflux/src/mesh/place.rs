//! Which rank a process is, as launchers tell it: `torchrun`, `mpirun` (Open MPI) and `srun` set variables of the environment.
//! A launcher starts, restarts and names processes; nothing of that is done here.

use std::time::Duration;

/// The place of a process among those that a launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// Its number among those on this machine.
    pub local_rank: usize,
    /// Where the ranks meet, `host:port`; empty where the launcher's own library knows.
    pub address: String,
    /// How long a rank is waited for; `None` is the engine's own limit.
    pub timeout: Option<Duration>,
}

impl Place {
    /// A place by its numbers: ranks of one process that meet by the name `address`.
    pub fn new(rank: usize, size: usize, address: impl Into<String>) -> Place {
        Place { rank, size, local_rank: rank, address: address.into(), timeout: None }
    }

    /// The place that the environment names; `None` where no launcher started this process.
    pub fn from_environment() -> Option<Place> {
        Place::from_variables(&|name| std::env::var(name).ok())
    }

    /// Makes the device with this process's number on its machine the one that backends use from now on; said once, before
    /// anything is compiled.
    pub fn take_device(&self) {
        plugin_host::set_local_rank(self.local_rank);
    }

    /// How long a rank is waited for.
    pub fn timeout(mut self, timeout: Duration) -> Place {
        self.timeout = Some(timeout);
        self
    }

    /// The place by a launcher's variables: the first of them that names a rank and a number of ranks.
    fn from_variables(get: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
        let number = |name: &str| get(name).and_then(|text| text.trim().parse::<usize>().ok());
        let launchers = [
            ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
            ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ];
        let address = match (get("MASTER_ADDR"), get("MASTER_PORT")) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            _ => String::new(),
        };
        launchers.iter().find_map(|(rank, size, local)| {
            let (rank, size) = (number(rank)?, number(size)?);
            let local_rank = number(local).unwrap_or(rank);
            (rank < size).then(|| Place { rank, size, local_rank, address: address.clone(), timeout: None })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Option<Place> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Place::from_variables(&get)
    }

    #[test]
    fn every_launcher_is_understood() {
        let torch = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "5"),
        ];
        let found = place(&torch).expect("a place");
        assert_eq!((found.rank, found.size, found.local_rank, &*found.address), (3, 4, 1, "a:5"));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ];
        assert_eq!(place(&mpi), Some(Place::new(1, 2, "")));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "0")];
        assert_eq!(place(&slurm), Some(Place::new(0, 8, "")));
        assert_eq!(place(&[("RANK", "4"), ("WORLD_SIZE", "4")]), None, "no such rank");
        assert_eq!(place(&[]), None);
    }
}
