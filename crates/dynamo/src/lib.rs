//! Capture of Rust programs: what TorchDynamo is to Python. Operator calls on [`Value`]s are recorded instead of computed;
//! what is recorded becomes a graph, either piece by piece when a value is wanted ([`Piece`]), or as one graph of a whole
//! function ([`frame`]) with everything that its validity depends on: the types of its arguments, the tensors and settings
//! that it reads from outside, and conditions on sizes.
//!
//! - [`record()`]: the one place where a call is recorded.
//! - [`Value`], [`Cell`]: a recorded tensor, and a variable that holds one.
//! - [`Piece`]: the recorded calls that a value needs, as a graph of prims and as a key by which compiled code is found again.
//! - [`frame`]: the capture of a function: arguments, tensors from outside, writes, graph breaks.
//! - [`Size`]: a size that may be symbolic; decisions about it become guards.
//! - [`Setting`]: a value that a captured function may depend on (the mode of a module), with guards.
//! - [`gradients`]: reverse mode over what is recorded.
//! - [`Seen`], [`Lru`]: when a size becomes dynamic, and what a cache forgets first.
//!
//! Not here: compiling and running (the facade does both, through any backend), and the user's `Tensor`.

mod body;
mod cell;
mod error;
pub mod frame;
mod history;
mod infer;
mod key;
mod lru;
mod mode;
mod node;
mod piece;
mod places;
mod random;
mod recomputed;
mod record;
mod seen;
mod setting;
mod size;
mod walk;

pub use cell::Cell;
pub use error::CaptureError;
pub use history::{Gradient, gradients};
pub use lru::Lru;
pub use mode::{GradMode, grad_enabled, no_grad};
pub use node::{Meta, Operand, Value};
pub use piece::{Piece, PieceKey};
pub use random::manual_seed;
pub use recomputed::Recomputed;
pub use record::{Recorded, record};
pub use seen::{DimRange, Seen, SeenFloats};
pub use setting::{Condition, Setting};
pub use size::Size;
