//! `xtask rocm-kernels`: writes `docs/rocm-kernels.md`, which shows what clang makes of the kernels of products and attention for AMD's
//! GPUs: registers, the local data share, what of both a SIMD has room for, and the inner loops with how busy they keep the matrix
//! cores. Needs clang and no GPU; without clang the page stays as it is.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use backend_rocm::Clang;
use gpu_codegen::{ENTRY, Kernel, Prelude, Target, variants};
use gpu_runtime::Module;
use rayon::prelude::*;

use crate::kernels::clang::{self, Usage};
use crate::kernels::inner_loop::{self, InnerLoop};
use crate::kernels::programs::{Sample, samples};
use crate::root::root;

/// Arguments of `xtask rocm-kernels`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prints the page instead of writing it.
    #[arg(long)]
    print: bool,
    /// Prints the kernels' texts for one architecture and compiles nothing.
    #[arg(long, value_name = "ARCHITECTURE")]
    texts: Option<String>,
}

/// Architectures that clang 19 knows, of those that kernels are made for.
const ARCHITECTURES: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];
/// The part of the matrix cores' issue rate that inner loops for gfx942 are to reach.
const WANTED: f64 = 0.6;
/// Instructions of an inner loop that the page shows.
const SHOWN: usize = 140;

/// One kernel for one architecture.
struct Row {
    architecture: &'static str,
    sample: String,
    way: String,
    kernel: Kernel,
    usage: Usage,
    inner: Option<InnerLoop>,
}

impl Row {
    /// Waves of a SIMD: by registers, as the compiler counts them, and by the local data share of 64 KiB.
    fn waves(&self) -> u32 {
        let target = Target::of_architecture(self.architecture);
        let (wave, lds) = target.map_or((64, 65_536), |t| (t.wave, t.lds));
        let simds = if wave == 64 { 4 } else { 2 };
        let blocks = lds / (self.usage.lds + self.kernel.launch.shared).max(1);
        self.usage.waves.min((blocks * self.kernel.launch.threads / wave / simds).max(1))
    }
}

/// Writes the page; `false` where an inner loop spills or does not reach what is wanted.
///
/// # Errors
/// No clang, or a kernel that it refuses.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Some(architecture) = &args.texts {
        let target = Target::of_architecture(architecture).with_context(|| architecture.clone())?;
        for (sample, way, kernel) in kernels(&samples()?, &target)? {
            println!("// {sample}: {way}\n{}", kernel.source.replace(ENTRY, "k"));
        }
        return Ok(true);
    }
    let clang = Clang::find()?;
    let samples = samples()?;
    let mut rows = Vec::new();
    for architecture in ARCHITECTURES {
        let target = Target::of_architecture(architecture).context("a known architecture")?;
        let prelude = Prelude::new(&target);
        let made = kernels(&samples, &target)?.into_par_iter().map(|(sample, way, kernel)| {
            let entry = "kernel".to_owned();
            let module = Module::new(&prelude, kernel.source.replace(ENTRY, &entry), vec![entry.clone()]);
            let mut usages = clang::usages(clang, &module, architecture)
                .with_context(|| format!("{architecture} {sample} {way}"))?;
            let usage = usages.remove(&entry).unwrap_or_default();
            let inner = inner_loop::find(&usage.code, architecture);
            Ok(Row { architecture, sample, way, kernel, usage, inner })
        });
        rows.extend(made.collect::<Result<Vec<Row>>>()?);
    }
    let text = page(&rows, clang);
    let path: PathBuf = root()?.join("docs/rocm-kernels.md");
    if args.print {
        print!("{text}");
    } else {
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        println!("wrote {}", path.display());
    }
    let short =
        |row: &&Row| row.usage.scratch > 0 || (first_of(row, &rows) && part(row).is_some_and(|p| p < WANTED));
    let bad: Vec<&Row> = rows.iter().filter(short).filter(|row| row.architecture == "gfx942").collect();
    for row in &bad {
        println!(
            "{} {} {}: {:.0}%, {} bytes spilled",
            row.architecture,
            row.sample,
            row.way,
            100.0 * part(row).unwrap_or(0.0),
            row.usage.scratch
        );
    }
    Ok(bad.is_empty())
}

fn part(row: &Row) -> Option<f64> {
    row.inner.as_ref().map(|inner| inner.cycles.part())
}

/// Whether it is a kernel of the way that is best by rule.
fn first_of(row: &Row, rows: &[Row]) -> bool {
    rows.iter()
        .find(|other| other.architecture == row.architecture && other.sample == row.sample)
        .is_some_and(|first| first.way == row.way)
}

/// The kernels of samples that matrix cores compute: of each way one or, of gradients, two.
fn kernels(samples: &[Sample], target: &Target) -> Result<Vec<(String, String, Kernel)>> {
    let mut all = Vec::new();
    for Sample { name, program } in samples {
        for way in variants(program, &program.steps[0], target)? {
            let sides = way.kernels.len();
            for (n, kernel) in way.kernels.into_iter().enumerate() {
                let by_cores =
                    kernel.source.contains("CoreProduct<") || kernel.source.contains("typedef Core<");
                let side = if sides == 1 || !name.contains("gradients") {
                    ""
                } else {
                    [" of queries", " of keys"][n.min(1)]
                };
                if by_cores {
                    all.push((name.clone(), format!("{}{side}", way.name), kernel));
                }
            }
        }
    }
    Ok(all)
}

fn page(rows: &[Row], clang: &Clang) -> String {
    let mut out = String::from(
        "# Kernels of matrix cores for AMD's GPUs

<!-- Written by `cargo xtask rocm-kernels`, which needs clang 19 or later and no GPU. -->

What the compiler makes of the products `[4096, 4096] x [4096, 4096]` and of attention with 16 heads of 4,096 rows, of every way in which
they are computed. Nothing here was run on an AMD GPU: what kernels compute is tested on the emulator, how long they take is not
known.

",
    );
    let _ = writeln!(
        out,
        "Compiled by {}. *Shared* is the local data share of a block in bytes, *spilled* what a lane keeps in memory for want of registers,
*waves* how many of a SIMD registers (of the compiler's count) and local data share have room for. The cycles are those of a SIMD for one turn
of a wave's inner loop: of matrix cores, of vector arithmetic with the issue of matrix instructions, and of the local data share, which
the SIMDs of a compute unit share; *rate* is the first over the largest, the part of the matrix cores' issue rate that is used where other waves
hide what one waits for. The first way of each sample is the one that is best by rule.\n",
        clang.version()
    );
    for architecture in ARCHITECTURES {
        let _ = writeln!(out, "## {architecture}\n");
        out.push_str(
            "| sample | way | VGPRs | AGPRs | spilled | shared | waves | matrix | vector | share | rate |\n",
        );
        out.push_str("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
        for row in rows.iter().filter(|row| row.architecture == architecture) {
            out.push_str(&line(row));
        }
        out.push('\n');
    }
    out.push_str("## Inner loops for gfx942\n\nOf the ways that are best by rule, in their steady state.\n");
    for row in rows.iter().filter(|row| row.architecture == "gfx942" && first_of(row, rows)) {
        let Some(inner) = &row.inner else { continue };
        let _ = writeln!(out, "\n### {}: {}\n\n```", row.sample, row.way);
        inner.code.iter().take(SHOWN).for_each(|line| {
            let _ = writeln!(out, "{line}");
        });
        if inner.code.len() > SHOWN {
            let _ = writeln!(out, "… {} more", inner.code.len() - SHOWN);
        }
        out.push_str("```\n");
    }
    out
}

fn line(row: &Row) -> String {
    let usage = &row.usage;
    let loops = match &row.inner {
        Some(inner) => {
            let c = &inner.cycles;
            format!("{:.0} | {:.0} | {:.0} | {:.0}%", c.matrix, c.vector, c.share, 100.0 * c.part())
        }
        None => " | | | ".to_owned(),
    };
    format!(
        "| {} | `{}` | {} | {} | {} | {} | {} | {loops} |\n",
        row.sample,
        row.way,
        usage.vgprs,
        usage.agprs,
        usage.scratch,
        usage.lds + row.kernel.launch.shared,
        row.waves(),
    )
}
