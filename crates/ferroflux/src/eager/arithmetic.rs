//! `+`, `-`, `*`, `/`, `%`, unary `-` and `!` on tensors and numbers, as in PyTorch.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

use super::{Tensor, call};

macro_rules! binary {
    ($($trait:ident $method:ident $target:literal;)*) => {$(
        binary!(@tensors $trait $method $target Tensor, Tensor);
        binary!(@tensors $trait $method $target Tensor, &Tensor);
        binary!(@tensors $trait $method $target &Tensor, Tensor);
        binary!(@tensors $trait $method $target &Tensor, &Tensor);
    )*};
    (@tensors $trait:ident $method:ident $target:literal $left:ty, $right:ty) => {
        impl $trait<$right> for $left {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $right) -> Tensor {
                call($target, [(&self as &Tensor).into(), (&other as &Tensor).into()])
            }
        }
    };
}

binary! {
    Add add "aten.add.Tensor";
    Sub sub "aten.sub.Tensor";
    Mul mul "aten.mul.Tensor";
    Div div "aten.div.Tensor";
    Rem rem "aten.remainder.Tensor";
    BitAnd bitand "aten.bitwise_and.Tensor";
    BitOr bitor "aten.bitwise_or.Tensor";
    BitXor bitxor "aten.bitwise_xor.Tensor";
}

macro_rules! with_numbers {
    ($($number:ty),*) => {$(
        with_numbers!(@one $number, Add add "aten.add.Scalar");
        with_numbers!(@one $number, Sub sub "aten.sub.Scalar");
        with_numbers!(@one $number, Mul mul "aten.mul.Scalar");
        with_numbers!(@one $number, Div div "aten.div.Scalar");
        with_numbers!(@one $number, Rem rem "aten.remainder.Scalar");
        with_numbers!(@left $number, Tensor);
        with_numbers!(@left $number, &Tensor);
    )*};
    (@one $number:ty, $trait:ident $method:ident $target:literal) => {
        impl $trait<$number> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $number) -> Tensor {
                self.call($target, [other.into()])
            }
        }
        impl $trait<$number> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $number) -> Tensor {
                self.call($target, [other.into()])
            }
        }
    };
    (@left $number:ty, $tensor:ty) => {
        impl Add<$tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn add(self, other: $tensor) -> Tensor {
                other.call("aten.add.Scalar", [self.into()])
            }
        }
        impl Sub<$tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn sub(self, other: $tensor) -> Tensor {
                other.call("aten.rsub.Scalar", [self.into()])
            }
        }
        impl Mul<$tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn mul(self, other: $tensor) -> Tensor {
                other.call("aten.mul.Scalar", [self.into()])
            }
        }
        impl Div<$tensor> for $number {
            type Output = Tensor;
            // PyTorch divides a number by a tensor as the tensor's reciprocal times the number.
            #[track_caller]
            fn div(self, other: $tensor) -> Tensor {
                other.call("aten.reciprocal.default", []).call("aten.mul.Scalar", [self.into()])
            }
        }
    };
}

with_numbers!(f64, i64);

macro_rules! unary {
    ($($trait:ident $method:ident $target:literal;)*) => {$(
        impl $trait for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                self.call($target, [])
            }
        }
        impl $trait for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self) -> Tensor {
                self.call($target, [])
            }
        }
    )*};
}

unary! {
    Neg neg "aten.neg.default";
    Not not "aten.bitwise_not.default";
}
