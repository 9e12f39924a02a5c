//! The building blocks of all kernel texts: bodies as statements, index expressions, types and literals, index checks, the
//! head of an entry. It knows no kind of kernel and no vendor.

pub(crate) mod body;
pub(crate) mod checks;
pub(crate) mod index;
pub(crate) mod lanes;
pub(crate) mod ops;
pub(crate) mod rough;
pub(crate) mod template;
pub(crate) mod tiles;
pub(crate) mod types;
