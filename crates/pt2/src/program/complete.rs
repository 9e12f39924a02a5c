//! Makes the arguments of a call positional and complete, by the operator's ATen schema.
//!
//! The archive names arguments and leaves defaults out. An operator that the tables do not know keeps its arguments as
//! they are given: a later stage reports all such operators at once.

use fx_ir::Arg;
use ir_core::{DType, Layout, MemoryFormat, Scalar};
use prims::{ArgType, Schema, SchemaArg, SchemaDefault};

use crate::error::{Result, shorten};
use crate::json_path::JsonPath;

/// The arguments in schema order.
///
/// # Errors
/// `Invalid` where an argument is not of the schema, is given twice or is missing.
pub(super) fn positional(target: &str, given: Vec<(&str, Arg)>, at: &JsonPath<'_>) -> Result<Vec<Arg>> {
    match prims::schema_of(target) {
        Some(schema) => {
            by_schema(schema, given).map_err(|problem| at.invalid(format!("`{target}`: {problem}")))
        }
        None => Ok(given.into_iter().map(|(_, arg)| arg).collect()),
    }
}

fn by_schema(schema: &Schema, given: Vec<(&str, Arg)>) -> std::result::Result<Vec<Arg>, String> {
    let mut slots: Vec<Option<Arg>> = vec![None; schema.args.len()];
    for (position, (name, arg)) in given.into_iter().enumerate() {
        // Unnamed arguments are positional.
        let index = if name.is_empty() { Some(position) } else { schema.arg_index(name) };
        // An in-place operator calls the operand that it writes `self`, whatever its counterpart calls it: `dropout_`.
        let index = index.or_else(|| (position == 0 && name == "self").then_some(0));
        let slot = index.and_then(|i| slots.get_mut(i).zip(schema.args.get(i)));
        let Some((slot, declared)) = slot else {
            return Err(format!("it has no argument `{}`", shorten(name)));
        };
        if slot.replace(coerce(arg, &declared.ty)).is_some() {
            return Err(format!("the argument `{}` is given twice", declared.name));
        }
    }
    let fill = |(slot, declared): (Option<Arg>, &SchemaArg)| match slot {
        Some(arg) => Ok(arg),
        None => default(declared),
    };
    slots.into_iter().zip(&schema.args).map(fill).collect()
}

/// The value of an argument that a call leaves out.
pub(crate) fn default(declared: &SchemaArg) -> std::result::Result<Arg, String> {
    let ty = &declared.ty;
    match &declared.default {
        Some(SchemaDefault::None) => Ok(Arg::None),
        Some(SchemaDefault::Scalar(Scalar::Int(code))) if is_enumeration(ty) => {
            numbered(*code, ty).ok_or_else(|| unknown_default(&code.to_string(), declared))
        }
        Some(SchemaDefault::Scalar(value)) => Ok(coerce(Arg::from(*value), ty)),
        Some(SchemaDefault::List(items)) => {
            Ok(coerce(Arg::List(items.iter().map(|&i| Arg::from(i)).collect()), ty))
        }
        Some(SchemaDefault::Name(name)) => named(name, ty).ok_or_else(|| unknown_default(name, declared)),
        None if ty.optional => Ok(Arg::None),
        None => Err(format!("the argument `{}` is missing", declared.name)),
    }
}

fn unknown_default(text: &str, declared: &SchemaArg) -> String {
    format!("the default `{text}` of the argument `{}` is not known here", declared.name)
}

fn is_enumeration(ty: &ArgType) -> bool {
    matches!(ty.base.as_str(), "MemoryFormat" | "ScalarType" | "Layout")
}

/// An enumeration's value by its number in ATen's schemas (`c10::MemoryFormat`, `c10::ScalarType`, `c10::Layout`),
/// which is not the archive's.
fn numbered(code: i64, ty: &ArgType) -> Option<Arg> {
    Some(match (ty.base.as_str(), code) {
        ("MemoryFormat", 0) => Arg::MemoryFormat(MemoryFormat::Contiguous),
        ("MemoryFormat", 1) => Arg::MemoryFormat(MemoryFormat::Preserve),
        ("MemoryFormat", 2) => Arg::MemoryFormat(MemoryFormat::ChannelsLast),
        ("MemoryFormat", 3) => Arg::MemoryFormat(MemoryFormat::ChannelsLast3d),
        // The archive counts dtypes from 1.
        ("ScalarType", code) => Arg::DType(DType::from_pt2_code(u32::try_from(code).ok()?.checked_add(1)?)?),
        ("Layout", 0) => Arg::Layout(Layout::Strided),
        _ => return None,
    })
}

fn named(name: &str, ty: &ArgType) -> Option<Arg> {
    Some(match ty.base.as_str() {
        "MemoryFormat" => Arg::MemoryFormat(match name {
            "contiguous_format" => MemoryFormat::Contiguous,
            "preserve_format" => MemoryFormat::Preserve,
            "channels_last" => MemoryFormat::ChannelsLast,
            "channels_last_3d" => MemoryFormat::ChannelsLast3d,
            _ => return None,
        }),
        "ScalarType" => Arg::DType(name.parse::<DType>().ok()?),
        "Layout" if name == "strided" => Arg::Layout(Layout::Strided),
        "Device" => Arg::Device(name.parse().ok()?),
        _ => Arg::Str(name.into()),
    })
}

/// Implicit conversions of Python: an `int` for a `float`, one number for a list.
fn coerce(arg: Arg, ty: &ArgType) -> Arg {
    let float = ty.base == "float";
    match arg {
        Arg::List(items) if float => Arg::List(items.into_iter().map(to_float).collect()),
        Arg::Int(_) | Arg::Scalar(_) if ty.list => {
            let one = if float { to_float(arg) } else { arg };
            Arg::List(vec![one; ty.length.unwrap_or(1)])
        }
        arg if float => to_float(arg),
        arg => arg,
    }
}

fn to_float(arg: Arg) -> Arg {
    match arg.as_scalar() {
        Some(Scalar::Int(i)) => (i as f64).into(),
        Some(Scalar::Bool(b)) => f64::from(u8::from(b)).into(),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(schema: &str, given: Vec<(&str, Arg)>) -> std::result::Result<Vec<Arg>, String> {
        by_schema(&Schema::parse(schema).unwrap(), given)
    }

    #[test]
    fn defaults_and_order() {
        let schema = "aten::g(MemoryFormat m=0, ScalarType? d=4, Layout l=0) -> Tensor";
        let expected =
            [Arg::MemoryFormat(MemoryFormat::Contiguous), DType::I64.into(), Arg::Layout(Layout::Strided)];
        assert_eq!(complete(schema, vec![]).unwrap(), expected, "numbers of ATen's enumerations");
        let schema = "aten::f(int a, float eps=1e-05, int[2] pad=0, *, ScalarType? dtype=None, MemoryFormat memory_format=contiguous_format, str mode=\"constant\") -> Tensor";
        let args =
            complete(schema, vec![("dtype", DType::F32.into()), ("a", 3.into()), ("eps", 1.into())]).unwrap();
        let expected = [
            3.into(),
            1.0.into(),
            Arg::List(vec![0.into(), 0.into()]),
            DType::F32.into(),
            Arg::MemoryFormat(MemoryFormat::Contiguous),
            "constant".into(),
        ];
        assert_eq!(args, expected);
    }

    #[test]
    fn misfits_are_errors() {
        let schema = "aten::f(int a, int b=2) -> Tensor";
        let problem = |given| complete(schema, given).unwrap_err();
        assert!(problem(vec![("b", 1.into())]).contains("`a` is missing"));
        assert!(problem(vec![("a", 1.into()), ("c", 1.into())]).contains("no argument `c`"));
        assert!(problem(vec![("", 1.into()), ("a", 1.into())]).contains("twice"));
    }
}
