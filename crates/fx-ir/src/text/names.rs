//! Unique names for the values of a graph; printers and the drawer share them.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Graph, ValueId};

/// A unique name for every value that a node in execution order gives.
pub(crate) struct Names {
    names: FxHashMap<ValueId, String>,
}

impl Names {
    /// Names in definition order: the first value keeps its name, later ones of the same name get `_1`, `_2`, ….
    pub(crate) fn of(graph: &Graph) -> Names {
        let mut taken: FxHashSet<String> = FxHashSet::default();
        let mut next: FxHashMap<String, usize> = FxHashMap::default();
        let mut names = FxHashMap::default();
        for (_, node) in graph.iter() {
            for &value in &node.outputs {
                let Some(entry) = graph.values.get(value) else { continue };
                let base = if entry.name.is_empty() { "v" } else { &entry.name };
                let mut name = base.to_string();
                while !taken.insert(name.clone()) {
                    let n = next.entry(base.to_string()).or_insert(0);
                    *n += 1;
                    name = format!("{base}_{n}");
                }
                names.entry(value).or_insert(name);
            }
        }
        Names { names }
    }
    /// The name; a value that no node in execution order gives is `?7`.
    pub(crate) fn get(&self, value: ValueId) -> String {
        self.names.get(&value).cloned().unwrap_or_else(|| format!("?{}", value.0))
    }
}
