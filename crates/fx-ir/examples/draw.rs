//! `cargo run -p fx-ir --example draw -- graph.fx > graph.svg`: the drawing of a graph (`--dot` for graphviz's language).

use std::io::Write as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let first = args.next().ok_or("give a .fx file")?;
    let (dot, path) =
        if first == "--dot" { (true, args.next().ok_or("give a .fx file")?) } else { (false, first) };
    let graph: fx_ir::Graph = std::fs::read_to_string(path)?.parse()?;
    let start = std::time::Instant::now();
    let diagram = fx_ir::draw::graph_diagram(&graph);
    let text = if dot { diagram.to_dot() } else { diagram.to_svg() };
    eprintln!("{} nodes in {:.1} ms", diagram.nodes.len(), start.elapsed().as_secs_f64() * 1e3);
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
