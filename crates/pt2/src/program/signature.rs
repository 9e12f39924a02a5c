//! The signature: what each input and output of the graph is, and what the caller calls it.

use std::collections::HashSet;

use fx_ir::{Arg, Graph, InputKind, Output, OutputKind, ValueId, ValueType};

use super::build::Builder;
use super::scope::Scope;
use super::treespec::TreeSpec;
use crate::error::{Result, shorten};
use crate::json_path::JsonPath;
use crate::schema::{self, Argument, InputSpec, OutputSpec};

/// An argument of the exported `forward`, in calling order (positional, then keyword, nested ones flattened).
#[derive(Clone, Debug, PartialEq)]
pub struct UserInput {
    /// What the caller writes: `x`, `d['a']`, `pair[0]`.
    pub path: String,
    /// The graph's name of it: `d_a`.
    pub name: String,
    /// The graph's input; `None` where the program was exported for one constant value.
    pub value: Option<ValueId>,
    /// The value that the program was exported for, where it is a constant.
    pub constant: Option<Arg>,
}

impl<'a> Builder<'a> {
    /// Adds the inputs of the outermost graph and returns the caller's.
    pub(super) fn inputs(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        module: &'a schema::GraphModule<'a>,
        at: &JsonPath<'_>,
    ) -> Result<Vec<UserInput>> {
        let (specs, inputs) = (&module.signature.input_specs, &module.graph.inputs);
        let signature = at.field("signature");
        let at = signature.field("input_specs");
        if specs.len() != inputs.len() {
            return Err(at.invalid(format!("{} specs for {} graph inputs", specs.len(), inputs.len())));
        }
        let mut users = Vec::new();
        for (i, (spec, input)) in specs.iter().zip(inputs).enumerate() {
            let at = at.item(i);
            self.one_input(out, scope, spec, input, &mut users, &at)?;
        }
        Ok(users)
    }

    fn one_input(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        spec: &'a InputSpec<'a>,
        input: &'a Argument<'a>,
        users: &mut Vec<UserInput>,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let (kind, name, outside) = match spec {
            InputSpec::Parameter { arg, parameter_name } => (InputKind::Parameter, arg, parameter_name),
            InputSpec::Buffer { arg, buffer_name, persistent } => {
                (InputKind::Buffer { persistent: *persistent }, arg, buffer_name)
            }
            InputSpec::TensorConstant { arg, tensor_constant_name } => {
                (InputKind::Constant, arg, tensor_constant_name)
            }
            InputSpec::UserInput(user) => return self.user_input(out, scope, &user.arg, users, at),
            InputSpec::ConstantInput { name, value } => {
                let constant = Some(self.arg(out, scope, value, 0, at)?);
                let name = String::from(&**name);
                users.push(UserInput { path: name.clone(), name, value: None, constant });
                return Ok(());
            }
            InputSpec::CustomObj { arg } => {
                return Err(super::args::custom_object(arg, at));
            }
            InputSpec::Token(_) => {
                let what = "the program orders operators with side effects by tokens";
                return Err(
                    at.unsupported(what, "export the model without custom operators that have side effects")
                );
            }
        };
        let same = matches!(input, Argument::AsTensor(t) if t.name == name.name);
        if !same {
            return Err(
                at.invalid(format!("the graph's input at this place is not `{}`", shorten(&name.name)))
            );
        }
        let Some((value_name, ty)) = self.input_type(scope, input, at)? else {
            return Err(at.invalid("a weight that is no tensor"));
        };
        self.placeholder(out, scope, (kind, outside), value_name, ty, at)?;
        Ok(())
    }

    fn user_input(
        &mut self,
        out: &mut Graph,
        scope: &mut Scope<'a>,
        arg: &'a Argument<'a>,
        users: &mut Vec<UserInput>,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        match self.input_type(scope, arg, at)? {
            Some((name, ty)) => {
                if let ValueType::Int(e) = &ty {
                    self.symbols.is_given(e);
                }
                let value = self.placeholder(out, scope, (InputKind::User, name), name, ty, at)?;
                let name = name.to_owned();
                users.push(UserInput { path: name.clone(), name, value: Some(value), constant: None });
            }
            None => {
                let constant = Some(self.arg(out, scope, arg, 0, at)?);
                let name = format!("arg{}", users.len());
                users.push(UserInput { path: name.clone(), name, value: None, constant });
            }
        }
        Ok(())
    }

    /// Adds the outputs of the outermost graph.
    pub(super) fn outputs(
        &mut self,
        out: &mut Graph,
        scope: &Scope<'a>,
        module: &'a schema::GraphModule<'a>,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let (specs, outputs) = (&module.signature.output_specs, &module.graph.outputs);
        let signature = at.field("signature");
        let at = signature.field("output_specs");
        if specs.len() != outputs.len() {
            return Err(at.invalid(format!("{} specs for {} graph outputs", specs.len(), outputs.len())));
        }
        for (i, spec) in specs.iter().enumerate() {
            let at = at.item(i);
            let named = |name: &schema::Name<'a>| scope.get(&name.name, &at);
            let (kind, arg) = match spec {
                OutputSpec::UserOutput(user) => (OutputKind::User, self.arg(out, scope, &user.arg, 0, &at)?),
                OutputSpec::LossOutput { arg } => (OutputKind::Loss, named(arg)?),
                OutputSpec::BufferMutation { arg, buffer_name } => {
                    (OutputKind::BufferMutation(String::from(&**buffer_name)), named(arg)?)
                }
                OutputSpec::ParameterMutation { parameter_name } => {
                    let what = format!("the program writes its parameter `{}`", shorten(parameter_name));
                    return Err(at.unsupported(what, "register what the program writes as a buffer"));
                }
                OutputSpec::GradientToParameter { arg, parameter_name } => {
                    (OutputKind::ParameterGradient(String::from(&**parameter_name)), named(arg)?)
                }
                OutputSpec::GradientToUserInput { arg, user_input_name } => {
                    (OutputKind::InputGradient(String::from(&**user_input_name)), named(arg)?)
                }
                OutputSpec::UserInputMutation { arg, user_input_name } => {
                    (OutputKind::InputMutation(String::from(&**user_input_name)), named(arg)?)
                }
                OutputSpec::Token(_) => continue,
            };
            out.outputs.push(Output { kind, arg });
        }
        check_mutations(out, &at)
    }
}

/// What is written must be an input of the graph, and is written once.
fn check_mutations(graph: &Graph, at: &JsonPath<'_>) -> Result<()> {
    let of = |wanted: fn(InputKind) -> bool| -> HashSet<&str> {
        graph.inputs().filter(|(_, kind, _)| wanted(*kind)).map(|(_, _, name)| name).collect()
    };
    let buffers = of(|kind| matches!(kind, InputKind::Buffer { .. }));
    let users = of(|kind| kind == InputKind::User);
    let mut written = HashSet::new();
    for output in &graph.outputs {
        let (name, known) = match &output.kind {
            OutputKind::BufferMutation(name) => (name, buffers.contains(name.as_str())),
            OutputKind::InputMutation(name) => (name, users.contains(name.as_str())),
            _ => continue,
        };
        if !known {
            return Err(at.invalid(format!("`{}` is written, but is no input of that kind", shorten(name))));
        }
        if !written.insert(&output.kind) {
            return Err(at.invalid(format!("`{}` is written twice", shorten(name))));
        }
    }
    Ok(())
}

/// How `forward` is called and what it returns, where the archive says so.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallSpec {
    /// Structure of `((args…), {kwargs…})`.
    pub inputs: Option<TreeSpec>,
    /// Structure of the result.
    pub outputs: Option<TreeSpec>,
    /// Names of `forward`'s parameters.
    pub arg_names: Vec<String>,
}

/// The call spec of the whole module.
pub(super) fn call_spec(calls: &[schema::ModuleCall<'_>], at: &JsonPath<'_>) -> Result<CallSpec> {
    let at = at.field("module_call_graph");
    let root = calls.iter().enumerate().find(|(_, call)| call.fqn.is_empty());
    let Some((i, signature)) = root.and_then(|(i, call)| call.signature.as_ref().map(|s| (i, s))) else {
        return Ok(CallSpec::default());
    };
    let at = at.item(i);
    let read = |text: &str, field| -> Result<Option<TreeSpec>> {
        if text.is_empty() { Ok(None) } else { TreeSpec::read(text, &at.field(field)).map(Some) }
    };
    Ok(CallSpec {
        inputs: read(&signature.in_spec, "in_spec")?,
        outputs: read(&signature.out_spec, "out_spec")?,
        arg_names: signature.forward_arg_names.clone().unwrap_or_default(),
    })
}

/// Gives the inputs the caller's names, where the spec has as many leaves as there are inputs.
pub(super) fn name_inputs(users: &mut [UserInput], spec: &CallSpec) {
    let paths = spec.inputs.as_ref().and_then(|tree| tree.argument_paths(&spec.arg_names));
    if let Some(paths) = paths.filter(|paths| paths.len() == users.len()) {
        users.iter_mut().zip(paths).for_each(|(user, path)| user.path = path);
    }
}
