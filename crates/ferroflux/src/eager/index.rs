//! Indexing as in PyTorch: `x.at(s![0, .., 1..3])`, and writing: `x.set_at(s![.., 0], &y)`. Numbers select, ranges slice,
//! tensors of positions or truth values gather. Parts by numbers and ranges are views.

use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

use dynamo::Size;
use ir_core::DType;

use super::{Input, Tensor};
use crate::Error;

/// What an index does to one dimension.
#[derive(Clone)]
pub enum Index {
    /// One position, counted from the end where negative; the dimension goes.
    At(Size),
    /// Positions from a start to an end, every `step`-th.
    Slice(Option<Size>, Option<Size>, i64),
    /// As many whole dimensions as are left: `...`.
    Rest,
    /// A new dimension of size 1: `None`.
    New,
    /// Positions from a tensor of integers, or a mask.
    Tensor(Tensor),
}

/// Indices for [`Tensor::at`] and [`Tensor::set_at`]: `s![0, .., 1..3, Index::Rest, &positions]`.
#[macro_export]
macro_rules! s {
    ($($index:expr),* $(,)?) => {
        &[$($crate::eager::Index::from($index)),*]
    };
}

macro_rules! from {
    ($($ty:ty => |$x:ident| $make:expr;)*) => {$(
        impl From<$ty> for Index {
            fn from($x: $ty) -> Index {
                $make
            }
        }
    )*};
}

from! {
    i64 => |n| Index::At(n.into());
    i32 => |n| Index::At(n.into());
    usize => |n| Index::At(n.into());
    Size => |n| Index::At(n);
    &Size => |n| Index::At(n.clone());
    RangeFull => |_all| Index::Slice(None, None, 1);
    Range<i64> => |r| Index::Slice(Some(r.start.into()), Some(r.end.into()), 1);
    Range<i32> => |r| Index::Slice(Some(r.start.into()), Some(r.end.into()), 1);
    Range<Size> => |r| Index::Slice(Some(r.start), Some(r.end), 1);
    RangeFrom<i64> => |r| Index::Slice(Some(r.start.into()), None, 1);
    RangeFrom<i32> => |r| Index::Slice(Some(r.start.into()), None, 1);
    RangeFrom<Size> => |r| Index::Slice(Some(r.start), None, 1);
    RangeTo<i64> => |r| Index::Slice(None, Some(r.end.into()), 1);
    RangeTo<i32> => |r| Index::Slice(None, Some(r.end.into()), 1);
    RangeTo<Size> => |r| Index::Slice(None, Some(r.end), 1);
    &Tensor => |t| Index::Tensor(t.clone());
    Tensor => |t| Index::Tensor(t);
}

fn optional(size: &Option<Size>) -> Input {
    size.as_ref().map_or(Input::NONE, Input::from)
}

/// The dimensions that a tensor of positions or a mask takes.
fn takes(t: &Tensor) -> usize {
    if t.dtype() == DType::Bool { t.rank() } else { 1 }
}

impl Tensor {
    /// The part that indices select; see [`s!`](crate::s). Dimensions without an index stay.
    #[track_caller]
    pub fn at(&self, indices: &[Index]) -> Tensor {
        let (part, tensors) = self.views(indices);
        match tensors {
            Some(tensors) => part.call("aten.index.Tensor", [tensors.into()]),
            None => part,
        }
    }

    /// Writes the part that indices select; a number or a tensor that broadcasts to it.
    ///
    /// # Errors
    /// Sizes that do not fit, and as for [`Tensor::set_`].
    #[track_caller]
    pub fn set_at(&self, indices: &[Index], new: &Tensor) -> Result<(), Error> {
        let (part, tensors) = self.views(indices);
        match tensors {
            Some(tensors) => part.set_(&part.call("aten.index_put.default", [tensors.into(), new.into()]))?,
            None => part.copy_(new)?,
        };
        Ok(())
    }

    /// The view that numbers and ranges select, and the tensors for what is left of the indices.
    #[track_caller]
    fn views(&self, indices: &[Index]) -> (Tensor, Option<Vec<Option<Tensor>>>) {
        let used: usize = indices
            .iter()
            .map(|index| match index {
                Index::At(_) | Index::Slice(..) => 1,
                Index::Rest | Index::New => 0,
                Index::Tensor(t) => takes(t),
            })
            .sum();
        let rest = self.rank().saturating_sub(used);
        let (mut part, mut dim) = (self.clone(), 0i64);
        let mut tensors: Vec<Option<Tensor>> = Vec::new();
        // A mask takes several dimensions, but is one item of the list.
        let mut beyond = 0;
        for index in indices {
            match index {
                Index::At(n) => part = part.select(dim, n),
                Index::New => {
                    part = part.unsqueeze(dim);
                    dim += 1;
                }
                Index::Slice(None, None, 1) => dim += 1,
                Index::Slice(start, end, step) => {
                    let rest = [dim.into(), optional(start), optional(end), (*step).into()];
                    part = part.call("aten.slice.Tensor", rest);
                    dim += 1;
                }
                Index::Rest => dim += rest as i64,
                Index::Tensor(t) => {
                    tensors.resize(dim as usize - beyond, None);
                    tensors.push(Some(t.clone()));
                    dim += takes(t) as i64;
                    beyond += takes(t).saturating_sub(1);
                }
            }
        }
        if tensors.is_empty() { (part, None) } else { (part, Some(tensors)) }
    }
}
