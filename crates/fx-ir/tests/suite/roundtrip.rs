//! Properties of the text form over random graphs and random damage: what is printed reads back equal, and no text
//! whatever makes the parser panic.

#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{self, Rng};
use fx_ir::text;

#[test]
fn random_graphs_read_back() {
    for seed in 0..2000 {
        let graph = common::graph(&mut Rng::new(seed), 0);
        let printed = text::print(&graph);
        let read = text::parse(&printed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{printed}"));
        assert_eq!(read, text::canonical(&graph), "seed {seed}:\n{printed}");
        assert_eq!(text::print(&read), printed, "seed {seed}");
        assert_eq!(text::canonical(&read), read, "seed {seed}: canonical is not idempotent");
    }
}

#[test]
fn metas_read_back() {
    let mut rng = Rng::new(7);
    for _ in 0..2000 {
        let meta = common::meta(&mut rng);
        assert_eq!(text::parse_meta(&meta.to_string()).unwrap_or_else(|e| panic!("{meta}: {e}")), meta);
    }
}

#[test]
fn damaged_text_is_an_error_or_a_graph() {
    let mut rng = Rng::new(11);
    for seed in 0..300 {
        let printed = text::print(&common::graph(&mut Rng::new(seed), 0));
        for _ in 0..20 {
            let mut bytes = printed.clone().into_bytes();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len());
                match rng.below(3) {
                    0 => bytes[at] = rng.pick(b"%@&()[]{}\"\\,:=#-0s.+*/ \n"),
                    1 => bytes.truncate(at.max(1)),
                    _ => drop(bytes.remove(at)),
                }
                if bytes.is_empty() {
                    bytes.push(b'f');
                }
            }
            if let Ok(graph) = text::parse(&String::from_utf8_lossy(&bytes)) {
                let again = text::parse(&text::print(&graph)).unwrap();
                assert_eq!(again, text::canonical(&graph));
            }
        }
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = format!("fx 1.0\ngraph \"g\" {{ t({}", "[".repeat(100_000));
    assert!(text::parse(&deep).unwrap_err().to_string().contains("nested"));
    let deep = format!("fx 1.0\ngraph \"g\" {}", "{ subgraph g0 \"\" ".repeat(100_000));
    assert!(text::parse(&deep).unwrap_err().to_string().contains("nested"));
    let wide = format!("fx 1.0\ngraph \"g\" {{ t({}1) }}", "(s0 + s1 + s2)*".repeat(100));
    assert!(text::parse(&wide).unwrap_err().to_string().contains("size expression has more than"));
}
