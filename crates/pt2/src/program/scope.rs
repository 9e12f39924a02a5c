//! Names of one graph of the archive: what each is bound to, and what the archive says of it.

use std::collections::HashMap;

use fx_ir::Arg;

use crate::error::{Result, shorten};
use crate::json_path::JsonPath;
use crate::schema;

/// The tables of one archive graph by name. Random keys: the names come from the file.
pub(super) struct Tables<'a> {
    tensors: HashMap<&'a str, &'a schema::TensorMeta<'a>>,
    ints: HashMap<&'a str, &'a schema::SymInt<'a>>,
    bools: HashMap<&'a str, &'a schema::SymBool<'a>>,
    floats: HashMap<&'a str, &'a schema::SymFloat<'a>>,
}

/// The tables of a graph and the bindings made so far.
pub(super) struct Scope<'a> {
    tables: Tables<'a>,
    names: HashMap<&'a str, Arg>,
}

fn table<'a, T>(
    entries: &'a schema::Entries<'a, T>,
    at: &JsonPath<'_>,
    field: &'static str,
) -> Result<HashMap<&'a str, &'a T>> {
    let mut table = HashMap::with_capacity(entries.0.len());
    for (name, value) in &entries.0 {
        if table.insert(&**name, value).is_some() {
            return Err(at.field(field).invalid(format!("`{}` is described twice", shorten(name))));
        }
    }
    Ok(table)
}

impl<'a> Scope<'a> {
    pub(super) fn new(graph: &'a schema::Graph<'a>, at: &JsonPath<'_>) -> Result<Scope<'a>> {
        let tables = Tables {
            tensors: table(&graph.tensor_values, at, "tensor_values")?,
            ints: table(&graph.sym_int_values, at, "sym_int_values")?,
            bools: table(&graph.sym_bool_values, at, "sym_bool_values")?,
            floats: table(&graph.sym_float_values, at, "sym_float_values")?,
        };
        Ok(Scope { tables, names: HashMap::with_capacity(graph.nodes.len() + graph.inputs.len()) })
    }

    /// What a name is bound to.
    pub(super) fn get(&self, name: &str, at: &JsonPath<'_>) -> Result<Arg> {
        let unknown = || at.invalid(format!("`{}` is used but no node before gives it", shorten(name)));
        self.names.get(name).cloned().ok_or_else(unknown)
    }

    /// Binds a name once.
    pub(super) fn bind(&mut self, name: &'a str, to: Arg, at: &JsonPath<'_>) -> Result<()> {
        match self.names.insert(name, to) {
            None => Ok(()),
            Some(_) => Err(at.invalid(format!("`{}` is defined twice", shorten(name)))),
        }
    }

    pub(super) fn tensor(&self, name: &str, at: &JsonPath<'_>) -> Result<&'a schema::TensorMeta<'a>> {
        self.tables.tensors.get(name).copied().ok_or_else(|| missing(name, "tensor_values", at))
    }

    pub(super) fn int(&self, name: &str, at: &JsonPath<'_>) -> Result<&'a schema::SymInt<'a>> {
        self.tables.ints.get(name).copied().ok_or_else(|| missing(name, "sym_int_values", at))
    }

    /// The truth value of a name, where the archive gives it.
    pub(super) fn truth(&self, name: &str) -> Option<&'a schema::SymBool<'a>> {
        self.tables.bools.get(name).copied()
    }

    /// The float of a name, where the archive gives it.
    pub(super) fn float(&self, name: &str) -> Option<&'a schema::SymFloat<'a>> {
        self.tables.floats.get(name).copied()
    }
}

fn missing(name: &str, table: &str, at: &JsonPath<'_>) -> crate::Pt2Error {
    at.invalid(format!("`{}` is not described in `{table}`", shorten(name)))
}
