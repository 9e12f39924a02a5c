//! A small language model with an odd vocabulary on meshes: its embedding and its last product are in parts under `tp:auto`, apart
//! or tied. What ranks compute is judged against one rank, and the layout by what it says of itself.

use ferroflux::mesh::{LaidOut, Link, Member, Mesh, Plan, layout};
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::TrainOptions;
use ferroflux::{Options, Program, Tensor};

use crate::mesh::{Filled, alone, assert_close, on_mesh, trains_alike};

const WORDS: usize = 1001;
const MESHES: [&str; 3] = ["tp=2", "tp=4", "dp=2,tp=2"];

/// `tp:auto` would leave tables of this size whole, as reading them takes less time than an exchange.
fn plan(mesh: &Mesh, tied: bool) -> Plan {
    let mut plan = Plan::usual(mesh);
    for table in if tied { &["embed.weight"][..] } else { &["embed.weight", "head.weight"] } {
        plan.place(table, "tp=S(0)").unwrap();
    }
    plan
}

fn as_rank(member: &Member, tied: bool) -> Options {
    crate::mesh::as_rank(member).plan(plan(member.mesh(), tied))
}

/// What the model returns.
#[derive(Clone, Copy, PartialEq)]
enum Returns {
    /// The mean cross entropy of all positions.
    Loss,
    /// The scores of the last position.
    Scores,
    /// The most likely word at each position.
    Words,
}

/// Two blocks of attention with four heads and of a gated MLP, 64 wide, as Llama has them but for positions; two sequences of
/// eight words.
fn model(tied: bool, returns: Returns) -> Program {
    let head = if tied { "embed" } else { "head" };
    let (mut weights, mut calls) = (String::new(), String::new());
    let mut weight = |name: &str, sizes: &str| {
        weights.push_str(&format!(
            "  %{}: f32[{sizes}] = parameter \"{name}.weight\"\n",
            name.replace('.', "_")
        ));
    };
    weight("embed", &format!("{WORDS}, 64"));
    if !tied {
        weight("head", &format!("{WORDS}, 64"));
    }
    weight("norm", "64");
    let mut call = |line: String| calls.push_str(&format!("  {line}\n"));
    let (wide, heads) = ("f32[2, 8, 64]", "f32[2, 4, 8, 16]");
    call(format!("%x0: {wide} = aten.embedding.default(%embed, %words)"));
    for n in 0..2 {
        for (name, sizes) in [("q", "64, 64"), ("k", "64, 64"), ("v", "64, 64"), ("o", "64, 64")] {
            weight(&format!("w{n}.{name}"), sizes);
        }
        for (name, sizes) in [("gate", "128, 64"), ("up", "128, 64"), ("down", "64, 128")] {
            weight(&format!("w{n}.{name}"), sizes);
        }
        weight(&format!("w{n}.norm1"), "64");
        weight(&format!("w{n}.norm2"), "64");
        call(format!("%n{n}: {wide} = aten.rms_norm.default(%x{n}, [64], %w{n}_norm1, 1e-6)"));
        for p in ["q", "k", "v"] {
            call(format!("%{p}{n}: {wide} = aten.linear.default(%n{n}, %w{n}_{p})"));
            call(format!("%{p}h{n}: f32[2, 8, 4, 16] = aten.view.default(%{p}{n}, [2, 8, 4, 16])"));
            call(format!("%{p}t{n}: {heads}{{512, 16, 64, 1}} = aten.transpose.int(%{p}h{n}, 1, 2)"));
        }
        call(format!(
            "%a{n}: {heads} = aten.scaled_dot_product_attention.default(%qt{n}, %kt{n}, %vt{n}, none, 0.0, true)"
        ));
        call(format!("%at{n}: f32[2, 8, 4, 16]{{512, 16, 128, 1}} = aten.transpose.int(%a{n}, 1, 2)"));
        call(format!("%ar{n}: {wide} = aten.reshape.default(%at{n}, [2, 8, 64])"));
        call(format!("%o{n}: {wide} = aten.linear.default(%ar{n}, %w{n}_o)"));
        call(format!("%y{n}: {wide} = aten.add.Tensor(%x{n}, %o{n})"));
        call(format!("%m{n}: {wide} = aten.rms_norm.default(%y{n}, [64], %w{n}_norm2, 1e-6)"));
        call(format!("%g{n}: f32[2, 8, 128] = aten.linear.default(%m{n}, %w{n}_gate)"));
        call(format!("%s{n}: f32[2, 8, 128] = aten.silu.default(%g{n})"));
        call(format!("%u{n}: f32[2, 8, 128] = aten.linear.default(%m{n}, %w{n}_up)"));
        call(format!("%p{n}: f32[2, 8, 128] = aten.mul.Tensor(%s{n}, %u{n})"));
        call(format!("%d{n}: {wide} = aten.linear.default(%p{n}, %w{n}_down)"));
        call(format!("%x{}: {wide} = aten.add.Tensor(%y{n}, %d{n})", n + 1));
    }
    call(format!("%last: {wide} = aten.rms_norm.default(%x2, [64], %norm, 1e-6)"));
    let scores = format!("%scores: f32[2, 8, {WORDS}] = aten.linear.default(%last, %{head})");
    let mut targets = "";
    match returns {
        Returns::Loss => {
            targets = "  %targets: i64[16] = input \"targets\"\n";
            call(scores);
            call(format!("%flat: f32[16, {WORDS}] = aten.view.default(%scores, [16, {WORDS}])"));
            call("%result: f32[] = aten.cross_entropy_loss.default(%flat, %targets)".into());
        }
        Returns::Words => {
            call(scores);
            call("%result: i64[2, 8] = aten.argmax.default(%scores, -1)".into());
        }
        Returns::Scores => {
            call("%row: f32[2, 64]{512, 1}+448 = aten.select.int(%last, 1, 7)".into());
            call(format!("%result: f32[2, {WORDS}] = aten.linear.default(%row, %{head})"));
        }
    }
    let text = format!(
        "fx 1.0\n\ngraph \"model\" {{\n{weights}  %words: i64[2, 8] = input \"words\"\n{targets}\n{calls}  return %result\n}}\n"
    );
    let graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut program = Program::from_graph(graph, &std::collections::BTreeMap::new())
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    program.fill_weights(&Filled).unwrap();
    program
}

/// Words of all parts of the vocabulary, the first and the last one among them; one target is ignored.
fn inputs(returns: Returns) -> Vec<Tensor> {
    let words: Vec<i64> = (0..16).map(|i| if i == 5 { 1000 } else { i * 337 % 1001 }).collect();
    let targets: Vec<i64> = (0..16).map(|i| if i == 3 { -100 } else { (i * 571 + 1000) % 1001 }).collect();
    let mut given = vec![Tensor::from_vec(words, &[2, 8]).unwrap()];
    if returns == Returns::Loss {
        given.push(Tensor::from_vec(targets, &[16]).unwrap());
    }
    given
}

#[test]
fn scores_losses_and_words_are_those_of_one_rank() {
    for (tied, returns) in [
        (false, Returns::Loss),
        (true, Returns::Loss),
        (false, Returns::Scores),
        (true, Returns::Scores),
        (false, Returns::Words),
    ] {
        let (program, given) = (model(tied, returns), inputs(returns));
        let expected = program.compile(&alone()).unwrap().call(&given).unwrap();
        for mesh in MESHES {
            let all = on_mesh(mesh, &format!("vocabulary {tied} {}", returns as u8), |member| {
                program
                    .compile(&as_rank(member, tied))
                    .unwrap()
                    .call(&given)
                    .unwrap_or_else(|e| panic!("{mesh}: {e}"))
            });
            for (rank, got) in all.iter().enumerate() {
                assert_close(&format!("{mesh} rank {rank}"), &got[0], &expected[0], (1e-4, 1e-6));
            }
        }
    }
}

#[test]
fn training_steps_are_those_of_one_rank() {
    let train = TrainOptions::new(Optimizer::Sgd(Sgd { momentum: 0.9, ..Default::default() }));
    for tied in [false, true] {
        let (program, given) = (model(tied, Returns::Loss), inputs(Returns::Loss));
        trains_alike(
            &format!("vocabulary tied {tied}"),
            (&program, &given),
            &train,
            false,
            &MESHES,
            &|member| as_rank(member, tied),
        );
    }
}

/// An index that is in no rank's part is the error that it is on one rank.
#[test]
fn a_word_outside_of_the_vocabulary_is_an_error_on_every_rank() {
    let (program, mut given) = (model(true, Returns::Scores), inputs(Returns::Scores));
    let words: Vec<i64> = (0..16).map(|i| if i == 9 { 1001 } else { i }).collect();
    given[0] = Tensor::from_vec(words, &[2, 8]).unwrap();
    let wanted = program.compile(&alone()).unwrap().call(&given).unwrap_err().to_string();
    let all = on_mesh("tp=2", "outside", |member| {
        let model = program.compile(&as_rank(member, true)).unwrap();
        model.call(&given).map(drop).map_err(|e| e.to_string())
    });
    for found in all {
        let found = found.expect_err("the index is out of range");
        assert!(
            wanted.contains("1001") && found.contains("1001") && found.contains("embedding"),
            "{found}\n{wanted}"
        );
    }
}

fn laid_out(tied: bool, returns: Returns, mesh: &str) -> LaidOut {
    let mesh: Mesh = mesh.parse().unwrap();
    layout(&model(tied, returns), &mesh, Some(&plan(&mesh, tied))).unwrap()
}

/// Exchanges of values by name, with the bytes that a rank sends.
fn moved(found: &LaidOut) -> Vec<(&str, &str, u64)> {
    found.moved.iter().map(|m| (&*m.name, m.kind, m.bytes)).collect()
}

#[test]
fn no_rank_has_a_whole_table() {
    for (tied, returns) in
        [(false, Returns::Loss), (true, Returns::Loss), (false, Returns::Scores), (true, Returns::Scores)]
    {
        for (mesh, ranks) in [("tp=2", 2), ("tp=4", 4)] {
            let found = laid_out(tied, returns, mesh);
            let tables: Vec<_> =
                found.values.iter().filter(|v| v.sizes == "[1001, 64]" && v.role == "weight").collect();
            assert_eq!(tables.len(), if tied { 1 } else { 2 });
            for table in tables {
                let whole = (WORDS * 64 * 4) as u64;
                assert_eq!(
                    (&*table.placement, table.bytes),
                    ("tp: S(0)", whole.div_ceil(ranks)),
                    "{}",
                    table.name
                );
            }
            assert!(found.gathered.is_empty(), "{:?}", found.gathered);
        }
    }
}

/// What the vocabulary exchanges beside the sums of the pairs: words looked up, three numbers of each of 16 rows for the loss, and
/// the scores of two rows.
#[test]
fn what_a_vocabulary_in_parts_exchanges() {
    for tied in [false, true] {
        let sum = |name, bytes| (name, "all_reduce", bytes);
        let blocks = ["x0", "y0", "x1", "y1", "x2"];
        let mut wanted = blocks.map(|name| sum(name, 16 * 64 * 4)).to_vec();
        wanted.extend([sum("result", 16 * 4); 3]);
        assert_eq!(moved(&laid_out(tied, Returns::Loss, "tp=2")), wanted);
        let mut wanted = blocks.map(|name| sum(name, 16 * 64 * 4 * 3 / 2)).to_vec();
        wanted.push(("result", "all_gather", 2 * 1001 * 4 * 3 / 4));
        assert_eq!(moved(&laid_out(tied, Returns::Scores, "tp=4")), wanted);
    }
}

/// What is said of links reaches the plan of each rank.
#[test]
fn a_link_of_an_axis_that_the_mesh_lacks_is_an_error() {
    let program = model(true, Returns::Scores);
    let all = on_mesh("tp=2", "a link", |member| {
        let options = crate::mesh::as_rank(member).link("dp", Link::default());
        program.compile(&options).map(drop).map_err(|e| e.to_string())
    });
    for found in all {
        let found = found.expect_err("the mesh has no such axis");
        assert!(found.contains("no axis `dp`"), "{found}");
    }
}
