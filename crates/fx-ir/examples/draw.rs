//! `cargo run -p ferroflux-fx-ir --example draw -- graph.fx > graph.svg`: the drawing of a graph; `--dot` for graphviz's language,
//! `--modules 2` for frames around modules, two levels deep.

use std::io::Write as _;

use fx_ir::draw::{Style, graph_diagram_by_module};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut dot, mut depth, mut path) = (false, 0, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--dot" => dot = true,
            "--modules" => depth = args.next().ok_or("`--modules` takes a number")?.parse()?,
            _ => path = Some(arg),
        }
    }
    let graph: fx_ir::Graph = std::fs::read_to_string(path.ok_or("give a .fx file")?)?.parse()?;
    let start = std::time::Instant::now();
    let style = |target: &str| Style::of_name(target.split('.').nth(1).unwrap_or(target));
    let diagram = graph_diagram_by_module(&graph, &style, depth);
    let text = if dot { diagram.to_dot() } else { diagram.to_svg() };
    eprintln!("{} nodes in {:.1} ms", diagram.nodes.len(), start.elapsed().as_secs_f64() * 1e3);
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
