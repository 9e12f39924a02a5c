//! Suggestions for an operator that the table lacks: other overloads first, then similar names. Only text for an error.

use ir_core::nearest;

use crate::{Op, all};

/// `; the table has …`, or nothing where no entry is near.
pub(crate) fn nearest_form(target: &str) -> String {
    match &candidates(target)[..] {
        [] => String::new(),
        [one] => format!("; the nearest supported form is `{one}`"),
        many => format!("; the nearest supported forms are `{}`", many.join("`, `")),
    }
}

/// At most three targets of composites, nearest first.
fn candidates(target: &str) -> Vec<String> {
    let Some((packet, _)) = target.rsplit_once('.') else { return Vec::new() };
    // An in-place variant is the functional operator with an underscore.
    let functional = packet.strip_suffix('_').unwrap_or(packet);
    let callable = || all().iter().filter(|op: &&Op| !op.is_prim());
    let packet_of = |op: &'static Op| op.target.rsplit_once('.').map_or("", |(packet, _)| packet);
    let overloads: Vec<String> =
        callable().filter(|op| packet_of(op) == functional).map(|op| op.target.clone()).take(3).collect();
    if !overloads.is_empty() {
        return overloads;
    }
    let near = nearest(functional, callable().map(packet_of));
    let first = |packet: &String| callable().find(|op| packet_of(op) == packet).map(|op| op.target.clone());
    near.iter().filter_map(first).collect()
}

#[cfg(test)]
mod tests {
    use super::nearest_form;

    #[test]
    fn other_overloads_come_before_similar_names() {
        let near = nearest_form("aten.add.NoSuchOverload");
        assert!(near.contains("`aten.add."), "{near}");
        let near = nearest_form("aten.sofmax.int");
        assert!(near.contains("`aten.softmax.int`"), "{near}");
        assert_eq!(nearest_form("mylib.frobnicate_tensors_twice.default"), "");
        assert_eq!(nearest_form("nonsense"), "");
    }
}
