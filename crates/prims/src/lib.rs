//! The operator table: one static entry per operator with its schema, shape and dtype rule, decomposition or lowering,
//! gradient, autocast policy, tolerance, reference and samples. To add an operator is to add one entry in
//! `ops/<family>.rs`.
//!
//! Only composites decompose, and they decompose until nothing but *prims* is left: a small closed set that `interp`
//! and `inductor` understand. Not here: graph storage (`fx-ir`), scheduling (`inductor`), execution (`interp`).
//!
//! ```
//! let gelu = prims::lookup("aten.gelu.default").unwrap();
//! assert!(!gelu.is_prim(), "it is made of other operators");
//! let exp = prims::lookup("prims.exp").unwrap();
//! assert!(exp.is_prim());
//! ```

mod batch_rule;
mod builder;
mod call;
pub mod carry;
mod complex_rule;
mod control_types;
mod decompose;
mod error;
pub mod facts;
mod integer_inputs;
mod legality;
mod lower;
mod near;
mod op;
pub mod ops;
pub mod promotion;
mod reference;
mod requirements;
mod samples;
pub mod scalars;
mod schema;
mod seeds;
pub mod shard_rule;
mod site;
pub mod split_complex;
mod table;
mod tolerance;
mod values;

pub use batch_rule::{BatchCall, BatchFn, BatchRule, Randomness, batch_call, draws};
pub use builder::Builder;
pub use call::Call;
pub use complex_rule::{ComplexCall, ComplexFn, ComplexRule, Parts, Split, SplitArg, Splits};
pub use decompose::{
    DecomposeCx, DecomposeError, decompose, decompose_call, decompose_in, decompose_partial,
};
pub use error::OpError;
pub use legality::prim_legality;
pub use lower::{LoopCx, Lower, LowerCall, ScatterSpec, TemplateSpec};
pub use op::{Autocast, CastPolicy, DecomposeFn, Grad, GradCall, Kind, MetaFn, OpDef, Outs, Reference};
pub use ops::{LONGEST_ATTENTION, has_long_rows};
pub use reference::{RefArg, RefCall, RefOut};
pub use requirements::{MetaCx, Requirement};
pub use samples::{Sample, Samples};
pub use schema::{ArgType, Schema, SchemaArg, SchemaDefault, SchemaError, SchemaReturn};
pub use seeds::iteration_seed;
pub use shard_rule::{LocalCall, LocalForm, LocalPart, Passes, Placement, ShardRule, Way};
pub use site::site;
pub use table::{Op, all, functional_of, lookup, schema_of};
pub use tolerance::Tolerance;
pub use values::check_values;
