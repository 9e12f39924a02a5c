//! Writes a laid-out scene as an SVG document. Holds the palette; places nothing.

use std::fmt::Write as _;

use super::flat::Point;
use super::scene::{Rect, Scene, Wire};
use super::{Diagram, DrawNode, Style};

/// Fill, border and title colour of the operator hues: light tints of one lightness, so that text stays legible.
pub(super) const FAMILIES: [[&str; 3]; 12] = [
    ["#e3eefc", "#7fa8df", "#1d4f91"],
    ["#e2f4ea", "#76bd94", "#1c6b41"],
    ["#fdebdc", "#e2a06b", "#96501a"],
    ["#f0e8fb", "#ab8cdb", "#5b3596"],
    ["#fde6ec", "#e08fa6", "#98304f"],
    ["#dff4f5", "#6dbcc1", "#146469"],
    ["#f9f1d4", "#cfb457", "#74600e"],
    ["#e9edf5", "#93a1bd", "#3c4a68"],
    ["#e8f3d8", "#a0c166", "#4d6b17"],
    ["#fbe5f6", "#d78ac6", "#8a2e76"],
    ["#e4e7fd", "#8f98e3", "#363f9c"],
    ["#f3eae4", "#bd9c86", "#6d4a33"],
];
const INPUT: [&str; 3] = ["#2f3a4f", "#2f3a4f", "#ffffff"];
const WEIGHT: [&str; 3] = ["#f4f5f8", "#c9ced9", "#5c667a"];
const OUTPUT: [&str; 3] = ["#1f7a5a", "#1f7a5a", "#ffffff"];
const PLAIN: [&str; 3] = ["#ffffff", "#b9c0ce", "#2b3345"];

/// Space around the drawing and height of the title above it.
const MARGIN: f64 = 12.0;
const TITLE: f64 = 34.0;

const CSS: &str = "\
text{font-family:Inter,'Segoe UI',Helvetica,'DejaVu Sans',Arial,sans-serif;text-anchor:middle}\
.t{font-size:12.5px;font-weight:600}.b{font-size:10px}.m{font-size:10px;font-family:'JetBrains Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace}\
.s{font-size:8.5px;font-family:'JetBrains Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace}\
.w{fill:none;stroke:#98a2b5;stroke-width:1.3;stroke-linecap:round}.d{stroke-dasharray:4 3}.a{marker-end:url(#arrow)}\
.c{fill:#7c8cab;fill-opacity:.07;stroke:#8c99b3;stroke-width:1}.l{font-size:11px;font-weight:600;fill:#5a6781;text-anchor:start}\
.w:hover{stroke:#d5532f;stroke-width:2.4}g:hover>rect{stroke-width:2.4}";

pub(super) const fn colours(style: Style) -> [&'static str; 3] {
    match style {
        Style::Input => INPUT,
        Style::Weight => WEIGHT,
        Style::Output => OUTPUT,
        Style::Plain => PLAIN,
        Style::Family(n) => FAMILIES[n as usize % FAMILIES.len()],
    }
}

/// The whole document.
pub(super) fn document(diagram: &Diagram, scene: &Scene) -> String {
    let title_width = diagram.title.chars().count() as f64 * 10.5;
    let width = scene.width.max(title_width) + 2.0 * MARGIN;
    let height = scene.height + MARGIN + TITLE;
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\">\n\
         <title>{title}</title>\n<style>{CSS}</style>\n\
         <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7.2\" refY=\"4\" markerWidth=\"6.5\" markerHeight=\"6.5\" orient=\"auto\">\
         <path d=\"M0.5 0.8 L7.5 4 L0.5 7.2 Z\" fill=\"#8590a6\"/></marker></defs>\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#fcfcfe\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" style=\"font-size:16px;font-weight:700;fill:#2b3345;text-anchor:start\">{title}</text>\n",
        w = width.ceil(),
        h = height.ceil(),
        title = escape(&diagram.title),
    );
    let left = MARGIN + (width - 2.0 * MARGIN - scene.width) / 2.0;
    let _ = writeln!(out, "<g transform=\"translate({left:.1} {TITLE})\">");
    for (cluster, rect) in diagram.clusters.iter().zip(&scene.clusters) {
        frame(&cluster.label, rect, &mut out);
    }
    for wire in &scene.wires {
        arrow(diagram, wire, &mut out);
    }
    for (node, rect) in diagram.nodes.iter().zip(&scene.nodes) {
        self::node(node, rect, &mut out);
    }
    out.push_str("</g>\n</svg>\n");
    out
}

fn frame(label: &str, r: &Rect, out: &mut String) {
    let _ = writeln!(
        out,
        "<rect class=\"c\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"12\"/>\
         <text class=\"l\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        r.x,
        r.y,
        r.width,
        r.height,
        r.x + 12.0,
        r.y + 18.0,
        escape(label)
    );
}

fn arrow(diagram: &Diagram, wire: &Wire, out: &mut String) {
    let source = &diagram.nodes[wire.source];
    let classes = format!("w{}{}", if wire.dashed { " d" } else { "" }, if wire.arrow { " a" } else { "" });
    let width =
        if source.small { " stroke-width=\"0.8\" style=\"stroke-width:0.8;stroke:#c3cad6\"" } else { "" };
    let tip = source.lines.first().map_or("", String::as_str);
    let _ = writeln!(
        out,
        "<path class=\"{classes}\"{width} d=\"{}\"><title>{}</title></path>",
        curve(&wire.points),
        escape(tip)
    );
    if let (true, Some((x, y))) = (wire.named, wire.points.first()) {
        // A value's name says more than its operator's.
        let name = source.lines.iter().find(|line| line.starts_with('%')).map_or(tip, String::as_str);
        let _ = writeln!(
            out,
            "<text class=\"s\" x=\"{x:.1}\" y=\"{:.1}\" fill=\"#7c8cab\">{}</text>",
            y - 2.0,
            escape(name)
        );
    }
}

/// Straight where the arrow runs down, an S-bend with vertical ends where it changes column.
fn curve(points: &[Point]) -> String {
    let mut d = String::new();
    let mut last: Option<Point> = None;
    for &(x, y) in points {
        let _ = match last {
            None => write!(d, "M{x:.1} {y:.1}"),
            Some((px, _)) if (px - x).abs() < 0.5 => write!(d, " L{x:.1} {y:.1}"),
            Some((px, py)) => {
                let middle = (py + y) / 2.0;
                write!(d, " C{px:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}")
            }
        };
        last = Some((x, y));
    }
    d
}

fn node(node: &DrawNode, r: &Rect, out: &mut String) {
    let [fill, border, title] = colours(node.style);
    let filled = matches!(node.style, Style::Input | Style::Output);
    let radius = if node.small { r.height / 2.0 } else { 8.0 };
    let _ = write!(
        out,
        "<g><title>{}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"{:.1}\" fill=\"{fill}\" stroke=\"{border}\"/>",
        escape(&node.tooltip),
        r.x,
        r.y,
        r.width,
        r.height,
        radius.min(10.0)
    );
    let x = r.x + r.width / 2.0;
    let (first, step) = if node.small { (11.0, 11.0) } else { (19.0, 15.0) };
    for (n, line) in node.lines.iter().enumerate() {
        let (class, colour) = match (node.small, n, filled) {
            (true, _, false) => ("s", title),
            (true, ..) => ("s", "#ffffff"),
            (false, 0, _) => ("t", title),
            (false, _, true) => ("m", "#dfe5ef"),
            (false, 1, false) => ("m", "#6b7588"),
            (false, ..) => ("m", "#3d465a"),
        };
        let y = r.y + first + step * n as f64;
        let _ = write!(
            out,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>",
            escape(line)
        );
    }
    out.push_str("</g>\n");
}

/// Text for XML; control characters, which XML has no way to write, become a sign.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
