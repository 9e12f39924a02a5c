//! Graphs as text, whose types a reader may write down as they like.

use ferroflux::func::{Func, Types};
use ferroflux::{DType, Options, Tensor};

use super::{BACKENDS, counted, numbers};

fn call(text: &str, backend: &str, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let graph =
        format!("fx 1.0\n\ngraph \"g\" {{\n{text}\n}}\n").parse().map_err(|e| format!("text: {e}"))?;
    let types = inputs
        .iter()
        .fold(Types::new(), |types, t| types.tensor(t.dtype(), t.sizes().iter().map(|&n| n as i64)));
    let done = Func::from_graph(graph).compile(&types, &Options::new().backend(backend));
    done.and_then(|f| f.call(inputs)).map_err(|e| e.to_string())
}

#[test]
fn types_in_a_text_are_held_against_the_rules() {
    let inputs = [counted(&[4, 3])];
    for (text, part) in [
        ("%y: f32[400, 3] = prims.add(%x, %x)", "the program expects"),
        ("%y: f64[4, 3] = prims.neg(%x)", "the program expects"),
        ("%y: f32[12] = prims.neg(%x)", "the program expects"),
        ("%y: f32[9, 3] = prims.slice(%x, 0, 0, 9, 1)", "do not lie within a dimension of size 4"),
        ("%y: f32[2, 3] = prims.slice(%x, 0, -2, 2, 1)", "do not lie within a dimension of size 4"),
        ("%y: f32[2, 3] = prims.slice(%x, 0, 1, 2, 1000)", "do not lie within a dimension of size 4"),
        ("%y: f32[4, 3] = prims.slice(%x, 0, 2, 4, -1)", "do not lie within a dimension of size 4"),
        ("%y: f32[7, 3] = prims.expand(%x, [7, 3])", "do not expand"),
        ("%y: f32[3] = prims.expand(%x, [3])", "do not expand"),
        ("%y: f32[5, 5] = prims.reshape(%x, [5, 5])", "do not fill"),
        ("%y: f32[100] = prims.strided(%x, [100], [1], 0)", "reshape first"),
        (
            "%z: f32[12] = prims.reshape(%x, [12])\n%y: f32[4] = prims.strided(%z, [4], [5], 0)",
            "do not lie within 12 elements",
        ),
        (
            "%z: f32[12] = prims.reshape(%x, [12])\n%y: f32[4] = prims.strided(%z, [4], [-1], 2)",
            "do not lie within 12 elements",
        ),
        ("%y: f32[4, 4] = prims.matmul(%x, %x)", "do not multiply"),
        (
            "%i: i64[9, 9] = prims.full([9, 9], 0, i64)\n%y: f32[9, 9] = prims.gather(%x, 0, %i)",
            "is larger than",
        ),
        ("%y: f32[-1] = prims.full([-1], 0.0, f32)", "negative"),
        ("%y: f32[4, 3] = prims.neg(%z)", "text"),
    ] {
        let text = format!("%x: f32[4, 3] = input \"x\"\n{text}\nreturn %y");
        for &backend in BACKENDS {
            let error = call(&text, backend, &inputs).expect_err(&text);
            assert!(error.contains(part), "{backend}: {text}\nno `{part}` in {error}");
        }
    }
    let text = "%x: f32[4, 3] = input \"x\"\n%y: f32[2, 3] = prims.slice(%x, 0, 3, 2, -2)\nreturn %y";
    for &backend in BACKENDS {
        let y = call(text, backend, &inputs).unwrap();
        assert_eq!(numbers(&y[0]), [9., 10., 11., 3., 4., 5.], "{backend}");
    }
}

#[test]
fn graphs_that_are_not_well_formed_are_refused() {
    let text =
        "fx 1.0\n\ngraph \"g\" {\n%x: f32[4] = input \"x\"\n%y: f32[4] = prims.neg(%x)\nreturn %y\n}\n";
    let good: fx_ir::Graph = text.parse().unwrap();
    let broken: [fn(&mut fx_ir::Graph); 4] = [
        |g| g.order.push(fx_ir::NodeId(77)),
        |g| g.order.reverse(),
        |g| g.outputs[0].arg = fx_ir::Arg::Value(fx_ir::ValueId(77)),
        |g| g.order.truncate(1),
    ];
    let types = Types::new().tensor(DType::F32, [4]);
    let compile = |graph| Func::from_graph(graph).compile(&types, &Options::new().backend("eager"));
    assert!(compile(good.clone()).is_ok());
    for (n, break_it) in broken.iter().enumerate() {
        let mut graph = good.clone();
        break_it(&mut graph);
        let error = compile(graph).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("not well formed"), "{n}: {error}");
    }
}
