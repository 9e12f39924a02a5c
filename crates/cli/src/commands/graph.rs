//! `ferroflux graph`: the model at a stage of the compiler, as text or as a drawing.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ferroflux::fx_ir::draw::{Diagram, Style, graph_diagram, graph_diagram_by_module};
use ferroflux::fx_ir::{Graph, text};
use ferroflux::report::diagram;
use ferroflux::{Program, pipeline};

use crate::model::Model;
use crate::progress::Progress;
use crate::report::usage;
use crate::{files, show};

/// Arguments of `graph`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model: a `.pt2` archive, or a `.zip` with one.
    model: PathBuf,
    /// Which stage of the compiler.
    #[arg(long, value_enum, default_value_t = Stage::Captured)]
    stage: Stage,
    /// The graph after one pass, or after any stage of the pipeline, by name.
    #[arg(long, value_name = "PASS", conflicts_with = "stage")]
    after: Option<String>,
    /// Prints the graph as code, for people; the default text can be read back.
    #[arg(long)]
    readable: bool,
    /// Writes a drawing instead of text.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Writes a drawing in graphviz's language instead of text.
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
}

/// The stages of the compiler, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Stage {
    /// As `torch.export` wrote it: composites and mutation.
    Captured,
    /// Without mutation: written buffers are results.
    Functional,
    /// Primitive operators alone.
    Prim,
    /// What is lowered: primitive operators on real numbers, after the passes.
    Optimized,
    /// Forward and backward in one graph.
    Joint,
    /// The forward half of it; what it saves for the backward is returned.
    Forward,
    /// The backward half.
    Backward,
    /// A loop body for every primitive operator; drawn with the kernels around them.
    Loops,
    /// Fused kernels and the memory plan, as a backend gets them.
    Kernels,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if args.readable && matches!(args.stage, Stage::Loops | Stage::Kernels) {
        let why = "loops and kernels have one text form; `--readable` is for graphs";
        return Err(usage(why, "leave `--readable` out"));
    }
    for path in args.svg.iter().chain(&args.dot) {
        files::check_writable(path)?;
    }
    if let Some(name) = &args.after {
        check_after(name)?;
    }
    let model = Model::open(&args.model)?;
    let _progress = Progress::start(format!("{}: lowering", model.name));
    let failed = || format!("`{}` does not reach this stage", model.name);
    if args.svg.is_none() && args.dot.is_none() {
        let text = text_of(&model.program, args).with_context(failed)?;
        out.write_all(text.as_bytes())?;
        return Ok(());
    }
    let diagram = diagram_of(&model.program, args).with_context(failed)?;
    if let Some(path) = &args.svg {
        files::write(path, diagram.to_svg().as_bytes())?;
    }
    if let Some(path) = &args.dot {
        files::write(path, diagram.to_dot().as_bytes())?;
    }
    for path in args.svg.iter().chain(&args.dot) {
        let (boxes, groups) = (diagram.nodes.len(), diagram.clusters.len());
        writeln!(out, "{}: {boxes} boxes, {} arrows, {groups} groups", path.display(), diagram.edges.len())?;
    }
    Ok(())
}

/// An error of usage where no pass has this name.
fn check_after(name: &str) -> Result<()> {
    let graphs = || pipeline::names().filter(|n| *n != pipeline::KERNELS);
    if graphs().any(|n| n == name) {
        return Ok(());
    }
    let known = graphs().collect::<Vec<_>>().join(", ");
    Err(usage(format!("`--after`: no stage or pass `{name}`"), format!("one of {known}")))
}

fn text_of(program: &Program, args: &Args) -> Result<String> {
    let readable = args.readable;
    let print = |graph: &Graph| if readable { graph.print_readable() } else { text::print(graph) };
    if let Some(name) = &args.after {
        return Ok(print(&program.after(name)?));
    }
    Ok(match args.stage {
        Stage::Captured => print(program.graph()) + &constants(program, if readable { "//" } else { "#" }),
        Stage::Functional => print(&program.functional()?),
        Stage::Prim => print(&program.prims()?),
        Stage::Optimized => print(&program.optimized()?),
        Stage::Joint => print(&program.joint(&program.usual_gradients())?.graph),
        Stage::Forward => print(&program.partition(&program.usual_gradients())?.forward),
        Stage::Backward => print(&program.partition(&program.usual_gradients())?.backward),
        Stage::Loops => program.loops_text()?,
        Stage::Kernels => program.kernels()?.to_string(),
    })
}

/// Comments on the inputs that no graph has: those with the one value that the model was exported for.
fn constants(program: &Program, comment: &str) -> String {
    let infos = program.inputs();
    let constants = infos.iter().filter(|i| i.is_constant());
    constants.map(|i| format!("{comment} input {}\n", show::input(i))).collect()
}

fn diagram_of(program: &Program, args: &Args) -> Result<Diagram> {
    if let Some(name) = &args.after {
        return Ok(graph_diagram(&program.after(name)?));
    }
    Ok(match args.stage {
        Stage::Captured => graph_diagram(program.graph()),
        Stage::Functional => graph_diagram(&program.functional()?),
        Stage::Prim => graph_diagram(&program.prims()?),
        Stage::Optimized => graph_diagram(&program.optimized()?),
        Stage::Joint => {
            let graph = program.joint_for_drawing(&program.usual_gradients())?;
            graph_diagram_by_module(&graph, &|target| Style::of_name(target), 1)
        }
        Stage::Forward => graph_diagram(&program.partition(&program.usual_gradients())?.forward),
        Stage::Backward => graph_diagram(&program.partition(&program.usual_gradients())?.backward),
        Stage::Loops => diagram::fused(&program.prims()?, &program.kernels()?),
        Stage::Kernels => diagram::kernels(&program.kernels()?),
    })
}
