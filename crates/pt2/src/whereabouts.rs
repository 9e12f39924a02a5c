//! The place in the JSON that is being read, as a list on the stack: rendered only when there is an error.

use std::fmt;

use crate::error::{Place, Pt2Error};

/// A path from the root of an entry.
#[derive(Clone, Copy)]
pub(crate) enum At<'p> {
    /// The entry itself.
    Entry(&'p str),
    /// A field of an object.
    Field(&'p At<'p>, &'static str),
    /// A key of a map.
    Key(&'p At<'p>, &'p str),
    /// An item of a list.
    Item(&'p At<'p>, usize),
}

impl At<'_> {
    pub(crate) fn field<'s>(&'s self, name: &'static str) -> At<'s> {
        At::Field(self, name)
    }
    pub(crate) fn item(&self, index: usize) -> At<'_> {
        At::Item(self, index)
    }
    pub(crate) fn key<'s>(&'s self, key: &'s str) -> At<'s> {
        At::Key(self, key)
    }

    pub(crate) fn place(&self) -> Box<Place> {
        Place::json(self.entry(), self.to_string())
    }

    pub(crate) fn invalid(&self, problem: impl Into<String>) -> Pt2Error {
        Pt2Error::Invalid { at: self.place(), problem: problem.into() }
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>, advice: &'static str) -> Pt2Error {
        Pt2Error::Unsupported { at: self.place(), what: what.into(), advice }
    }

    fn entry(&self) -> &str {
        match self {
            At::Entry(entry) => entry,
            At::Field(up, _) | At::Key(up, _) | At::Item(up, _) => up.entry(),
        }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Entry(_) => Ok(()),
            At::Field(At::Entry(_), name) => f.write_str(name),
            At::Field(up, name) => write!(f, "{up}.{name}"),
            At::Key(up, key) => write!(f, "{up}[`{}`]", crate::error::shorten(key)),
            At::Item(up, index) => write!(f, "{up}[{index}]"),
        }
    }
}
