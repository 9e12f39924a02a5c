//! The JSON of an exported program (export schema, major version 8), as serde types that borrow from the text.
//!
//! Unknown fields are skipped, fields that are used must be there. Nothing is interpreted here: names are resolved,
//! expressions parsed and graphs built by `program`. A union is an object with one key, which is serde's own form of
//! an enum.

mod text;

use serde::Deserialize;
use serde::de::IgnoredAny;

pub(crate) use text::{Entries, Float, Text};

/// The whole of `models/<name>.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Program<'a> {
    #[serde(borrow)]
    pub(crate) graph_module: GraphModule<'a>,
    pub(crate) schema_version: SchemaVersion,
    #[serde(borrow, default)]
    pub(crate) range_constraints: Entries<'a, Range>,
    #[serde(default)]
    pub(crate) guards_code: Vec<String>,
    #[serde(default)]
    pub(crate) verifiers: Vec<String>,
    #[serde(default)]
    pub(crate) torch_version: Option<String>,
}

/// Read alone where the whole cannot be: another major version has other types.
#[derive(Debug, Deserialize)]
pub(crate) struct VersionOnly {
    pub(crate) schema_version: SchemaVersion,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct SchemaVersion {
    pub(crate) major: i64,
    #[serde(default)]
    pub(crate) minor: i64,
}

/// Bounds of a symbol; beyond 64 bits (PyTorch writes such) counts as unbounded.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Range {
    #[serde(default, deserialize_with = "bound")]
    pub(crate) min_val: Option<i64>,
    #[serde(default, deserialize_with = "bound")]
    pub(crate) max_val: Option<i64>,
}

fn bound<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let value = Option::<Float>::deserialize(deserializer)?;
    // Every integer that a size can have is exact in an f64 up to 2^53; beyond that the bound says nothing.
    let exact = |f: &f64| f.fract() == 0.0 && f.abs() < (1u64 << 53) as f64;
    Ok(value.map(|f| f.0).filter(exact).map(|f| f as i64))
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphModule<'a> {
    #[serde(borrow)]
    pub(crate) graph: Graph<'a>,
    #[serde(borrow)]
    pub(crate) signature: Signature<'a>,
    #[serde(borrow, default)]
    pub(crate) module_call_graph: Vec<ModuleCall<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Graph<'a> {
    #[serde(borrow)]
    pub(crate) inputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub(crate) outputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub(crate) nodes: Vec<Node<'a>>,
    #[serde(borrow)]
    pub(crate) tensor_values: Entries<'a, TensorMeta<'a>>,
    #[serde(borrow, default)]
    pub(crate) sym_int_values: Entries<'a, SymInt<'a>>,
    #[serde(borrow, default)]
    pub(crate) sym_bool_values: Entries<'a, SymBool<'a>>,
    #[serde(borrow, default)]
    pub(crate) sym_float_values: Entries<'a, SymFloat<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node<'a> {
    #[serde(borrow)]
    pub(crate) target: Text<'a>,
    #[serde(borrow)]
    pub(crate) inputs: Vec<NamedArgument<'a>>,
    #[serde(borrow)]
    pub(crate) outputs: Vec<Argument<'a>>,
    #[serde(borrow, default)]
    pub(crate) metadata: Metadata<'a>,
    #[serde(borrow, default)]
    pub(crate) name: Option<Text<'a>>,
}

/// What a node's metadata says of its origin; other keys are not used.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Metadata<'a> {
    #[serde(borrow, default)]
    pub(crate) nn_module_stack: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(crate) torch_fn: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(crate) stack_trace: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NamedArgument<'a> {
    #[serde(borrow, default)]
    pub(crate) name: Text<'a>,
    #[serde(borrow)]
    pub(crate) arg: Argument<'a>,
}

/// One argument, input or output.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the schema's own names")]
pub(crate) enum Argument<'a> {
    AsNone(IgnoredAny),
    #[serde(borrow)]
    AsTensor(Name<'a>),
    AsTensors(Vec<Name<'a>>),
    AsNestedTensors(Vec<Vec<Name<'a>>>),
    AsOptionalTensor(OptionalTensor<'a>),
    AsOptionalTensors(Vec<OptionalTensor<'a>>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsIntLists(Vec<Vec<i64>>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsString(Text<'a>),
    AsStrings(Vec<Text<'a>>),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsComplex(Complex),
    AsSymInt(SymIntArgument<'a>),
    AsSymInts(Vec<SymIntArgument<'a>>),
    AsSymFloat(SymFloatArgument<'a>),
    AsSymFloats(Vec<SymFloatArgument<'a>>),
    AsSymBool(SymBoolArgument<'a>),
    AsSymBools(Vec<SymBoolArgument<'a>>),
    AsScalarType(u32),
    AsMemoryFormat(u32),
    AsLayout(u32),
    AsDevice(Device<'a>),
    AsGraph(Box<GraphArgument<'a>>),
    AsCustomObj(CustomObj<'a>),
    AsOperator(Text<'a>),
    AsStringToArgument(Entries<'a, Argument<'a>>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Name<'a> {
    #[serde(borrow)]
    pub(crate) name: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OptionalTensor<'a> {
    #[serde(borrow)]
    AsTensor(Name<'a>),
    AsNone(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymIntArgument<'a> {
    #[serde(borrow)]
    AsName(Text<'a>),
    AsInt(i64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymFloatArgument<'a> {
    #[serde(borrow)]
    AsName(Text<'a>),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymBoolArgument<'a> {
    #[serde(borrow)]
    AsName(Text<'a>),
    AsBool(bool),
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Complex {
    pub(crate) real: Float,
    pub(crate) imag: Float,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphArgument<'a> {
    #[serde(borrow, default)]
    pub(crate) name: Text<'a>,
    #[serde(borrow)]
    pub(crate) graph: Graph<'a>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CustomObj<'a> {
    #[serde(borrow)]
    pub(crate) name: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) class_fqn: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Device<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Text<'a>,
    #[serde(default)]
    pub(crate) index: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct TensorMeta<'a> {
    pub(crate) dtype: u32,
    #[serde(borrow)]
    pub(crate) sizes: Vec<SymInt<'a>>,
    #[serde(default)]
    pub(crate) requires_grad: bool,
    #[serde(borrow)]
    pub(crate) device: Device<'a>,
    #[serde(borrow)]
    pub(crate) strides: Vec<SymInt<'a>>,
    #[serde(borrow)]
    pub(crate) storage_offset: SymInt<'a>,
    pub(crate) layout: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymInt<'a> {
    #[serde(borrow)]
    AsExpr(SymExpr<'a>),
    AsInt(i64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymBool<'a> {
    #[serde(borrow)]
    AsExpr(SymExpr<'a>),
    AsBool(bool),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymFloat<'a> {
    #[serde(borrow)]
    AsExpr(SymExpr<'a>),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
pub(crate) struct SymExpr<'a> {
    #[serde(borrow)]
    pub(crate) expr_str: Text<'a>,
    #[serde(default)]
    pub(crate) hint: Option<Hint>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the schema's own names")]
pub(crate) enum Hint {
    AsInt(i64),
    // Only hints of sizes are used.
    AsBool(IgnoredAny),
    AsFloat(IgnoredAny),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Signature<'a> {
    #[serde(borrow)]
    pub(crate) input_specs: Vec<InputSpec<'a>>,
    #[serde(borrow)]
    pub(crate) output_specs: Vec<OutputSpec<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputSpec<'a> {
    #[serde(borrow)]
    UserInput(UserSpec<'a>),
    Parameter {
        #[serde(borrow)]
        arg: Name<'a>,
        #[serde(borrow)]
        parameter_name: Text<'a>,
    },
    Buffer {
        #[serde(borrow)]
        arg: Name<'a>,
        #[serde(borrow)]
        buffer_name: Text<'a>,
        #[serde(default = "default_true")]
        persistent: bool,
    },
    TensorConstant {
        #[serde(borrow)]
        arg: Name<'a>,
        #[serde(borrow)]
        tensor_constant_name: Text<'a>,
    },
    CustomObj {
        #[serde(borrow)]
        arg: CustomObj<'a>,
    },
    Token(IgnoredAny),
    ConstantInput {
        #[serde(borrow)]
        name: Text<'a>,
        #[serde(borrow)]
        value: Argument<'a>,
    },
}

fn default_true() -> bool {
    true
}

#[derive(Debug, Deserialize)]
pub(crate) struct UserSpec<'a> {
    #[serde(borrow)]
    pub(crate) arg: Argument<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputSpec<'a> {
    #[serde(borrow)]
    UserOutput(UserSpec<'a>),
    LossOutput {
        #[serde(borrow)]
        arg: Name<'a>,
    },
    BufferMutation {
        #[serde(borrow)]
        arg: Name<'a>,
        #[serde(borrow)]
        buffer_name: Text<'a>,
    },
    ParameterMutation {
        #[serde(borrow)]
        parameter_name: Text<'a>,
    },
    GradientToParameter {
        #[serde(borrow)]
        arg: Name<'a>,
        #[serde(borrow)]
        parameter_name: Text<'a>,
    },
    GradientToUserInput {
        #[serde(borrow)]
        arg: Name<'a>,
        #[serde(borrow)]
        user_input_name: Text<'a>,
    },
    UserInputMutation {
        #[serde(borrow)]
        arg: Name<'a>,
        #[serde(borrow)]
        user_input_name: Text<'a>,
    },
    Token(IgnoredAny),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModuleCall<'a> {
    #[serde(borrow, default)]
    pub(crate) fqn: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) signature: Option<ModuleCallSignature<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModuleCallSignature<'a> {
    #[serde(borrow, default)]
    pub(crate) in_spec: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) out_spec: Text<'a>,
    #[serde(default)]
    pub(crate) forward_arg_names: Option<Vec<String>>,
}

/// `data/weights/<name>_weights_config.json` and its sibling for constants.
#[derive(Debug, Deserialize)]
pub(crate) struct PayloadConfig<'a> {
    #[serde(borrow)]
    pub(crate) config: Entries<'a, Payload<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Payload<'a> {
    #[serde(borrow)]
    pub(crate) path_name: Text<'a>,
    #[serde(default)]
    pub(crate) is_param: bool,
    #[serde(default)]
    pub(crate) use_pickle: bool,
    #[serde(borrow, default)]
    pub(crate) tensor_meta: Option<TensorMeta<'a>>,
}
