//! The size symbols of a program: names, ranges, hints, and a table of the expressions already read.
//!
//! The same expression text stands in an archive thousands of times, so each is parsed once.

use std::collections::{HashMap, HashSet};

use fx_ir::Symbol;
use ir_core::{Arena, Atom, Origin, Relation, SymExpr, SymId};
use tracing::debug;

use crate::error::{Pt2Error, Result, shorten};
use crate::json_path::JsonPath;
use crate::schema;
use crate::sym::{self, AtLeast, Bounds, Value};

/// An assertion about the sizes of inputs.
pub(super) struct Asserted {
    pub(super) expression: SymExpr,
    pub(super) relation: Relation,
    pub(super) origin: Origin,
    /// As the archive has it.
    pub(super) text: String,
}

/// Symbols and expressions of one program. Tables have random keys: their names come from the file.
pub(super) struct Symbols<'a> {
    arena: ir_core::Symbols,
    by_name: HashMap<String, SymId>,
    ranges: HashMap<&'a str, schema::Range>,
    integers: HashMap<&'a str, SymExpr>,
    bounds: Bounds,
    /// What the program asserts of the sizes of its inputs and no range can hold.
    asserted: Vec<Asserted>,
    /// Those that some value's sizes or an integer value mention.
    bound: HashSet<SymId>,
    /// Those that are the size of a tensor.
    sizes: HashSet<SymId>,
    /// Those of integers that the caller gives.
    given: HashSet<SymId>,
}

impl<'a> Symbols<'a> {
    pub(super) fn new(ranges: &'a schema::Entries<'a, schema::Range>, bounds: Bounds) -> Symbols<'a> {
        Symbols {
            arena: Arena::new(),
            by_name: HashMap::new(),
            ranges: ranges.0.iter().map(|(name, range)| (&**name, *range)).collect(),
            integers: HashMap::new(),
            bounds,
            asserted: Vec::new(),
            bound: HashSet::new(),
            sizes: HashSet::new(),
            given: HashSet::new(),
        }
    }

    /// The symbols made, once the last expression has been read.
    pub(super) fn take_arena(&mut self) -> ir_core::Symbols {
        self.by_name.clear();
        self.integers.clear();
        for (_, symbol) in self.arena.iter_mut() {
            // A forged hint; it is for heuristics only.
            symbol.hint = symbol.hint.filter(|&h| symbol.contains(h));
        }
        std::mem::take(&mut self.arena)
    }

    /// The integer of a size, stride or symbolic value.
    pub(super) fn int(&mut self, size: &'a schema::SymInt<'a>, at: &JsonPath<'_>) -> Result<SymExpr> {
        match size {
            schema::SymInt::AsInt(n) => Ok(SymExpr::from_i64(*n)),
            schema::SymInt::AsExpr(expr) => {
                let value = self.int_text(&expr.expr_str, at)?;
                if let (Some(id), Some(schema::Hint::AsInt(hint))) = (value.as_sym(), expr.hint) {
                    self.arena[id].hint.get_or_insert(hint);
                }
                Ok(value)
            }
        }
    }

    fn int_text(&mut self, text: &'a str, at: &JsonPath<'_>) -> Result<SymExpr> {
        if let Some(known) = self.integers.get(text) {
            return Ok(known.clone());
        }
        let value = match self.parse(text) {
            Ok(Value::Int(value) | Value::Truth(value)) => value,
            Ok(Value::Ratio(n, d)) => {
                return Err(expression(text, format!("`({n}) / ({d})` is not an integer"), at));
            }
            Err(problem) => return Err(expression(text, problem, at)),
        };
        self.integers.insert(text, value.clone());
        Ok(value)
    }

    /// The value of any expression; `None` where it is not exact in integers (a float that the program computes).
    pub(super) fn value(&mut self, text: &str) -> Option<Value> {
        self.parse(text).ok()
    }

    fn parse(&mut self, text: &str) -> std::result::Result<Value, String> {
        let bounds = self.bounds;
        sym::parse(text, &bounds, &mut |name| self.symbol(name))
    }

    /// The symbol of that name, made on its first use.
    fn symbol(&mut self, name: &str) -> std::result::Result<SymExpr, String> {
        if let Some(&id) = self.by_name.get(name) {
            return Ok(SymExpr::sym(id));
        }
        // PyTorch's prefixes: `zf` and `zuf` are floats, `u` is known only at run time.
        if name.starts_with('z') {
            return Err(format!("`{}` is a float that the program computes", shorten(name)));
        }
        let good = name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !good || name.is_empty() {
            return Err(format!("`{}` is no name of a symbol", shorten(name)));
        }
        let unbacked = name.starts_with('u');
        let range = self.ranges.get(name).copied().unwrap_or_default();
        // A size is not negative; what `item` gives may be.
        let lowest = if unbacked { i64::MIN } else { 0 };
        let (min, max) = (range.min_val.unwrap_or(lowest), range.max_val);
        // PyTorch takes sizes to be 2 or more while it captures, and admits 0 and 1 in a call.
        let min = if !unbacked && min <= 2 { min.min(0) } else { min };
        if max.is_some_and(|max| max < min) {
            return Err(format!("the range of `{name}` is empty"));
        }
        let id = self.arena.push(Symbol { name: name.to_owned(), min, max, hint: None, unbacked });
        self.by_name.insert(name.to_owned(), id);
        Ok(SymExpr::sym(id))
    }

    /// Narrows ranges by a truth expression that the program asserts; `false` where no range can hold it.
    pub(super) fn assume(&mut self, text: &str) -> bool {
        let bounds = self.bounds;
        match sym::facts(text, &bounds, &mut |name| self.symbol(name)) {
            // Every fact narrows what it can, also behind one that could not.
            Ok(facts) if !facts.is_empty() => facts.iter().filter(|fact| !self.narrow(fact)).count() == 0,
            _ => {
                debug!(assertion = %shorten(text), "no range can hold an assertion");
                false
            }
        }
    }

    /// Keeps an assertion for the check of a call, where it is about the sizes of inputs alone.
    pub(super) fn keep(&mut self, text: &str, origin: Origin) {
        let bounds = self.bounds;
        let list = match sym::conditions(text, &bounds, &mut |name| self.symbol(name)) {
            Ok(list) => list,
            Err(why) => {
                debug!(assertion = %shorten(text), %why, "an assertion that is not about sizes is dropped");
                return;
            }
        };
        for (expression, relation) in list {
            self.keep_expression(expression, relation, origin.clone(), text);
        }
    }

    /// As [`keep`](Symbols::keep), of one condition.
    pub(super) fn keep_expression(
        &mut self,
        expression: SymExpr,
        relation: Relation,
        origin: Origin,
        text: &str,
    ) {
        if expression.any_leaf(|leaf| self.arena.is_unbacked(leaf)) {
            debug!(assertion = %shorten(text), "an assertion about what nothing gives is dropped");
        } else {
            self.asserted.push(Asserted { expression, relation, origin, text: shorten(text) });
        }
    }

    /// What was kept, once the last assertion has been read.
    pub(super) fn take_asserted(&mut self) -> Vec<Asserted> {
        self.keep_ranges();
        std::mem::take(&mut self.asserted)
    }

    /// Ranges of expressions (`2*s60`), which PyTorch checks like those of symbols: lower ends above 2 alone.
    fn keep_ranges(&mut self) {
        let expressions = self.ranges.iter().filter(|(key, _)| !self.by_name.contains_key(&***key));
        let mut ranges: Vec<(String, schema::Range)> =
            expressions.map(|(key, range)| (key.to_string(), *range)).collect();
        ranges.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (key, range) in &ranges {
            let known =
                |name: &str| self.by_name.get(name).map(|id| SymExpr::sym(*id)).ok_or_else(String::new);
            let Ok(Value::Int(e)) = sym::parse(key, &self.bounds, &mut { known }) else { continue };
            if e.as_const().is_some() {
                continue;
            }
            let lower = range.min_val.filter(|min| *min > 2).map(|min| (&e - min, format!("{key} >= {min}")));
            let upper = range.max_val.map(|max| (SymExpr::from_i64(max) - &e, format!("{key} <= {max}")));
            for (expression, text) in [lower, upper].into_iter().flatten() {
                self.keep_expression(expression, Relation::NonNegative, Origin::default(), &text);
            }
        }
    }

    /// Takes note that a value of the program has this size, or is this integer.
    pub(super) fn is_bound(&mut self, e: &SymExpr) {
        e.for_each_leaf(&mut |atom| {
            if let Atom::Sym(id) = atom {
                self.bound.insert(*id);
            }
        });
    }

    /// Whether an expression mentions an integer that the program computes, and none that nothing gives: where in its
    /// storage a tensor begins has symbols of its own.
    pub(super) fn is_computed(&mut self, text: &str) -> bool {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let unbacked = words.filter_map(|w| self.by_name.get(w)).filter(|id| self.arena[**id].unbacked);
        let (bound, free): (Vec<&SymId>, Vec<&SymId>) = unbacked.partition(|id| self.bound.contains(id));
        free.is_empty() && !bound.is_empty()
    }

    /// Narrows the range of `value`, where it is one symbol alone; else the bounds are kept for the check of a call.
    pub(super) fn assume_range(
        &mut self,
        value: &SymExpr,
        min: Option<i64>,
        max: Option<i64>,
        origin: &Origin,
    ) {
        let facts = [min.map(|min| (value.clone(), min.into())), max.map(|max| (max.into(), value.clone()))];
        for (left, right) in facts.into_iter().flatten() {
            let text = format!("{left} >= {right}");
            let difference: SymExpr = &left - &right;
            if !self.narrow(&AtLeast { left, right }) {
                self.keep_expression(difference, Relation::NonNegative, origin.clone(), &text);
            }
        }
    }

    /// A symbol that is the size of a tensor is not negative, nor is a size that is computed from a given integer.
    pub(super) fn is_size(&mut self, size: &SymExpr) {
        if let Some(id) = size.as_sym() {
            self.sizes.insert(id);
            let symbol = &mut self.arena[id];
            if symbol.max.is_none_or(|max| max >= 0) {
                symbol.min = symbol.min.max(0);
            }
        } else if !self.given.is_empty()
            && size.any_leaf(|a| matches!(a, Atom::Sym(id) if self.given.contains(id)))
        {
            let _ = self.narrow(&AtLeast { left: size.clone(), right: SymExpr::ZERO });
        }
    }

    /// Takes note that the caller gives this integer. Exporting writes 0 as the lower end of the range of every such
    /// symbol, which PyTorch does not check at a call: the integer may be negative where it is no size.
    pub(super) fn is_given(&mut self, value: &SymExpr) {
        let Some(id) = value.as_sym() else { return };
        if self.given.insert(id) && !self.sizes.contains(&id) {
            let symbol = &mut self.arena[id];
            let recorded = self.ranges.get(symbol.name.as_str()).and_then(|range| range.min_val);
            symbol.min = recorded.filter(|&min| min > 0).unwrap_or(i64::MIN);
        }
    }

    /// `false` where the range of one symbol cannot say it.
    fn narrow(&mut self, fact: &AtLeast) -> bool {
        let difference = &fact.left - &fact.right;
        let (terms, constant) = difference.terms();
        let [(coef, [ir_core::Atom::Sym(id)])] = terms[..] else {
            debug!(fact = %format!("{} >= {}", fact.left, fact.right), "no range can hold a fact");
            return false;
        };
        let (symbol, coef, constant) = (&mut self.arena[*id], i128::from(coef), i128::from(constant));
        // coef * s + constant >= 0
        let (mut min, mut max) = (symbol.min, symbol.max);
        if coef > 0 {
            let bound = -constant.div_euclid(coef);
            min = min.max(i64::try_from(bound).unwrap_or(min));
        } else {
            let bound = constant.div_euclid(-coef);
            let bound = i64::try_from(bound).ok();
            max = [max, bound].into_iter().flatten().min();
        }
        // A contradiction is the program's own assertion failing for every input: it is left to fail at run time.
        let possible = max.is_none_or(|max| min <= max);
        if possible {
            (symbol.min, symbol.max) = (min, max);
        }
        possible
    }
}

fn expression(text: &str, problem: String, at: &JsonPath<'_>) -> Pt2Error {
    Pt2Error::Expression { at: at.place(), text: shorten(text), problem }
}
