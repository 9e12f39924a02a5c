//! The variables that a captured function uses: those from outside become inputs when they are first read and outputs when
//! they are written, those that it makes itself are its own. Not here: operators ([`super`]).

use std::sync::Arc;

use fx_ir::{InputKind, Symbol, ValueId, ValueType};
use ir_core::{SymExpr, TensorMeta};

use super::{Assign, Frame, Place, Source};
use crate::node::{Call, Kind, Meta, Value};
use crate::{Cell, DimRange, body};

/// A variable from outside, as the captured function sees it.
pub(super) struct Held {
    pub(super) cell: Arc<Cell>,
    pub(super) root: *const Cell,
    pub(super) assign: Option<Assign>,
    pub(super) place: Place,
    /// Number of the input; none where it was empty.
    pub(super) source: Option<usize>,
    pub(super) value: Option<Value>,
    pub(super) written: bool,
    pub(super) writes: u64,
    pub(super) order: usize,
}

impl Held {
    pub(super) fn new(cell: Arc<Cell>, root: *const Cell, place: Place, order: usize) -> Held {
        Held { cell, root, assign: None, place, source: None, value: None, written: false, writes: 0, order }
    }

    pub(super) fn is_argument(&self) -> bool {
        matches!(self.place, Place::Argument(_))
    }
}

/// Two variables that the function uses share memory, and one of them is written: only running the program in order is right.
pub(crate) struct Shared;

impl Frame {
    /// Makes a variable from outside an input of the graph. A gradient of it goes to `slot`, or where its own goes.
    pub(super) fn lift(
        &mut self,
        address: *const Cell,
        slot: Option<Arc<Cell>>,
        dims: &[Option<DimRange>],
    ) -> Option<Value> {
        let held = self.held.get(&address)?;
        let place = held.place.clone();
        let Some(value) = held.cell.actual() else {
            self.absent.push(place);
            return None;
        };
        // A node of its own: two variables with one value are two inputs.
        let alias = alias_of(&value, slot);
        let v = self.input(alias.meta(), dims);
        let source = self.sources.len();
        self.sources.push(Source::Variable(place));
        self.tracked.push(value.is_tracked());
        self.name(&alias, v);
        let held = self.held.get_mut(&address)?;
        held.source = Some(source);
        held.value = Some(alias.clone());
        Some(alias)
    }

    /// A placeholder.
    pub(super) fn input(&mut self, meta: &Meta, dims: &[Option<DimRange>]) -> ValueId {
        let name = format!("x{}", self.sources.len());
        let sizes: Vec<SymExpr> = meta
            .sizes
            .iter()
            .enumerate()
            .map(|(d, &size)| match dims.get(d).copied().flatten() {
                None => SymExpr::from_i64(size),
                Some(DimRange { min, max }) => {
                    let symbol = Symbol {
                        name: format!("{name}.size({d})"),
                        min,
                        max,
                        hint: Some(size),
                        unbacked: false,
                    };
                    self.hints.push(size);
                    SymExpr::sym(self.graph.add_symbol(symbol))
                }
            })
            .collect();
        let ty = ValueType::Tensor(TensorMeta::contiguous(meta.dtype, sizes));
        let v = self.graph.placeholder(InputKind::User, name.clone(), &name, ty);
        body::placed_first(&mut self.graph, v);
        v
    }

    pub(super) fn constant(&mut self, value: &Value) -> Option<ValueId> {
        let tensor = value.data()?.clone();
        let v = self.input(value.meta(), &[]);
        self.sources.push(Source::Constant(tensor));
        self.tracked.push(false);
        self.name(value, v);
        Some(v)
    }

    pub(super) fn name(&mut self, value: &Value, v: ValueId) {
        self.ids.insert(value.id(), v);
        self.keep.push(value.clone());
    }

    /// Registers a variable that the function itself makes.
    pub(crate) fn own(&mut self, cell: &Arc<Cell>) {
        self.owned.insert(Arc::as_ptr(cell));
        self.owned_cells.push(Arc::clone(cell));
    }

    /// The value of a variable for the function.
    ///
    /// # Errors
    /// It shares memory with one that the function has written.
    pub(crate) fn read(&mut self, cell: &Arc<Cell>) -> Result<Option<Value>, Shared> {
        let address = Arc::as_ptr(cell);
        if self.owned.contains(&address) {
            return Ok(cell.actual());
        }
        if !self.held.contains_key(&address) {
            if self.held.values().any(|h| h.written && h.root == address) {
                return Err(Shared);
            }
            let (place, order) = (Place::Cell(Arc::clone(cell)), self.held.len());
            let cell = Arc::clone(cell);
            let held = Held::new(cell, address, place, order);
            self.held.insert(address, held);
            return Ok(self.lift(address, None, &[]));
        }
        match self.held.get(&address) {
            Some(held) if !held.written && held.source.is_none() && held.is_argument() => {
                Ok(self.lift(address, None, &[]))
            }
            held => Ok(held.and_then(|h| h.value.clone())),
        }
    }

    /// Writes a variable; `false` for one that the function itself has made.
    ///
    /// # Errors
    /// Another variable that the function uses shares its memory.
    pub(crate) fn write(&mut self, cell: &Arc<Cell>, value: Option<Value>) -> Result<bool, Shared> {
        if self.owned.contains(&Arc::as_ptr(cell)) {
            return Ok(false);
        }
        self.read(cell)?;
        let root = self.held.get(&Arc::as_ptr(cell)).map(|h| h.root);
        if self.held.values().filter(|h| Some(h.root) == root).count() > 1 {
            return Err(Shared);
        }
        if let Some(held) = self.held.get_mut(&Arc::as_ptr(cell)) {
            held.value = value;
            held.written = true;
            held.writes += 1;
        }
        Ok(true)
    }

    /// Whether a variable is one of the function's variables for its arguments.
    pub(super) fn is_argument(&self, cell: &Arc<Cell>) -> bool {
        self.held.get(&Arc::as_ptr(cell)).is_some_and(Held::is_argument)
    }

    /// How often the function has written a variable from outside.
    pub(crate) fn writes(&self, cell: *const Cell) -> u64 {
        self.held.get(&cell).map_or(0, |h| h.writes)
    }

    /// Whether the function itself has made a variable.
    pub(super) fn owns(&self, cell: &Arc<Cell>) -> bool {
        self.owned.contains(&Arc::as_ptr(cell))
    }
}

/// A node of its own with the same value, and the same part in gradients.
fn alias_of(value: &Value, slot: Option<Arc<Cell>>) -> Value {
    let slot = value.slot().map(|own| slot.unwrap_or_else(|| Arc::clone(own)));
    let (of, meta) = (value.clone(), value.meta().clone());
    let tracked = value.is_tracked();
    Value { call: Call::new(Kind::Alias { of, slot }, Vec::new(), [meta], tracked), out: 0 }
}
