//! The place in the JSON that is being read, as a list on the stack: rendered only when there is an error.

use std::fmt;

use crate::error::{Place, Pt2Error};

/// A path from the root of an entry.
#[derive(Clone, Copy)]
pub(crate) enum JsonPath<'p> {
    /// The entry itself.
    Entry(&'p str),
    /// A field of an object.
    Field(&'p JsonPath<'p>, &'static str),
    /// A key of a map.
    Key(&'p JsonPath<'p>, &'p str),
    /// An item of a list.
    Item(&'p JsonPath<'p>, usize),
}

impl JsonPath<'_> {
    pub(crate) fn field<'s>(&'s self, name: &'static str) -> JsonPath<'s> {
        JsonPath::Field(self, name)
    }
    pub(crate) fn item(&self, index: usize) -> JsonPath<'_> {
        JsonPath::Item(self, index)
    }
    pub(crate) fn key<'s>(&'s self, key: &'s str) -> JsonPath<'s> {
        JsonPath::Key(self, key)
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
            JsonPath::Entry(entry) => entry,
            JsonPath::Field(up, _) | JsonPath::Key(up, _) | JsonPath::Item(up, _) => up.entry(),
        }
    }
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonPath::Entry(_) => Ok(()),
            JsonPath::Field(JsonPath::Entry(_), name) => f.write_str(name),
            JsonPath::Field(up, name) => write!(f, "{up}.{name}"),
            JsonPath::Key(up, key) => write!(f, "{up}[`{}`]", crate::error::shorten(key)),
            JsonPath::Item(up, index) => write!(f, "{up}[{index}]"),
        }
    }
}
