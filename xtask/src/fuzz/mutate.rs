//! Mutates an archive so that it still looks like one: numbers in metas, arguments and ranges, dtypes, names of values,
//! operators, guards, the order of nodes, and the bytes of constants. It does not flip bits: random bytes of the zip file
//! and the JSON are tested by `fuzz/fuzz_targets/pt2_archive.rs`.

use serde_json::Value;

use super::archive::Parts;
use super::rng::Rng;

/// Numbers at which sizes, strides and indices tend to break.
const NUMBERS: [i64; 20] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    -5,
    7,
    8,
    16,
    63,
    100,
    1000,
    1 << 20,
    1 << 31,
    -(1 << 31),
    1 << 40,
    1_000_000_000,
    i64::MAX,
    i64::MIN,
];

/// Applies one to four changes; what they were, for the report.
pub(crate) fn mutate(parts: &mut Parts, rng: &mut Rng) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let change = match rng.below(16) {
            0 | 1 => constant(parts, rng),
            2 => node_order(&mut parts.program, rng),
            3 => target(&mut parts.program, rng),
            4 => guard(&mut parts.program, rng),
            _ => leaf(&mut parts.program, rng),
        };
        done.extend(change);
    }
    done
}

/// Fields that a reader skips are not mutated.
const SKIPPED: [&str; 10] = [
    "metadata",
    "module_call_graph",
    "torch_version",
    "verifiers",
    "kind",
    "is_hop_single_tensor_return",
    "requires_grad",
    "device",
    "opset_version",
    "output_specs",
];

/// Where a leaf of the JSON stands: keys and numbers from the root.
type Path = Vec<String>;

/// Paths of the leaves that a change may be made to.
fn leaves(value: &Value, path: &mut Path, into: &mut Vec<Path>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if SKIPPED.contains(&key.as_str()) {
                    continue;
                }
                path.push(key.clone());
                leaves(value, path, into);
                path.pop();
            }
        }
        Value::Array(items) => {
            for (n, value) in items.iter().enumerate() {
                path.push(n.to_string());
                leaves(value, path, into);
                path.pop();
            }
        }
        _ => into.push(path.clone()),
    }
}

fn pointer(path: &[String]) -> String {
    path.iter().map(|p| format!("/{}", p.replace('~', "~0").replace('/', "~1"))).collect()
}

/// Changes one number, truth value or name.
fn leaf(program: &mut Value, rng: &mut Rng) -> Option<String> {
    let mut all = Vec::new();
    leaves(program, &mut Vec::new(), &mut all);
    // Metas and arguments are nine of ten leaves that matter.
    let wanted = ["tensor_values", "nodes", "range_constraints", "sym_int_values", "input_specs"];
    let section = *rng.pick(&wanted)?;
    let chosen: Vec<&Path> = all.iter().filter(|p| p.iter().any(|key| key == section)).collect();
    let path = (*rng.pick(if chosen.is_empty() { return None } else { &chosen })?).clone();
    let names = value_names(program);
    let place = program.pointer_mut(&pointer(&path))?;
    let before = place.to_string();
    *place = match place {
        Value::Number(n) => number(n.as_i64(), n.as_f64(), path.last().map(String::as_str), rng),
        Value::Bool(b) => Value::Bool(!*b),
        Value::String(old) => {
            let others: Vec<&String> = names.iter().filter(|name| *name != old).collect();
            Value::String((*rng.pick(&others)?).clone())
        }
        _ => Value::from(NUMBERS[rng.below(NUMBERS.len())]),
    };
    Some(format!("{}: {before} to {place}", path.join(".")))
}

fn number(whole: Option<i64>, float: Option<f64>, key: Option<&str>, rng: &mut Rng) -> Value {
    if key == Some("dtype") {
        return Value::from(rng.below(20));
    }
    let Some(old) = whole else {
        let floats = [0.0, -1.0, 1e-30, 1e30, f64::MAX, -0.5, float.unwrap_or(1.0) * 2.0];
        return Value::from(floats[rng.below(floats.len())]);
    };
    let new = match rng.below(4) {
        0 => old.saturating_add(1),
        1 => old.saturating_sub(1),
        2 => old.saturating_mul(2),
        _ => NUMBERS[rng.below(NUMBERS.len())],
    };
    Value::from(new)
}

/// Names of the graph's values.
fn value_names(program: &Value) -> Vec<String> {
    let values = program.pointer("/graph_module/graph/tensor_values").and_then(Value::as_object);
    values.map(|map| map.keys().cloned().collect()).unwrap_or_default()
}

fn nodes(program: &mut Value) -> Option<&mut Vec<Value>> {
    program.pointer_mut("/graph_module/graph/nodes")?.as_array_mut()
}

/// Leaves out, repeats or moves a node.
fn node_order(program: &mut Value, rng: &mut Rng) -> Option<String> {
    let nodes = nodes(program)?;
    let (n, to) = (rng.below(nodes.len()), rng.below(nodes.len()));
    let node = nodes.get(n)?.clone();
    match rng.below(3) {
        0 => {
            nodes.remove(n);
        }
        1 => nodes.insert(to, node),
        _ => nodes.swap(n, to),
    }
    Some(format!("node {n} left out, repeated at or swapped with {to}"))
}

/// Operators of one or two tensors that accept each other's arguments.
const TARGETS: [&str; 14] = [
    "add.Tensor",
    "mul.Tensor",
    "matmul.default",
    "bmm.default",
    "index_select.default",
    "gather.default",
    "scatter_add.default",
    "expand.default",
    "view.default",
    "as_strided.default",
    "select.int",
    "slice.Tensor",
    "embedding.default",
    "cat.default",
];

/// Gives a node another operator.
fn target(program: &mut Value, rng: &mut Rng) -> Option<String> {
    let nodes = nodes(program)?;
    let n = rng.below(nodes.len());
    let new = format!("torch.ops.aten.{}", rng.pick(&TARGETS)?);
    *nodes.get_mut(n)?.get_mut("target")? = Value::String(new.clone());
    Some(format!("node {n} calls {new}"))
}

/// Drops a guard or writes another one.
fn guard(program: &mut Value, rng: &mut Rng) -> Option<String> {
    let guards = program.get_mut("guards_code")?.as_array_mut()?;
    if guards.is_empty() || rng.one_in(3) {
        guards.push(Value::String("L['args'][0][0].size()[0] == L['args'][0][1].size()[0]".into()));
        return Some("one more guard".into());
    }
    let n = rng.below(guards.len());
    guards.remove(n);
    Some(format!("guard {n} left out"))
}

/// Changes bytes of a weight or constant, or cuts it short.
fn constant(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let is_data = |name: &str| name.contains("/weights/weight_") || name.contains("/constants/tensor_");
    let data: Vec<usize> = (0..parts.entries.len()).filter(|n| is_data(&parts.entries[*n].0)).collect();
    let (name, bytes) = &mut parts.entries[*rng.pick(&data)?];
    if rng.one_in(8) {
        bytes.truncate(rng.below(bytes.len()));
        return Some(format!("{name} cut to {} bytes", bytes.len()));
    }
    let at = rng.below(bytes.len());
    *bytes.get_mut(at)? ^= 1 << rng.below(8);
    Some(format!("{name}: a bit of byte {at}"))
}
