//! `xtask tutorial`: writes `docs/tutorial-sin2-cos2.md` and its drawings, which follow one function through every stage.
//!
//! The printed text is the output of the stages, and the numbers are those of the compiled function; the prose is in
//! `page.md`, with `{{name}}` for a stage's text. `--check`, which the tests run, fails if the page or a drawing is out of
//! date.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ferroflux::fx_ir::draw::{Style, graph_diagram, graph_diagram_by_module};
use ferroflux::fx_ir::text;
use ferroflux::train::{DiffOptions, Wrt};
use ferroflux::{Options, Program, Tensor};

use crate::root::root;

/// The prose.
const TEMPLATE: &str = include_str!("page.md");
/// The generated page.
const PAGE: &str = "docs/tutorial-sin2-cos2.md";
/// The function, as PyTorch exported it.
const MODEL: &str = "examples/sin2-cos2/sin2_cos2.pt2";

/// Arguments of `xtask tutorial`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Writes nothing; fails where the page is not fresh.
    #[arg(long)]
    check: bool,
}

/// Writes the page; `false` where `--check` finds it stale.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let files = files(&root)?;
    if args.check {
        let stale: Vec<&String> = stale(&root, &files);
        stale.iter().for_each(|f| {
            println!("{f} is not what the stages print: run `cargo xtask tutorial` and commit it")
        });
        return Ok(stale.is_empty());
    }
    for (name, text) in &files {
        let path = root.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, text).with_context(|| name.clone())?;
        println!("{name}");
    }
    Ok(true)
}

fn stale<'f>(root: &Path, files: &'f BTreeMap<String, String>) -> Vec<&'f String> {
    let fresh =
        |name: &str, text: &str| std::fs::read_to_string(root.join(name)).is_ok_and(|old| old == text);
    files.iter().filter(|(name, text)| !fresh(name, text)).map(|(name, _)| name).collect()
}

/// Every generated file by name.
fn files(root: &Path) -> Result<BTreeMap<String, String>> {
    let program = Program::load(root.join(MODEL))?;
    let diff = DiffOptions::new().wrt(Wrt::Inputs).tangents();
    let mut files = BTreeMap::new();
    let partition = program.partition(&diff)?;
    let joint = program.joint_for_drawing(&diff)?;
    let drawings = [
        ("captured", graph_diagram(program.graph())),
        ("joint", graph_diagram_by_module(&joint, &|target| Style::of_name(target), 1)),
        ("forward", graph_diagram(&partition.forward)),
        ("backward", graph_diagram(&partition.backward)),
    ];
    for (name, diagram) in drawings {
        files.insert(format!("docs/tutorial/{name}.svg"), diagram.to_svg());
    }
    let mut page = TEMPLATE.to_owned();
    for (name, stage) in stages(&program, &diff)? {
        let place = format!("{{{{{name}}}}}");
        if !page.contains(&place) {
            bail!("the tutorial's template has no {place}");
        }
        page = page.replace(&place, stage.trim_end());
    }
    if let Some(at) = page.find("{{") {
        bail!("the tutorial's template asks for {}", &page[at..(at + 30).min(page.len())]);
    }
    files.insert(PAGE.into(), page);
    Ok(files)
}

/// The values of the template's names.
fn stages(program: &Program, diff: &DiffOptions) -> Result<Vec<(&'static str, String)>> {
    let partition = program.partition(diff)?;
    let model = program.differentiate(diff, &Options::new())?;
    let Some((forward, backward)) = model.kernels() else { bail!("the CPU backend takes kernels") };
    // The interpreter of kernels gives the same result on every machine.
    let (value, gradient) = results(program, diff, "oracle")?;
    Ok(vec![
        ("captured", text::print(program.graph())),
        ("functional", program.functional()?.print_readable()),
        ("prim", text::print(&program.prims()?)),
        ("joint", text::print(&program.joint(diff)?.graph)),
        ("forward", text::print(&partition.forward)),
        ("backward", text::print(&partition.backward)),
        ("saved", format!("{}", partition.saved_bytes().unwrap_or_default())),
        ("loops", program.loops_text()?),
        ("forward_kernels", forward.to_string()),
        ("backward_kernels", backward.to_string()),
        ("forward_count", forward.steps.len().to_string()),
        ("backward_count", backward.steps.len().to_string()),
        ("value_error", format!("{value:.1e}")),
        ("gradient_error", format!("{gradient:.1e}")),
    ])
}

/// The largest distance of a value from 1, and of a gradient from 0, over the inputs.
fn results(program: &Program, diff: &DiffOptions, backend: &str) -> Result<(f64, f64)> {
    let model = program.differentiate(diff, &Options::new().backend(backend))?;
    let x: Vec<f32> = (0..1024).map(|n| n as f32 / 1024.0 * 20.0 - 10.0).collect();
    let (outputs, saved) = model.forward(&[Tensor::from_vec(x, &[1024])?])?;
    let ones = Tensor::full(outputs[0].dtype(), outputs[0].sizes(), ferroflux::ir_core::Scalar::Float(1.0))?;
    let gradients = saved.backward(&[ones])?;
    let gradient = gradients.input("x").context("a gradient of x")?;
    let value = outputs[0].iter_f64().map(|y| (y - 1.0).abs()).fold(0.0, f64::max);
    Ok((value, gradient.iter_f64().map(f64::abs).fold(0.0, f64::max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tutorial_is_fresh() {
        let root = root().unwrap();
        let files = files(&root).unwrap();
        let stale = stale(&root, &files);
        assert!(stale.is_empty(), "{stale:?} are stale: run `cargo xtask tutorial` and commit them");
    }

    #[test]
    fn one_kernel_each_and_the_right_values() {
        let program = Program::load(root().unwrap().join(MODEL)).unwrap();
        let diff = DiffOptions::new().wrt(Wrt::Inputs).tangents();
        let model = program.differentiate(&diff, &Options::new()).unwrap();
        let (forward, backward) = model.kernels().unwrap();
        assert_eq!((forward.steps.len(), backward.steps.len()), (1, 1));
        let (value, gradient) = results(&program, &diff, "cpu").unwrap();
        // sin² and cos² are each rounded once, their sum again; the gradient's two products cancel but for rounding.
        assert!(value <= 2.0 * f64::from(f32::EPSILON), "{value}");
        assert!(gradient <= 2.0 * f64::from(f32::EPSILON), "{gradient}");
    }
}
