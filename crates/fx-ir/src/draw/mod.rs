//! Drawings: boxes, arrows and nested frames, as DOT text or as SVG with an own layered layout. Pure Rust, no graphviz.
//!
//! A [`Diagram`] knows no IR; [`graph_diagram`] makes one of a graph, and later stages make theirs (fusion groups as
//! clusters). The SVG's stages: `scene` (clusters, innermost first) → `rank` (rows along the data flow) → `order`
//! (barycenter sweeps against crossings) → `place` (columns, least squares) → `svg`.

mod dot;
mod flat;
mod graph;
mod order;
mod place;
mod rank;
mod scene;
mod svg;

pub use graph::{graph_diagram, graph_diagram_by_module, graph_diagram_with};

/// Boxes, arrows and frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagram {
    /// Title of the drawing.
    pub title: String,
    /// Boxes.
    pub nodes: Vec<DrawNode>,
    /// Arrows; one whose end is out of range is left out.
    pub edges: Vec<DrawEdge>,
    /// Frames around boxes and other frames.
    pub clusters: Vec<DrawCluster>,
}

/// A box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawNode {
    /// Lines of the label: the first is the title.
    pub lines: Vec<String>,
    /// What shows when the pointer rests on the box.
    pub tooltip: String,
    /// Colours.
    pub style: Style,
    /// Drawn small, as a side remark: parameters, constants.
    pub small: bool,
    /// The innermost frame around it, an index of [`Diagram::clusters`].
    pub cluster: Option<usize>,
}

/// An arrow from one box to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrawEdge {
    /// Index of the box where it starts.
    pub from: usize,
    /// Index of the box where it ends.
    pub to: usize,
    /// Drawn dashed: not a flow of data.
    pub dashed: bool,
}

/// A frame with a label.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawCluster {
    /// Text at its upper left.
    pub label: String,
    /// The frame around it; it must have a smaller index, else the frame is drawn outermost.
    pub parent: Option<usize>,
}

/// Colours of a box.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Given by the caller.
    Input,
    /// Weights, buffers, constants.
    Weight,
    /// Results.
    Output,
    /// No colour.
    #[default]
    Plain,
    /// One of [`Style::FAMILIES`] hues, taken modulo their number.
    Family(u8),
}

impl Style {
    /// Number of distinct hues.
    pub const FAMILIES: u8 = svg::FAMILIES.len() as u8;
    /// A hue that depends on `name` alone, so that one operator has one colour in every drawing.
    pub fn of_name(name: &str) -> Style {
        // FNV-1a: stable over versions and platforms, which std's hasher is not.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Style::Family(((hash >> 32) % u64::from(Style::FAMILIES)) as u8)
    }
}

impl Diagram {
    /// The drawing in graphviz's language.
    pub fn to_dot(&self) -> String {
        dot::text(self)
    }
    /// The drawing as a stand-alone SVG document.
    pub fn to_svg(&self) -> String {
        svg::document(self, &scene::lay_out(self))
    }
    /// The frame around a box or frame, where it is one of the diagram's and is before `below`.
    fn frame(&self, cluster: Option<usize>, below: usize) -> Option<usize> {
        cluster.filter(|&c| c < self.clusters.len() && c < below)
    }
}
