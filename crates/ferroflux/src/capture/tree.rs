//! What functions take and return: tensors, numbers and text in tuples, lists and options. Numbers, text and structure are
//! constants of a captured function, compared at every call.

use std::fmt;

use crate::Error;
use crate::eager::Tensor;

/// One item of the arguments of a function.
pub enum Leaf<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// Anything else: a number, text, the length of a list, whether an optional value is there.
    Constant(Constant),
}

/// A constant of a captured function.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// An integer.
    Int(i64),
    /// A float, compared by its bits.
    Float(u64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Text(Box<str>),
    /// The number of items of a list; 0 and 1 of an optional value.
    Length(usize),
}

impl fmt::Display for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Constant::Int(n) => write!(f, "{n}"),
            Constant::Float(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Constant::Bool(b) => write!(f, "{b}"),
            Constant::Text(text) => write!(f, "{text:?}"),
            Constant::Length(n) => write!(f, "{n} items"),
        }
    }
}

/// Arguments of a function.
pub trait Arguments: Sized {
    /// Visits tensors and constants in a fixed order.
    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Leaf<'a>));
    /// The same with other tensors.
    fn with_tensors(&self, next: &mut dyn FnMut(&Tensor) -> Tensor) -> Self;
}

/// The structure of results.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// A tensor.
    Tensor,
    /// Nothing.
    Nothing,
    /// Several items.
    List(Vec<Spec>),
}

/// Results of a function: tensors in tuples, lists and options, or a `Result` of them.
pub trait Results: Sized {
    /// What a call gives.
    type Value;
    /// The value, or the error that the function returned.
    ///
    /// # Errors
    /// The function returned one.
    fn into_value(self) -> Result<Self::Value, Error>;
    /// Appends the tensors of a value, and gives its structure.
    fn tensors(value: &Self::Value, out: &mut Vec<Tensor>) -> Spec;
    /// A value of this structure.
    fn build(spec: &Spec, next: &mut dyn FnMut() -> Tensor) -> Self::Value;
}

impl Arguments for Tensor {
    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Leaf<'a>)) {
        visit(Leaf::Tensor(self));
    }
    fn with_tensors(&self, next: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        next(self)
    }
}

impl Results for Tensor {
    type Value = Tensor;
    fn into_value(self) -> Result<Tensor, Error> {
        Ok(self)
    }
    fn tensors(value: &Tensor, out: &mut Vec<Tensor>) -> Spec {
        out.push(value.clone());
        Spec::Tensor
    }
    fn build(_: &Spec, next: &mut dyn FnMut() -> Tensor) -> Tensor {
        next()
    }
}

impl<T: Results> Results for Result<T, Error> {
    type Value = T::Value;
    fn into_value(self) -> Result<T::Value, Error> {
        self?.into_value()
    }
    fn tensors(value: &T::Value, out: &mut Vec<Tensor>) -> Spec {
        T::tensors(value, out)
    }
    fn build(spec: &Spec, next: &mut dyn FnMut() -> Tensor) -> T::Value {
        T::build(spec, next)
    }
}

macro_rules! constants {
    ($($ty:ty => |$x:ident| $make:expr;)*) => {$(
        impl Arguments for $ty {
            fn visit<'a>(&'a self, visit: &mut dyn FnMut(Leaf<'a>)) {
                let $x = self;
                visit(Leaf::Constant($make));
            }
            fn with_tensors(&self, _: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
                self.clone()
            }
        }
    )*};
}

constants! {
    i64 => |n| Constant::Int(*n);
    i32 => |n| Constant::Int((*n).into());
    usize => |n| Constant::Int(*n as i64);
    f64 => |x| Constant::Float(x.to_bits());
    f32 => |x| Constant::Float(f64::from(*x).to_bits());
    bool => |b| Constant::Bool(*b);
    String => |text| Constant::Text(text.as_str().into());
    &'static str => |text| Constant::Text((*text).into());
}

impl<T: Arguments> Arguments for Vec<T> {
    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Leaf<'a>)) {
        visit(Leaf::Constant(Constant::Length(self.len())));
        self.iter().for_each(|item| item.visit(visit));
    }
    fn with_tensors(&self, next: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        self.iter().map(|item| item.with_tensors(next)).collect()
    }
}

impl<T: Results> Results for Vec<T> {
    type Value = Vec<T::Value>;
    fn into_value(self) -> Result<Self::Value, Error> {
        self.into_iter().map(T::into_value).collect()
    }
    fn tensors(value: &Self::Value, out: &mut Vec<Tensor>) -> Spec {
        Spec::List(value.iter().map(|item| T::tensors(item, out)).collect())
    }
    fn build(spec: &Spec, next: &mut dyn FnMut() -> Tensor) -> Self::Value {
        let Spec::List(items) = spec else { return Vec::new() };
        items.iter().map(|item| T::build(item, next)).collect()
    }
}

impl<T: Arguments> Arguments for Option<T> {
    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Leaf<'a>)) {
        visit(Leaf::Constant(Constant::Length(usize::from(self.is_some()))));
        self.iter().for_each(|item| item.visit(visit));
    }
    fn with_tensors(&self, next: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        self.as_ref().map(|item| item.with_tensors(next))
    }
}

impl<T: Results> Results for Option<T> {
    type Value = Option<T::Value>;
    fn into_value(self) -> Result<Self::Value, Error> {
        self.map(T::into_value).transpose()
    }
    fn tensors(value: &Self::Value, out: &mut Vec<Tensor>) -> Spec {
        value.as_ref().map_or(Spec::Nothing, |item| Spec::List(vec![T::tensors(item, out)]))
    }
    fn build(spec: &Spec, next: &mut dyn FnMut() -> Tensor) -> Self::Value {
        match spec {
            Spec::List(items) => items.first().map(|item| T::build(item, next)),
            _ => None,
        }
    }
}

impl<T: Arguments, const N: usize> Arguments for [T; N] {
    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Leaf<'a>)) {
        self.iter().for_each(|item| item.visit(visit));
    }
    fn with_tensors(&self, next: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        std::array::from_fn(|n| self[n].with_tensors(next))
    }
}

macro_rules! tuples {
    ($($($name:ident $n:tt),*;)*) => {$(
        #[allow(clippy::unused_unit)] // the empty tuple is one of them
        impl<$($name: Arguments),*> Arguments for ($($name,)*) {
            fn visit<'a>(&'a self, _visit: &mut dyn FnMut(Leaf<'a>)) {
                $(self.$n.visit(_visit);)*
            }
            fn with_tensors(&self, _next: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
                ($(self.$n.with_tensors(_next),)*)
            }
        }
        #[allow(clippy::unused_unit)] // the empty tuple is one of them
        impl<$($name: Results),*> Results for ($($name,)*) {
            type Value = ($($name::Value,)*);
            fn into_value(self) -> Result<Self::Value, Error> {
                Ok(($(self.$n.into_value()?,)*))
            }
            fn tensors(_value: &Self::Value, _out: &mut Vec<Tensor>) -> Spec {
                Spec::List(vec![$($name::tensors(&_value.$n, _out)),*])
            }
            fn build(_spec: &Spec, _next: &mut dyn FnMut() -> Tensor) -> Self::Value {
                const NOTHING: &[Spec] = &[];
                let _items = if let Spec::List(items) = _spec { items.as_slice() } else { NOTHING };
                ($($name::build(_items.get($n).unwrap_or(&Spec::Tensor), _next),)*)
            }
        }
    )*};
}

tuples! {
    ;
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}
