//! Definitions as text: the `loops` stage of `ferroflux graph`.

use std::fmt::Write;

use kernel_ir::{InstKind, Val};

use crate::defs::{Def, DefKind, Defs};

/// One paragraph per definition: its kind and its recorded body.
pub fn loops_text(defs: &Defs) -> String {
    let mut out = String::new();
    for &id in &defs.order {
        let def = defs.get(id);
        let sizes: Vec<String> = def.sizes.iter().map(ToString::to_string).collect();
        let _ = writeln!(out, "{id} {}: {}[{}] = {}", def.name, def.dtype, sizes.join(", "), head(def));
        for (n, inst) in def.insts().iter().enumerate() {
            let _ = writeln!(out, "    {} = {}", Val(n as u32), inst_text(inst));
        }
    }
    out
}

fn head(def: &Def) -> String {
    match &def.kind {
        DefKind::Input => "input".into(),
        DefKind::Constant => "constant".into(),
        DefKind::Loop { value, .. } => format!("loop -> {value}"),
        DefKind::Reduce { value, op, inner, .. } => {
            format!("reduce {} {value} over {:?}", op.name(), &inner[..])
        }
        DefKind::Scan { value, op, dim, .. } => format!("scan {} {value} along {dim}", op.name()),
        DefKind::Scatter { base, index, value, .. } => {
            format!("scatter {value} into {base} at {:?}", &index[..])
        }
        DefKind::Template(prims::TemplateSpec::Matmul { a, b, .. }) => format!("matmul b{} b{}", a.0, b.0),
        DefKind::Template(prims::TemplateSpec::Conv { input, weight, .. }) => {
            format!("conv b{} b{}", input.0, weight.0)
        }
        DefKind::Template(prims::TemplateSpec::Attention { q, k, v, .. }) => {
            format!("attention b{} b{} b{}", q.0, k.0, v.0)
        }
        DefKind::Joined { parts } => format!("joined {parts:?}"),
        DefKind::SecondaryOutput { template } => format!("secondary output of {template}"),
        DefKind::Control { call, .. } => format!("control flow over {:?}", call.reads()),
        DefKind::Extern { op, .. } => format!("extern {op:?}"),
    }
}

fn inst_text(inst: &kernel_ir::Inst) -> String {
    let dtype = inst.dtype;
    match &inst.kind {
        InstKind::Const(s) => format!("{dtype} {s}"),
        InstKind::Index(e) => format!("{dtype} index {e}"),
        InstKind::Load { buf, index, mask } => {
            let mask = mask.map_or(String::new(), |m| format!(" if {m}"));
            format!("{dtype} load {buf}{:?}{mask}", &index[..])
        }
        InstKind::Op { op, args } => format!("{dtype} {}{:?}", op.name(), &args[..]),
        InstKind::Cast(v) => format!("{dtype} cast {v}"),
        InstKind::Bitcast(v) => format!("{dtype} bitcast {v}"),
        other => format!("{dtype} {other:?}"),
    }
}
