//! Times every candidate of the products and convolutions of several programs, as the search does, for tables from which
//! a cost model is fitted.
//!
//! Not here: the search itself (`autotune`), and the model ([`gpu_codegen::Model`]).

use std::sync::Arc;

use kernel_ir::runtime::Sizes;
use kernel_ir::{Program, Step};
use rayon::prelude::*;

use crate::autotune::Search;
use crate::compiled::tickets;
use crate::plan::{Kernels, Planner};
use crate::{DeviceMemory, Driver, GpuError, Mode, Settings};

/// The time of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateTime {
    /// Its name in tables of the search.
    pub name: String,
    /// Its kernels, calls of a library included.
    pub kernels: usize,
    /// Whether one of them is a library's.
    pub is_library: bool,
    /// Seconds on the device, with cold caches.
    pub seconds: f64,
}

/// The candidates of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimes {
    /// The step's name.
    pub step: String,
    /// Fastest first; those that fail are left out.
    pub times: Vec<CandidateTime>,
}

/// What was measured of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredProgram {
    /// Its products and convolutions, in order.
    pub steps: Vec<StepTimes>,
    /// Kernels that were compiled for it.
    pub kernels: usize,
}

/// A program whose kernels are planned.
struct Planned {
    program: Program,
    /// The names of its products and convolutions.
    names: Vec<String>,
    kernels: Kernels,
}

/// Times the candidates of the products and convolutions of programs that check no index. The kernels of all are compiled at
/// once.
///
/// # Errors
/// A program that is not well formed, a step without a kernel, a kernel that does not compile, a lost device.
pub fn measure<D: Driver>(
    memory: &Arc<DeviceMemory<D>>,
    programs: &[(Program, Settings)],
) -> Result<Vec<MeasuredProgram>, GpuError> {
    let driver = &**memory.driver();
    let planned = programs
        .par_iter()
        .map(|(p, settings)| planned(driver, p, settings))
        .collect::<Result<Vec<_>, _>>()?;
    let functions =
        planned.par_iter().map(|p| p.kernels.compile(driver)).collect::<Result<Vec<_>, GpuError>>()?;
    let _guard = memory.exclusive();
    let tickets = tickets(memory)?;
    let mut flush = None;
    let mut all = Vec::with_capacity(planned.len());
    for (p, functions) in planned.iter().zip(&functions) {
        let sizes = Sizes::hints(&p.program);
        let search = Search {
            memory,
            program: &p.program,
            functions,
            sizes: &sizes,
            tickets: tickets.address(),
            fault: 0,
        };
        let mut steps = Vec::new();
        for step in p.kernels.steps.iter().filter(|s| p.names.contains(&s.name)) {
            let time = |(seconds, n): (f64, usize)| {
                let candidate = &step.candidates[n];
                CandidateTime {
                    name: candidate.name.clone(),
                    kernels: candidate.parts.len(),
                    is_library: candidate.is_library,
                    seconds,
                }
            };
            let times = search.times(step, &mut flush)?.into_iter().map(time).collect();
            steps.push(StepTimes { step: step.name.clone(), times });
        }
        all.push(MeasuredProgram { steps, kernels: functions.len() });
    }
    Ok(all)
}

fn planned<D: Driver>(driver: &D, program: &Program, settings: &Settings) -> Result<Planned, GpuError> {
    kernel_ir::verify(program).map_err(|e| GpuError::Malformed(e.to_string()))?;
    let mut program = program.clone();
    let target = settings.target(driver.target());
    crate::adapt(&mut program, &target);
    let library = |step: &Step| driver.library(&program, step, &target);
    let mut planner = Planner::new(&program, &target, &library, &|_| None, Mode::MaxAutotune);
    planner.plan(&program.steps)?;
    let kernels = planner.kernels;
    if !kernels.checks.is_empty() {
        return Err(GpuError::Argument("programs that are measured check no index".into()));
    }
    let names = program.steps.iter().filter(|s| matches!(s, Step::Matmul(_) | Step::Conv(_)));
    let names = names.map(|s| s.name().to_owned()).collect();
    Ok(Planned { program, names, kernels })
}
