//! The options `--mesh`, `--plan` and `--engine`, and the ranks of a command: processes that a launcher started, or threads of
//! this one. Every rank runs the command's body; the first one prints and writes files.

use std::io::{Write, sink};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use ferroflux::Options;
use ferroflux::mesh::{BatchNorm, Member, Mesh, Place, Plan};

use crate::report::usage;

/// How a model is laid out on many devices.
#[derive(clap::Args, Default)]
pub(crate) struct MeshArgs {
    /// Runs the model on a mesh of ranks with these axes, for example `dp=2,tp=2`: as many processes as a launcher (torchrun,
    /// mpirun, srun) started, or threads of this one.
    #[arg(long, value_name = "AXIS=N,…")]
    pub(crate) mesh: Option<Mesh>,
    /// Placements: a file (docs/sharding.md), or built-in plans, for example `fsdp` or `ddp,tp:auto`; what the names of the axes
    /// suggest where not given.
    #[arg(long, value_name = "PLAN", requires = "mesh")]
    pub(crate) plan: Option<String>,
    /// Statistics of batch norms in training: `whole` (of the whole batch, as without it), `rank` (of each rank's part, as
    /// PyTorch's DDP has them) or `groups=N` (of each N-th of the batch, on any mesh); comes before the plan's `batch_norm`.
    #[arg(long, value_name = "WHOSE")]
    pub(crate) batch_norm: Option<BatchNorm>,
    /// Plugin that exchanges data between ranks. Where not given: the backend's own if it keeps tensors on a device (`cuda`: NCCL);
    /// else `cpu` for threads and where the launcher names an address (torchrun's MASTER_ADDR and MASTER_PORT), else `mpi`.
    #[arg(long, value_name = "NAME", requires = "mesh")]
    pub(crate) engine: Option<String>,
    /// Seconds after which a rank that does not answer is an error.
    #[arg(long, value_name = "SECONDS", requires = "mesh")]
    pub(crate) rank_timeout: Option<u64>,
}

/// A rank of the command; `None` is the only one.
pub(crate) type Rank<'a> = Option<&'a Member>;

/// Whether this rank prints and writes files.
pub(crate) fn is_first(rank: Rank<'_>) -> bool {
    rank.is_none_or(|m| m.rank() == 0)
}

impl MeshArgs {
    /// The plan that was asked for.
    pub(crate) fn plan(&self) -> Result<Option<Plan>> {
        let Some(text) = &self.plan else { return Ok(None) };
        if Path::new(text).extension().is_some_and(|e| e == "toml") || Path::new(text).is_file() {
            let file =
                std::fs::read_to_string(text).with_context(|| format!("cannot read the plan {text}"))?;
            return Ok(Some(Plan::parse(&file).with_context(|| format!("in {text}"))?));
        }
        let built_in = text.split(',').map(|p| p.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Some(Plan { built_in, ..Plan::default() }))
    }

    /// Whose statistics batch norms have: what the argument says, or else the plan.
    pub(crate) fn batch_norm(&self) -> Result<BatchNorm> {
        let planned = || Ok(self.plan()?.filter(|_| self.mesh.is_some()).unwrap_or_default().batch_norm);
        self.batch_norm.map_or_else(planned, Ok)
    }

    /// The options of a rank.
    pub(crate) fn options(&self, options: Options, rank: Rank<'_>) -> Result<Options> {
        let options = match self.batch_norm {
            Some(statistics) => options.batch_norm(statistics),
            None => options,
        };
        let Some(member) = rank else { return Ok(options) };
        let mut options = options.mesh(member);
        if Place::from_environment().is_none() && options.backend_name() == "cpu" {
            // Threads of a shared pool that wait for each other would leave none to work.
            options = options.threads(1);
        }
        Ok(match self.plan()? {
            Some(plan) => options.plan(plan),
            None => options,
        })
    }

    /// Runs `body` as every rank of the mesh that this process has; as the only one where there is no mesh.
    pub(crate) fn on_ranks(
        &self,
        backend: &str,
        out: &mut dyn Write,
        body: &(dyn Fn(Rank<'_>, &mut dyn Write) -> Result<()> + Sync),
    ) -> Result<()> {
        let Some(mesh) = &self.mesh else { return body(None, out) };
        self.plan()?;
        let timeout = self.rank_timeout.map(Duration::from_secs);
        let place = |place: Place| timeout.map_or(place.clone(), |t| place.timeout(t));
        match Place::from_environment() {
            Some(found) => {
                found.take_device();
                let usual = match ferroflux::keeps_tensors_on_a_device(backend)? {
                    true => backend,
                    // An address to meet at is what launchers give that start no MPI.
                    false if found.address.is_empty() => "mpi",
                    false => "cpu",
                };
                let engine = self.engine.as_deref().unwrap_or(usual);
                let first = found.rank == 0;
                as_rank(
                    mesh,
                    &place(found),
                    engine,
                    |m| if first { body(m, out) } else { body(m, &mut sink()) },
                )
            }
            None => {
                let engine = self.engine.as_deref().unwrap_or("cpu");
                if engine != "cpu" {
                    return Err(usage(
                        format!(
                            "`--engine {engine}` exchanges between processes, and no launcher started this one"
                        ),
                        format!("start the ranks by a launcher: mpirun -np {} ferroflux …", mesh.ranks()),
                    ));
                }
                let name = format!("ranks of process {}", std::process::id());
                let of = |rank: usize| place(Place::new(rank, mesh.ranks(), name.clone()));
                std::thread::scope(|scope| {
                    let others: Vec<_> = (1..mesh.ranks())
                        .map(|rank| {
                            let place = of(rank);
                            scope.spawn(move || as_rank(mesh, &place, engine, |m| body(m, &mut sink())))
                        })
                        .collect();
                    let first = as_rank(mesh, &of(0), engine, |m| body(m, out));
                    let rest = others.into_iter().map(|t| t.join().unwrap_or(Ok(())));
                    rest.fold(first, |all, one| all.and(one))
                })
            }
        }
    }
}

/// Joins, runs, and ends the exchanges of the others where this rank cannot go on.
fn as_rank(
    mesh: &Mesh,
    place: &Place,
    engine: &str,
    body: impl FnOnce(Rank<'_>) -> Result<()>,
) -> Result<()> {
    let member = Member::join(mesh, place, engine).with_context(|| {
        format!("rank {} of {} cannot join `{mesh}` by `{engine}`", place.rank, place.size)
    })?;
    let done = body(Some(&member));
    match &done {
        Ok(()) => {
            ferroflux::report::gather(&member)?;
            // Others may still need this rank's memory.
            member.barrier()?;
        }
        Err(error) => {
            if place.rank > 0 {
                crate::report::print(error);
            }
            member.abort();
        }
    }
    done.with_context(|| format!("rank {} of {}", place.rank, place.size))
}
