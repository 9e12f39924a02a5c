//! `ferroflux explain`: operators, fused kernels and memory of a model; and everything in it that is not supported.

mod memory;
mod mesh;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::TrainOptions;
use ferroflux::{Error, Explanation, InputInfo, KernelInfo, Program, Unsupported};
use serde_json::{Value, json};

use crate::mesh::MeshArgs;
use crate::model::Model;
use crate::progress::Progress;
use crate::report::{advised, usage};
use crate::show;

use memory::Memory;

/// Arguments of `explain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model: a `.pt2` archive, or a `.zip` with one.
    model: PathBuf,
    /// Explains a training step (forward, backward, an update by SGD) instead of inference.
    #[arg(long)]
    train: bool,
    /// Lists the temporaries that are alive where most memory is needed.
    #[arg(long)]
    memory: bool,
    #[command(flatten)]
    mesh: MeshArgs,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let model = Model::open(&args.model)?;
    let _progress = Progress::start(format!("{}: compiling", model.name));
    if args.mesh.mesh.is_some() {
        return mesh::run(args, &model, out);
    }
    if args.mesh.batch_norm.is_some() {
        return Err(usage(
            "`explain --batch-norm` is about the layout on a mesh",
            "give `--mesh AXIS=N` too",
        ));
    }
    let program = &model.program;
    let kernels = match args.train {
        true => program.step_kernels(&step()),
        false => program.kernels(),
    };
    match kernels {
        Ok(kernels) => {
            let explanation = program.explain_kernels(&kernels);
            let memory = Memory::of(program, &kernels);
            let dynamic = kernels.plan.bytes.is_none();
            match args.json {
                true => writeln!(out, "{}", as_json(&model, &explanation, memory.as_ref(), &[]))?,
                false => print(&model, &explanation, memory.as_ref(), dynamic, out)?,
            }
            match args.memory && !args.json {
                true => memory::print_peak(program, &kernels, out),
                false => Ok(()),
            }
        }
        Err(Error::Unsupported(_) | Error::Functionalize(_) | Error::Compile(_)) => {
            let list = program.unsupported();
            let explanation = Explanation { operators: program.operators(), ..Explanation::default() };
            match args.json {
                true => writeln!(out, "{}", as_json(&model, &explanation, None, &list))?,
                false => print_unsupported(&model, &explanation, &list, out)?,
            }
            let what = show::count(list.len(), "call");
            let verb = if list.len() == 1 { "is" } else { "are" };
            Err(advised(
                format!("{what} of `{}` {verb} not supported", model.name),
                "the list above has all of them; `--backend eager` may run more than a compiled backend",
            ))
        }
        Err(other) => Err(other.into()),
    }
}

/// The training step that is explained.
fn step() -> TrainOptions {
    TrainOptions::new(Optimizer::Sgd(Sgd::default()))
}

/// The inputs of a call, a line each.
fn print_inputs(program: &Program, out: &mut dyn Write) -> Result<()> {
    let infos = program.inputs();
    writeln!(out, "\n{}:", show::count(infos.len(), "input"))?;
    for info in infos {
        writeln!(out, "  {}", show::input(&info))?;
    }
    Ok(())
}

fn inputs_json(program: &Program) -> Vec<Value> {
    let one =
        |i: &InputInfo| json!({"name": i.name, "kind": i.kind.to_string(), "constant": i.is_constant()});
    program.inputs().iter().map(one).collect()
}

fn print_operators(name: &str, e: &Explanation, out: &mut dyn Write) -> Result<()> {
    let calls: usize = e.operators.values().sum();
    writeln!(
        out,
        "{name}: {} of {}",
        show::count(calls, "call"),
        show::count(e.operators.len(), "operator")
    )?;
    let mut operators: Vec<(&String, &usize)> = e.operators.iter().collect();
    operators.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), name.as_str()));
    for (name, n) in operators {
        writeln!(out, "{n:6}  {name}")?;
    }
    Ok(())
}

fn print_kernels(title: &str, kernels: &[KernelInfo], out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{title}")?;
    for (n, k) in kernels.iter().enumerate() {
        if k.members.is_empty() {
            writeln!(out, "{n:6}  {} {}: {}", k.kind, k.name, k.nodes.join(", "))?;
            continue;
        }
        writeln!(out, "{n:6}  {} {}:", k.kind, k.name)?;
        for m in &k.members {
            writeln!(out, "          {} {}: {}", m.kind, m.name, m.nodes.join(", "))?;
        }
    }
    Ok(())
}

/// `12 kernels`, or `70 kernels in 12 steps` where some are concurrent.
fn counted(kernels: &[KernelInfo]) -> String {
    let all: usize = kernels.iter().map(|k| k.members.len().max(1)).sum();
    match all == kernels.len() {
        true => show::count(all, "kernel"),
        false => format!("{} in {}", show::count(all, "kernel"), show::count(kernels.len(), "step")),
    }
}

fn print(
    model: &Model,
    e: &Explanation,
    memory: Option<&Memory>,
    dynamic: bool,
    out: &mut dyn Write,
) -> Result<()> {
    print_operators(&model.name, e, out)?;
    print_inputs(&model.program, out)?;
    let title = format!("{} a call, each with the graph nodes in it:", counted(&e.kernels));
    print_kernels(&title, &e.kernels, out)?;
    if !e.init_kernels.is_empty() {
        let title =
            format!("{} once, when the weights are bound:", show::count(e.init_kernels.len(), "kernel"));
        print_kernels(&title, &e.init_kernels, out)?;
    }
    if let Some(m) = memory {
        let at = if dynamic { ", at the sizes of capture" } else { "" };
        writeln!(out, "\npredicted peak memory{at}: {}", show::bytes(m.peak()))?;
        let parts = [
            ("weights", m.weights),
            ("temporaries", m.temporaries),
            ("inputs", m.inputs),
            ("outputs", m.outputs),
        ];
        for (what, n) in parts {
            writeln!(out, "  {what}: {}", show::bytes(n))?;
        }
    }
    Ok(())
}

fn print_unsupported(
    model: &Model,
    e: &Explanation,
    list: &[Unsupported],
    out: &mut dyn Write,
) -> Result<()> {
    print_operators(&model.name, e, out)?;
    print_inputs(&model.program, out)?;
    writeln!(out, "\nnot supported:")?;
    for u in list {
        writeln!(out, "  {}", u.message)?;
    }
    Ok(())
}

fn as_json(model: &Model, e: &Explanation, memory: Option<&Memory>, unsupported: &[Unsupported]) -> Value {
    let kernels = |list: &[KernelInfo]| -> Vec<Value> { list.iter().map(kernel_json).collect() };
    let one = |u: &Unsupported| json!({"target": u.target, "node": u.node, "message": u.message});
    json!({
        "model": model.name,
        "inputs": inputs_json(&model.program),
        "operators": e.operators,
        "kernels": kernels(&e.kernels),
        "init_kernels": kernels(&e.init_kernels),
        "weight_bytes": memory.map(|m| m.weights),
        "arena_bytes": memory.map(|m| m.temporaries),
        "input_bytes": memory.map(|m| m.inputs),
        "output_bytes": memory.map(|m| m.outputs),
        "peak_bytes": memory.map(Memory::peak),
        "unsupported": unsupported.iter().map(one).collect::<Vec<_>>(),
    })
}

fn kernel_json(k: &KernelInfo) -> Value {
    let mut value = json!({"name": k.name, "kind": k.kind, "nodes": k.nodes});
    if !k.members.is_empty() {
        value["members"] = k.members.iter().map(kernel_json).collect();
    }
    value
}
