//! What a capture takes and gives: arguments, the captured function, breaks. Not here: the capture itself.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

use fx_ir::Graph;
use tensor::Tensor;

use crate::node::Value;
use crate::{CaptureError, Cell, Condition, DimRange};

/// What a program does while someone asks ([`observed`](super::observed)).
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Every place at which it needs values.
    pub breaks: Vec<Break>,
    /// The operators that it calls before the first of them, between two, and after the last, with the number of calls of each.
    pub calls: Vec<BTreeMap<&'static str, usize>>,
}

/// Gives a caller's variable a new value.
pub type Assign = Arc<dyn Fn(Value) + Send + Sync>;

/// An argument of a captured function.
pub struct Argument {
    /// The variable that the function is given. It is another one than the caller's, so that a tensor that is both an argument
    /// and captured is two inputs; when the capture is over, it stands for the caller's.
    pub cell: Arc<Cell>,
    /// The caller's variable.
    pub target: Arc<Cell>,
    /// The variable whose memory it shares: itself, or the one that it is a view of.
    pub root: Arc<Cell>,
    /// Where its gradient is accumulated.
    pub slot: Option<Arc<Cell>>,
    /// How the caller's variable gets a new value where that is more than replacing it: a view is written through.
    pub assign: Option<Assign>,
    /// The range of each dimension that is to be symbolic.
    pub dims: Vec<Option<DimRange>>,
    /// Whether it becomes an input of the graph only if the function reads it (its gradient).
    pub on_demand: bool,
}

/// A variable from outside of a captured function.
#[derive(Clone)]
pub enum Place {
    /// The argument of this number.
    Argument(usize),
    /// A variable that the function has captured.
    Cell(Arc<Cell>),
}

/// What an input of a captured graph is.
#[derive(Clone)]
pub enum Source {
    /// The value of a variable.
    Variable(Place),
    /// A tensor that the function makes from data.
    Constant(Tensor),
}

/// A result of a captured function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// The result of this number of the graph.
    Result(usize),
    /// The tensor of this input itself.
    Source(usize),
}

/// A captured function.
pub struct Capture {
    /// Prims on symbolic sizes; its user inputs are `sources`, its outputs the results and new values of variables.
    pub graph: Graph,
    /// What the inputs are.
    pub sources: Vec<Source>,
    /// For each input whether a gradient flows to it.
    pub tracked: Vec<bool>,
    /// The results of the function.
    pub returned: Vec<Returned>,
    /// Variables from outside that the function writes, and the output with the new value; `None` empties the variable.
    pub writes: Vec<(Place, Option<usize>)>,
    /// Variables that must be empty.
    pub absent: Vec<Place>,
    /// Settings that the function has read.
    pub conditions: Vec<Box<dyn Condition>>,
}

/// Where a capture ended early.
#[derive(Clone, Debug)]
pub struct Break {
    /// The line of the program.
    pub at: &'static Location<'static>,
    /// Why.
    pub reason: String,
}

/// How a capture ended.
pub enum Outcome {
    /// The whole function is one graph.
    Whole(Box<Capture>),
    /// The program read a value; the rest of it ran without capture.
    Broken(Break),
    /// It cannot be captured.
    Failed(CaptureError),
}
