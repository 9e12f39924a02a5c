//! Storages and their views: which tensors share memory, which value is current, and how to read or write one. It knows
//! views only by their [`ViewRule`]s.

use fx_ir::{Arg, Graph, InputKind, OriginId, ValueId, ValueType};
use ir_core::TensorMeta;

use super::views::{ViewInverse, ViewRule};

/// A view of a storage; its root is the storage itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ViewRef(usize);

/// A tensor of the program.
pub(super) struct View {
    /// Its meta.
    pub(super) meta: TensorMeta,
    /// The parent view and the rule; `None` for a storage.
    from: Option<(ViewRef, ViewRule)>,
    storage: usize,
    name: String,
    /// The call that created it: replays have the origin of this call, whichever node reads.
    origin: OriginId,
    /// The value when the storage had this generation.
    value: Option<ValueId>,
    generation: u32,
}

impl View {
    /// A view of `parent`; [`Storages::push`] completes it.
    pub(super) fn derived(
        parent: ViewRef,
        rule: ViewRule,
        meta: TensorMeta,
        name: &str,
        origin: OriginId,
    ) -> View {
        let (from, name) = (Some((parent, rule)), name.into());
        View { meta, from, storage: 0, name, origin, value: None, generation: 0 }
    }
}

struct Storage {
    root: ViewRef,
    /// Counts writes.
    generation: u32,
    input: Option<(InputKind, String)>,
}

/// An input that is a storage.
pub(super) struct Input {
    pub(super) kind: InputKind,
    pub(super) name: String,
    pub(super) value: ValueId,
    pub(super) written: bool,
}

/// All storages of a graph.
#[derive(Default)]
pub(super) struct Storages {
    storages: Vec<Storage>,
    views: Vec<View>,
}

impl Storages {
    /// A new storage whose value is `value`.
    pub(super) fn add(
        &mut self,
        value: ValueId,
        meta: TensorMeta,
        name: &str,
        input: Option<(InputKind, String)>,
    ) -> ViewRef {
        let root = ViewRef(self.views.len());
        let storage = self.storages.len();
        self.storages.push(Storage { root, generation: 0, input });
        self.views.push(View {
            meta,
            from: None,
            storage,
            name: name.into(),
            origin: OriginId(0),
            value: Some(value),
            generation: 0,
        });
        root
    }
    /// A new view; `value` is its current value, computed at the first read if it is missing.
    pub(super) fn push(&mut self, mut view: View, value: Option<ValueId>) -> ViewRef {
        if let Some((parent, _)) = &view.from {
            view.storage = self.views[parent.0].storage;
        }
        view.value = value;
        view.generation = self.storages[view.storage].generation;
        self.views.push(view);
        ViewRef(self.views.len() - 1)
    }
    pub(super) fn view(&self, view: ViewRef) -> &View {
        &self.views[view.0]
    }
    /// The storage's own view.
    pub(super) fn root_of(&self, view: ViewRef) -> ViewRef {
        self.storages[self.views[view.0].storage].root
    }
    /// Kind and name of the input that the storage is, where it is one.
    pub(super) fn input_of(&self, view: ViewRef) -> Option<(InputKind, &str)> {
        let input = self.storages[self.views[view.0].storage].input.as_ref();
        input.map(|(kind, name)| (*kind, name.as_str()))
    }
    /// Inputs in the order in which they were added.
    pub(super) fn inputs(&self) -> Vec<Input> {
        let inputs = self.storages.iter().filter_map(|s| {
            let (kind, name) = s.input.clone()?;
            let value = self.views[s.root.0].value?;
            Some(Input { kind, name, value, written: s.generation > 0 })
        });
        inputs.collect()
    }
    /// Current value of a storage's root, and whether it was ever written.
    pub(super) fn present(&self, root: ViewRef) -> (ValueId, bool) {
        let root = self.root_of(root);
        let view = &self.views[root.0];
        // A root always has a value: `add` gives it one and `write` replaces it.
        (view.value.unwrap_or(ValueId(0)), self.storages[view.storage].generation > 0)
    }

    fn fresh(&self, view: ViewRef) -> Option<ValueId> {
        let v = &self.views[view.0];
        v.value.filter(|_| v.from.is_none() || v.generation == self.storages[v.storage].generation)
    }

    /// The current value; stale views between it and the storage are replayed. This is iterative, because chains may be
    /// long.
    pub(super) fn read(&mut self, out: &mut Graph, view: ViewRef) -> ValueId {
        let mut stale = Vec::new();
        let mut at = view;
        let mut value = loop {
            if let Some(value) = self.fresh(at) {
                break value;
            }
            stale.push(at);
            match &self.views[at.0].from {
                Some((parent, _)) => at = *parent,
                // Not reached: a root is always fresh.
                None => break ValueId(0),
            }
        };
        for at in stale.into_iter().rev() {
            let v = &mut self.views[at.0];
            if let Some((_, rule)) = &v.from {
                let mut args = rule.args.clone();
                args.insert(0, Arg::Value(value));
                let ty = ValueType::Tensor(v.meta.clone());
                value = out.call(rule.target.as_str(), args, [(v.name.as_str(), ty)], v.origin)[0];
            }
            v.value = Some(value);
            v.generation = self.storages[v.storage].generation;
        }
        value
    }

    /// Makes `new` the view's value and inverts its chain of views up to the storage's new value.
    ///
    /// # Errors
    /// A view in the chain that cannot be written through; then only dead calls were added.
    pub(super) fn write(
        &mut self,
        out: &mut Graph,
        view: ViewRef,
        new: ValueId,
        origin: OriginId,
    ) -> Result<(), &'static str> {
        let mut values = vec![(view, new)];
        let (mut at, mut value) = (view, new);
        while let Some((parent, rule)) = self.views[at.0].from.clone() {
            value = self.invert(out, parent, &rule.inverse, value, origin)?;
            values.push((parent, value));
            at = parent;
        }
        let storage = &mut self.storages[self.views[view.0].storage];
        storage.generation += 1;
        let generation = storage.generation;
        for (at, value) in values {
            let v = &mut self.views[at.0];
            (v.value, v.generation) = (Some(value), generation);
        }
        Ok(())
    }

    /// The parent's value when the view of it has the value `new`.
    fn invert(
        &mut self,
        out: &mut Graph,
        parent: ViewRef,
        inverse: &ViewInverse,
        new: ValueId,
        origin: OriginId,
    ) -> Result<ValueId, &'static str> {
        let (target, args) = match inverse {
            ViewInverse::Identity => return Ok(new),
            ViewInverse::Refused(why) => return Err(why),
            ViewInverse::Reshape => {
                let sizes = Arg::ints(&self.views[parent.0].meta.sizes);
                ("aten.reshape.default".to_string(), vec![Arg::Value(new), sizes])
            }
            ViewInverse::Call(target, rest) => {
                let mut args = vec![Arg::Value(new)];
                args.extend(rest.iter().cloned());
                (target.clone(), args)
            }
            ViewInverse::Scatter(target, rest) => {
                let base = self.read(out, parent);
                let mut args = vec![Arg::Value(base), Arg::Value(new)];
                args.extend(rest.iter().cloned());
                (target.clone(), args)
            }
        };
        let v = &self.views[parent.0];
        let ty = ValueType::Tensor(v.meta.clone());
        Ok(out.call(target, args, [(v.name.as_str(), ty)], origin)[0])
    }
}
