//! `xtask gpu-suite fit`: times the candidates of products and convolutions on a device, and fits the coefficients of the cost
//! model of its architecture to them.
//!
//! The times go to a table (`table`), which a later run continues or fits again without a device. The coefficients become a
//! file of `gpu-codegen` (`crates/gpu-codegen/src/cost`), or are tried with the backend's option `costs=FILE` first. Not
//! here: the timing, which is that of the search (`gpu_runtime::measure`), and the model (`gpu_codegen::Model`).

mod cases;
mod report;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use gpu_codegen::{Speeds, Target};
use gpu_runtime::{CostModel, DeviceMemory, Driver, MeasuredProgram, Mode, Settings, measure};

use self::cases::{Case, cases, step_of};
use self::table::{Table, Time, TimedCase};

/// Cases whose kernels are compiled at once: enough for many cores, and few enough that little is lost where time is up.
const AT_ONCE: usize = 24;

/// Arguments of `xtask gpu-suite fit`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The file of measured times, which is continued where it exists.
    #[arg(long, default_value = "gpu-times.json")]
    table: PathBuf,
    /// The file of coefficients to write.
    #[arg(long, default_value = "costs.txt")]
    out: PathBuf,
    /// Fits a table that is there, without a device.
    #[arg(long)]
    only_fit: bool,
    /// Says how many cases and kernels there are, without a device.
    #[arg(long)]
    count: bool,
    /// Time for measuring in minutes; cases that no longer fit are left for the next call.
    #[arg(long, default_value_t = 3.5)]
    minutes: f64,
    /// The device's number.
    #[arg(long, default_value_t = 0)]
    device: i32,
    /// Only cases whose name contains this.
    #[arg(default_value = "")]
    filter: String,
}

/// Measures what is missing, fits and prints how good the fit is.
pub(super) fn run(args: &Args) -> Result<()> {
    let mut cases = cases();
    cases.retain(|c| c.name.contains(&args.filter));
    if args.count {
        return count(&cases);
    }
    let mut table = Table::open(&args.table)?;
    if !args.only_fit {
        let driver = backend_cuda::open(args.device)?;
        let found = Found::of(args.device, &driver.identity(), &driver.target())?;
        found.begin(&mut table)?;
        let limit = Duration::try_from_secs_f64(60.0 * args.minutes).context("--minutes")?;
        fill(&mut table, &args.table, driver, &cases, limit)?;
    }
    ensure!(!table.cases.is_empty(), "{} has no times", args.table.display());
    let known = report::known(&table, &cases)?;
    println!("{}, {} of {} cases\n", table.device, table.cases.len(), cases.len());
    print!("{}", report::report(&table, &known));
    let model = report::fitted(&table, &known);
    std::fs::write(&args.out, model.to_string()).with_context(|| args.out.display().to_string())?;
    println!("\ncoefficients: {}", args.out.display());
    Ok(())
}

/// A device of CUDA's as tables name it.
struct Found {
    /// The device and its libraries.
    identity: String,
    /// The architecture without the letter of its own features.
    architecture: String,
    multiprocessors: u32,
    speeds: Speeds,
}

impl Found {
    fn of(device: i32, identity: &str, target: &Target) -> Result<Found> {
        let info = ferroflux::list_backends().into_iter().find(|b| b.name == "cuda");
        let info = info.and_then(|b| b.devices.into_iter().find(|d| d.device.device_id == device));
        let attributes = info.map(|d| d.attributes).unwrap_or_default();
        let of = |name: &str| attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        let number = |name| of(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let architecture = of("architecture").context("the device does not say its architecture")?;
        Ok(Found {
            identity: identity.to_owned(),
            architecture: architecture.trim_end_matches(['a', 'f']).to_owned(),
            multiprocessors: target.multiprocessors,
            speeds: Speeds { clock: number("clock_mhz"), bandwidth: number("bandwidth_gb_s") },
        })
    }

    /// Says of which device a table is, or that it is of this one.
    fn begin(&self, table: &mut Table) -> Result<()> {
        if table.cases.is_empty() {
            table.device.clone_from(&self.identity);
            table.architecture.clone_from(&self.architecture);
            table.multiprocessors = self.multiprocessors;
            (table.clock, table.bandwidth) = (self.speeds.clock, self.speeds.bandwidth);
        }
        if table.device != self.identity {
            bail!("the table is of another device ({}): name another file with --table", table.device);
        }
        Ok(())
    }
}

/// Times what is missing until the time is up, and writes the table after every few cases.
fn fill<D: Driver>(
    table: &mut Table,
    path: &Path,
    driver: Arc<D>,
    cases: &[Case],
    limit: Duration,
) -> Result<()> {
    let memory = DeviceMemory::new(driver);
    let started = Instant::now();
    let missing: Vec<&Case> =
        cases.iter().filter(|c| !table.cases.iter().any(|t| t.case == c.name)).collect();
    let mut longest = Duration::ZERO;
    for part in missing.chunks(AT_ONCE) {
        // The next few cases take about as long as the longest before.
        if started.elapsed() + longest > limit {
            println!("{} cases are left for the next call", cases.len() - table.cases.len());
            break;
        }
        let begin = Instant::now();
        let programs = part.iter().map(|c| Ok((c.program()?, settings(c)))).collect::<Result<Vec<_>>>()?;
        let measured = measure(&memory, &programs)?;
        let kernels: usize = measured.iter().map(|p| p.kernels).sum();
        table.cases.extend(part.iter().zip(&measured).map(|(case, program)| timed(case, program)));
        table.write(path)?;
        longest = longest.max(begin.elapsed());
        eprintln!(
            "{} of {} cases, {kernels} kernels in {:.1} s",
            table.cases.len(),
            cases.len(),
            begin.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn settings(case: &Case) -> Settings {
    Settings {
        mode: Mode::MaxAutotune,
        tf32: Some(case.tf32.into()),
        costs: CostModel::Off,
        ..Settings::default()
    }
}

/// A row of the table.
fn timed(case: &Case, program: &MeasuredProgram) -> TimedCase {
    let times = program.steps.iter().flat_map(|step| &step.times).map(|t| Time {
        candidate: t.name.clone(),
        kernels: t.kernels,
        library: t.is_library,
        us: 1e6 * t.seconds,
    });
    TimedCase { case: case.name.clone(), times: times.collect() }
}

/// How many kernels there are to compile for a Hopper, those around calls of libraries aside.
fn count(cases: &[Case]) -> Result<()> {
    let mut kernels = 0;
    for case in cases {
        let program = case.program()?;
        let target = Target { tf32: case.tf32.into(), costs: None, ..Target::HOPPER };
        let step = step_of(&program).context("a case is a step")?;
        let variants = gpu_codegen::variants(&program, step, &target).with_context(|| case.name.clone())?;
        kernels += variants.iter().map(|v| v.kernels.len()).sum::<usize>();
    }
    println!("{} cases, {kernels} generated kernels", cases.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_of_one_device() {
        let mut table = Table::default();
        let found = |identity: &str| Found {
            identity: identity.into(),
            architecture: "sm_90".into(),
            multiprocessors: 132,
            speeds: Speeds { clock: 1980, bandwidth: 4917 },
        };
        found("a").begin(&mut table).unwrap();
        assert_eq!((table.architecture.as_str(), table.multiprocessors), ("sm_90", 132));
        assert_eq!(table.speeds(), found("a").speeds);
        table.cases.push(TimedCase { case: "x".into(), times: Vec::new() });
        assert!(found("b").begin(&mut table).is_err());
        assert!(found("a").begin(&mut table).is_ok());
    }

    #[test]
    fn a_damaged_table_is_an_error_and_none_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        assert_eq!(Table::open(&path).unwrap(), Table::default());
        let mut table = Table { device: "d".into(), ..Table::default() };
        table.cases.push(TimedCase { case: "x".into(), times: Vec::new() });
        table.write(&path).unwrap();
        assert_eq!(Table::open(&path).unwrap(), table);
        std::fs::write(&path, "{\"device\": 1").unwrap();
        assert!(format!("{:#}", Table::open(&path).unwrap_err()).contains("not a table"));
    }
}
