//! Reads the text form: one function per construct of the grammar in the module's header. Depth and length are bounded,
//! every failure is a [`TextError`] with its place.

use ir_core::text::{Cursor, float_of, value_of};
use ir_core::{
    DType, Device, EntityId, Guard, Origin, Scalar, Shape, SymExpr, TensorMeta, contiguous_strides,
};
use rustc_hash::FxHashMap;

use super::words::{INPUTS, LAYOUTS, MEMORY_FORMATS, is_bare};
use super::{MAX_BYTES, MAX_DEPTH, TEXT_VERSION, TextError, TextProblem};
use crate::{
    Arg, Graph, InputKind, Node, NodeKind, OriginId, Output, OutputKind, SubgraphId, Value, ValueId,
    ValueType,
};

/// Reports lists and subgraphs that are nested more deeply than the parser follows.
const TOO_DEEP: TextProblem = TextProblem::TooDeep { what: "lists or subgraphs are", limit: MAX_DEPTH };

type Result<T> = std::result::Result<T, TextError>;

/// The whole text of a file.
pub(super) fn document(text: &str) -> Result<Graph> {
    let mut cursor = Cursor::new(text, is_bare);
    if text.len() > MAX_BYTES {
        return Err(cursor.error_at(0, TextProblem::TooLong { limit: MAX_BYTES }));
    }
    header(&mut cursor)?;
    if !cursor.eat_word("graph") {
        return Err(cursor.expected("`graph \"name\" {`"));
    }
    let name = cursor.quoted("the graph's name")?;
    let graph = body(&mut cursor, name, 0)?;
    if cursor.at_end() { Ok(graph) } else { Err(cursor.expected("the end of the text")) }
}

/// A meta alone.
pub(super) fn single_meta(text: &str) -> Result<TensorMeta> {
    let mut cursor = Cursor::new(text, is_bare);
    let meta = match value_type(&mut cursor)? {
        ValueType::Tensor(meta) => meta,
        _ => {
            return Err(cursor.expected_at(0, "a tensor such as `f32[2, s0]`"));
        }
    };
    if cursor.at_end() { Ok(meta) } else { Err(cursor.expected("the end of the text")) }
}

/// `fx 1.0`
fn header(cursor: &mut Cursor<'_>) -> Result<()> {
    if !cursor.eat_word("fx") {
        return Err(cursor.expected("the header `fx 1.0`"));
    }
    let mark = cursor.mark();
    let version = cursor.word();
    let parts: Option<(u32, u32)> =
        version.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((major, minor)) if major == TEXT_VERSION.0 && minor <= TEXT_VERSION.1 => Ok(()),
        Some(_) => {
            let advice = "write the file again with this version";
            let found = version.to_string();
            let problem = TextProblem::Version { form: "fx", newest: TEXT_VERSION, found, advice };
            Err(cursor.error_at(mark, problem))
        }
        None => Err(cursor.expected_at(mark, "a version such as `1.0`")),
    }
}

/// A graph under construction and the meaning of its names.
struct Body {
    graph: Graph,
    values: FxHashMap<String, ValueId>,
    origins: FxHashMap<Origin, OriginId>,
}

fn body(cursor: &mut Cursor<'_>, name: String, depth: usize) -> Result<Graph> {
    if depth > MAX_DEPTH {
        let mark = cursor.mark();
        return Err(cursor.error_at(mark, TOO_DEEP));
    }
    cursor.expect("{")?;
    let graph = Graph::new(name);
    let mut body = Body {
        graph,
        values: FxHashMap::default(),
        origins: FxHashMap::from_iter([(Origin::default(), OriginId(0))]),
    };
    while !cursor.eat("}") {
        statement(cursor, &mut body, depth)?;
    }
    Ok(body.graph)
}

fn statement(cursor: &mut Cursor<'_>, body: &mut Body, depth: usize) -> Result<()> {
    if cursor.eat_word("symbol") {
        cursor.next_number("s", body.graph.symbols.len())?;
        let symbol = cursor.symbol()?;
        body.graph.add_symbol(symbol);
        return Ok(());
    }
    if cursor.eat_word("guard") {
        let guard = guard(cursor)?;
        body.graph.guards.push(guard);
        return Ok(());
    }
    if cursor.eat_word("subgraph") {
        return subgraph(cursor, body, depth);
    }
    if cursor.eat_word("return") {
        let output = output(cursor, body)?;
        body.graph.outputs.push(output);
        return Ok(());
    }
    node(cursor, body)
}

/// `s0 - s1, zero "the sizes differ" from add`
fn guard(cursor: &mut Cursor<'_>) -> Result<Guard> {
    let expression = size(cursor)?;
    cursor.expect(",")?;
    let relation = cursor.relation()?;
    let message = cursor.quoted("the guard's message")?;
    let origin = bare_origin(cursor)?;
    Ok(Guard { expression, relation, origin, message })
}

/// `g0 "name" { … }`
fn subgraph(cursor: &mut Cursor<'_>, outer: &mut Body, depth: usize) -> Result<()> {
    cursor.next_number("g", outer.graph.subgraphs.len())?;
    let name = cursor.quoted("the subgraph's name")?;
    let sub = body(cursor, name, depth + 1)?;
    outer.graph.subgraphs.push(sub);
    Ok(())
}

/// `%a: f32[2], %b: i64[2] = target(arguments) from origin`
fn node(cursor: &mut Cursor<'_>, body: &mut Body) -> Result<()> {
    let def = body.graph.nodes.next_id();
    let mut declared = Vec::new();
    while cursor.eat("%") {
        let mark = cursor.mark();
        let name = cursor.name("a value's name")?;
        cursor.expect(":")?;
        let ty = value_type(cursor)?;
        declared.push((mark, Value { name, ty, def }));
        if !cursor.eat(",") {
            break;
        }
    }
    if !declared.is_empty() {
        cursor.expect("=")?;
    }
    let kind = node_kind(cursor, body, declared.len())?;
    let origin = origin(cursor, body)?;
    let mut node = Node { kind, outputs: Default::default(), origin };
    for (mark, value) in declared {
        let name = value.name.clone();
        let id = body.graph.values.push(value);
        node.outputs.push(id);
        if body.values.insert(name.clone(), id).is_some() {
            return Err(cursor.error_at(mark, TextProblem::DuplicateValue(name)));
        }
    }
    body.graph.nodes.push(node);
    body.graph.order.push(def);
    Ok(())
}

/// A placeholder's kind and name, or a call.
fn node_kind(cursor: &mut Cursor<'_>, body: &Body, declared: usize) -> Result<NodeKind> {
    let target = match cursor.peek() {
        Some('}' | '(' | ')' | ']' | '=' | ',') | None => return Err(cursor.expected("a statement or `}`")),
        _ => cursor.name("an operator's name")?,
    };
    if cursor.eat("(") {
        let args = cursor.items(")", |c| arg(c, body, 0))?;
        return Ok(NodeKind::Call { target, args });
    }
    let Some(mut kind) = value_of(INPUTS, &target).filter(|_| declared == 1) else {
        return Err(cursor.expected(&format!("`(` after `{target}`")));
    };
    if matches!(kind, InputKind::Buffer { .. }) && cursor.eat_word("transient") {
        kind = InputKind::Buffer { persistent: false };
    }
    let name = cursor.quoted("the input's name")?;
    Ok(NodeKind::Placeholder { kind, name })
}

/// ` from module:function:"source":"operator":"precision"`
fn origin(cursor: &mut Cursor<'_>, body: &mut Body) -> Result<OriginId> {
    let origin = bare_origin(cursor)?;
    if let Some(&id) = body.origins.get(&origin) {
        return Ok(id);
    }
    let id = body.graph.origins.push(origin.clone());
    body.origins.insert(origin, id);
    Ok(id)
}

/// The same, as it is written.
fn bare_origin(cursor: &mut Cursor<'_>) -> Result<Origin> {
    if !cursor.eat_word("from") {
        return Ok(Origin::default());
    }
    let part = |cursor: &mut Cursor<'_>| match cursor.peek() {
        Some(':') => Ok(String::new()),
        _ => cursor.name("the origin's module, function or source"),
    };
    let mut origin = Origin { module: part(cursor)?, ..Origin::default() };
    if cursor.eat(":") {
        origin.function = part(cursor)?;
    }
    if cursor.eat(":") && cursor.peek() != Some(':') {
        origin.source = Some(cursor.quoted("the source line")?);
    }
    if cursor.eat(":") && cursor.peek() != Some(':') {
        origin.operator = cursor.quoted("the operator")?;
    }
    if cursor.eat(":") {
        let mark = cursor.mark();
        let text = cursor.quoted("the regions of mixed precision")?;
        origin.precisions = text.parse().map_err(|what: String| cursor.expected_at(mark, &what))?;
    }
    Ok(origin)
}

/// `%x`, `loss %l`, `buffer "name" = %x`
fn output(cursor: &mut Cursor<'_>, body: &Body) -> Result<Output> {
    let mark = cursor.mark();
    let word = cursor.word();
    let named: Option<fn(String) -> OutputKind> = match word {
        "buffer" => Some(OutputKind::BufferMutation),
        "input" => Some(OutputKind::InputMutation),
        "parameter_gradient" => Some(OutputKind::ParameterGradient),
        "input_gradient" => Some(OutputKind::InputGradient),
        _ => None,
    };
    let kind = match (named, word) {
        (Some(make), _) => {
            let name = cursor.quoted("the name of what is written")?;
            cursor.expect("=")?;
            make(name)
        }
        (None, "loss") => OutputKind::Loss,
        (None, "saved") => OutputKind::Saved,
        (None, _) => {
            cursor.reset(mark);
            OutputKind::User
        }
    };
    Ok(Output { kind, arg: arg(cursor, body, 0)? })
}

/// `f32[2, s0]{1, 2}+4@cuda:0`, `int(s0)`, `float`, `bool`, `none`
fn value_type(cursor: &mut Cursor<'_>) -> Result<ValueType> {
    let mark = cursor.mark();
    let word = cursor.word();
    if cursor.eat("[") {
        let dtype = word.parse::<DType>().map_err(|e| cursor.error_at(mark, TextProblem::Malformed(e)))?;
        return meta(cursor, dtype).map(ValueType::Tensor);
    }
    match word {
        "int" => {
            cursor.expect("(")?;
            let value = size(cursor)?;
            cursor.expect(")").map(|()| ValueType::Int(value))
        }
        "float" => Ok(ValueType::Float),
        "bool" => Ok(ValueType::Bool),
        "none" => Ok(ValueType::None),
        _ => Err(cursor.expected_at(mark, "a type: `f32[2, s0]`, `int(s0)`, `float`, `bool` or `none`")),
    }
}

/// The rest of a meta after `dtype[`.
fn meta(cursor: &mut Cursor<'_>, dtype: DType) -> Result<TensorMeta> {
    let sizes = shape(cursor, "]")?;
    let strides = if cursor.eat("{") { shape(cursor, "}")? } else { contiguous_strides(&sizes) };
    let offset = if cursor.eat("+") { size(cursor)? } else { SymExpr::ZERO };
    let device = if cursor.eat("@") { device(cursor)? } else { Device::CPU };
    Ok(TensorMeta { dtype, device, sizes, strides, offset })
}

/// Sizes or strides up to `close`.
fn shape(cursor: &mut Cursor<'_>, close: &str) -> Result<Shape> {
    cursor.items(close, size).map(Shape::from_vec)
}

/// A size expression.
fn size(cursor: &mut Cursor<'_>) -> Result<SymExpr> {
    let mark = cursor.mark();
    let raw = cursor.raw();
    size_of(raw).map_err(|e| cursor.error_at(mark, TextProblem::Malformed(e)))
}

fn size_of(raw: &str) -> std::result::Result<SymExpr, String> {
    // `i64::MIN` is a number although its magnitude is not.
    let expr = raw.parse::<i64>().map(SymExpr::from_i64).or_else(|_| raw.parse::<SymExpr>())?;
    if expr.any_leaf(|leaf| matches!(leaf, ir_core::Atom::Loop(_) | ir_core::Atom::Value(_))) {
        return Err(format!("`{raw}` is not a size: only symbols such as `s0` and numbers are"));
    }
    Ok(expr)
}

fn device(cursor: &mut Cursor<'_>) -> Result<Device> {
    let mark = cursor.mark();
    let text = cursor.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':'));
    text.parse().map_err(|e| cursor.error_at(mark, TextProblem::Malformed(e)))
}

fn arg(cursor: &mut Cursor<'_>, body: &Body, depth: usize) -> Result<Arg> {
    let mark = cursor.mark();
    if depth > MAX_DEPTH {
        return Err(cursor.error_at(mark, TOO_DEEP));
    }
    match cursor.peek() {
        Some('%') => {
            cursor.expect("%")?;
            let name = cursor.name("a value's name")?;
            let value = body.values.get(&name).copied();
            value.map(Arg::Value).ok_or_else(|| cursor.error_at(mark, TextProblem::UnknownValue(name)))
        }
        Some('[') => {
            cursor.expect("[")?;
            cursor.items("]", |c| arg(c, body, depth + 1)).map(Arg::List)
        }
        Some('"') => Ok(Arg::Str(cursor.quoted("a text")?.into())),
        Some('@') => {
            cursor.expect("@")?;
            device(cursor).map(Arg::Device)
        }
        Some('&') => {
            cursor.expect("&")?;
            let number = cursor.numbered("g")? as usize;
            Ok(Arg::Graph(SubgraphId::from_index(number)))
        }
        Some(c) if c.is_ascii_alphabetic() => match keyword(cursor)? {
            Some(arg) => Ok(arg),
            None => {
                cursor.reset(mark);
                number(cursor)
            }
        },
        _ => number(cursor),
    }
}

/// An argument that is a word, or `None` where the word begins an expression.
fn keyword(cursor: &mut Cursor<'_>) -> Result<Option<Arg>> {
    let word = cursor.word();
    Ok(Some(match word {
        "none" => Arg::None,
        "true" => Arg::from(true),
        "false" => Arg::from(false),
        "complex" => Arg::Scalar(cursor.complex()?),
        _ => {
            let dtype = DType::ALL.iter().find(|d| d.name() == word).map(|&d| Arg::DType(d));
            let layout = value_of(LAYOUTS, word).map(Arg::Layout);
            return Ok(dtype.or(layout).or(value_of(MEMORY_FORMATS, word).map(Arg::MemoryFormat)));
        }
    }))
}

/// A float or a size expression.
fn number(cursor: &mut Cursor<'_>) -> Result<Arg> {
    let mark = cursor.mark();
    let raw = cursor.raw();
    if let Some(x) = float_of(raw) {
        return Ok(Arg::Scalar(Scalar::Float(x)));
    }
    if raw.is_empty() {
        return Err(cursor.expected("an argument"));
    }
    size_of(raw).map(Arg::Int).map_err(|e| cursor.error_at(mark, TextProblem::Malformed(e)))
}
