//! `ferroflux explain --mesh`: a model's layout on a mesh, without any device.

use std::io::Write;

use anyhow::Result;
use ferroflux::mesh::{LaidOut, Plan, layout, step_layout};
use serde_json::{Value, json};

use super::{Args, step};
use crate::model::Model;
use crate::show;

/// Prints the placement of every value, the exchanges, and predicted memory and time.
pub(super) fn run(args: &Args, model: &Model, out: &mut dyn Write) -> Result<()> {
    let Some(mesh) = &args.mesh.mesh else { return Ok(()) };
    let mut plan = args.mesh.plan()?.unwrap_or_else(|| Plan::usual(mesh));
    plan.batch_norm = args.mesh.batch_norm.unwrap_or(plan.batch_norm);
    let found = match args.train {
        true => step_layout(&model.program, &step(), mesh, Some(&plan))?,
        false => layout(&model.program, mesh, Some(&plan))?,
    };
    if args.json {
        writeln!(out, "{}", json(model, mesh, &found))?;
        return Ok(());
    }
    writeln!(out, "{} on `{mesh}`, {}\n", model.name, show::count(mesh.ranks(), "rank"))?;
    for v in &found.values {
        writeln!(
            out,
            "{:8} {} {}: {} ({} a rank)",
            v.role,
            v.name,
            v.sizes,
            v.placement,
            show::bytes(v.bytes)
        )?;
    }
    writeln!(out, "\n{} a call:", show::count(found.moved.len(), "exchange"))?;
    for m in &found.moved {
        writeln!(out, "  {} over {} of {}: {} sent", m.kind, m.axis, m.name, show::bytes(m.bytes))?;
    }
    if !found.gathered.is_empty() {
        writeln!(out, "\non whole tensors:")?;
        for (name, target, why) in &found.gathered {
            writeln!(out, "  {name} ({target}): {why}")?;
        }
    }
    let (kept, all) = found.weights;
    writeln!(out, "\npredicted memory a rank:")?;
    writeln!(out, "  weights: {} of {}", show::bytes(kept), show::bytes(all))?;
    if let Some(arena) = found.arena {
        writeln!(out, "  temporaries: {}", show::bytes(arena))?;
    }
    let (exchanges, work) = found.seconds;
    let share = 100.0 * exchanges / (exchanges + work).max(f64::MIN_POSITIVE);
    writeln!(out, "predicted share of time: {share:.0}% exchanges, if nothing overlaps")?;
    Ok(())
}

fn json(model: &Model, mesh: &ferroflux::mesh::Mesh, found: &LaidOut) -> Value {
    let values: Vec<Value> = found
        .values
        .iter()
        .map(|v| json!({"name": v.name, "role": v.role, "sizes": v.sizes, "placement": v.placement, "bytes": v.bytes}))
        .collect();
    let moved: Vec<Value> = found
        .moved
        .iter()
        .map(|m| json!({"name": m.name, "axis": m.axis, "kind": m.kind, "bytes": m.bytes, "seconds": m.seconds}))
        .collect();
    json!({
        "model": model.name,
        "mesh": mesh.to_string(),
        "values": values,
        "exchanges": moved,
        "on_whole_tensors": found.gathered,
        "weight_bytes": found.weights.0,
        "all_weight_bytes": found.weights.1,
        "arena_bytes": found.arena,
        "exchange_seconds": found.seconds.0,
        "work_seconds": found.seconds.1,
    })
}
