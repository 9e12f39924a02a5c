//! The table itself: every family's entries, indexed by name, with parsed schemas.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use crate::{Kind, OpDef, Schema, ops};

/// A table entry with its parsed schema.
pub struct Op {
    /// The entry.
    pub def: &'static OpDef,
    /// The parsed schema.
    pub schema: Schema,
    /// The name that graphs use: `aten.add.Tensor`.
    pub target: String,
}

impl Op {
    /// Whether the operator is in the closed set.
    pub fn is_prim(&self) -> bool {
        matches!(self.def.kind, Kind::Prim { .. })
    }
}

/// Every operator, family by family.
pub fn all() -> &'static [Op] {
    static OPS: OnceLock<Vec<Op>> = OnceLock::new();
    OPS.get_or_init(|| ops::FAMILIES.iter().flat_map(|family| family.iter()).map(entry).collect())
}

/// The operator with this name: `aten.add.Tensor`, `prims.add`. In-place variants are found by [`functional_of`].
pub fn lookup(target: &str) -> Option<&'static Op> {
    static INDEX: OnceLock<FxHashMap<&'static str, &'static Op>> = OnceLock::new();
    INDEX.get_or_init(|| all().iter().map(|op| (op.target.as_str(), op)).collect()).get(target).copied()
}

/// The operator that an in-place variant writes back: `aten.relu_.default` gives `aten.relu.default`.
///
/// By PyTorch's naming rule an in-place operator has the arguments of its counterpart and a trailing underscore, so
/// it needs no entry of its own.
pub fn functional_of(target: &str) -> Option<&'static Op> {
    let mut parts = target.split('.');
    let (namespace, name, overload) = (parts.next()?, parts.next()?, parts.next()?);
    // `__iand__` writes back `__and__`.
    if let Some(rest) = name.strip_prefix("__i").filter(|rest| rest.ends_with("__")) {
        return lookup(&format!("{namespace}.__{rest}.{overload}"));
    }
    let base = name.strip_suffix('_').filter(|base| !base.ends_with('_') && !base.is_empty())?;
    lookup(&format!("{namespace}.{base}.{overload}"))
}

/// The schema that completes the arguments of a call, in-place variants included.
pub fn schema_of(target: &str) -> Option<&'static Schema> {
    lookup(target).or_else(|| functional_of(target)).map(|op| &op.schema)
}

fn entry(def: &'static OpDef) -> Op {
    // The schemas are part of the program: a test parses every one.
    let schema = Schema::parse(def.schema).unwrap_or_else(|e| panic!("{e}"));
    let target = schema.target();
    Op { def, schema, target }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_schemas_parse() {
        let mut seen = rustc_hash::FxHashSet::default();
        for op in all() {
            assert!(seen.insert(op.target.clone()), "two entries for {}", op.target);
            assert!(!op.is_prim() || op.schema.namespace == "prims", "{} is a prim by kind only", op.target);
        }
    }

    #[test]
    fn the_prim_set_stays_small() {
        let prims = all().iter().filter(|op| op.is_prim()).count();
        assert!(prims <= 250, "{prims} prims");
    }
}
