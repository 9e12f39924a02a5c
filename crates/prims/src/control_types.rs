//! Type checks of control flow: the operands of a call against the placeholders of its subgraphs, and their results against
//! the types that the graph states for the call. Control flow has no entry in the table with a meta rule. Symbols known
//! only at the call are not checked here.

use fx_ir::{Arg, Graph, InputKind, SubgraphId, ValueType};
use ir_core::{Relation, Shape, SymExpr, TensorMeta};

use crate::OpError;

/// One operand, placeholder or result: a tensor, or anything else (a number), which is not judged.
type Part = Option<TensorMeta>;

/// Refuses a call of control flow whose types contradict each other. `types` are those of its results.
///
/// # Errors
/// [`OpError::Invalid`] that says which operand or result does not fit.
pub(crate) fn check(out: &Graph, target: &str, args: &[Arg], types: &[ValueType]) -> Result<(), OpError> {
    let call = Flow { out, target };
    let results: Vec<Part> = types.iter().map(|ty| ty.as_tensor().cloned()).collect();
    match (target.trim_start_matches("higher_order."), args) {
        ("cond", [_, Arg::Graph(then), Arg::Graph(otherwise), rest @ ..]) => {
            for g in [then, otherwise] {
                call.takes(*g, &call.parts(rest))?;
                call.same("result", &results, &call.gives(*g)?)?;
            }
            Ok(())
        }
        ("while_loop", [Arg::Graph(test), Arg::Graph(body), carried, rest @ ..]) => {
            let carried = call.parts(std::slice::from_ref(carried));
            let given: Vec<Part> = carried.iter().cloned().chain(call.parts(rest)).collect();
            call.takes(*test, &given)?;
            call.takes(*body, &given)?;
            let next = call.gives(*body)?;
            call.same("carried value", &carried, next.get(..carried.len()).unwrap_or(&next))?;
            call.same("result", &results, &carried)
        }
        ("scan", [Arg::Graph(body), carried, xs, rest @ ..]) => {
            let carried = call.parts(std::slice::from_ref(carried));
            call.looped(*body, &carried, xs, rest, &results)
        }
        ("map" | "map_impl", [Arg::Graph(body), xs, rest @ ..]) => {
            call.looped(*body, &[], xs, rest, &results)
        }
        ("associative_scan", [Arg::Graph(body), xs, rest @ ..]) => {
            let xs = call.parts(std::slice::from_ref(xs));
            let (_, slices) = call.slices(&xs)?;
            let twice = slices.iter().chain(&slices).cloned().chain(call.parts(rest));
            call.takes(*body, &twice.collect::<Vec<_>>())?;
            call.same("combination", &slices, &call.gives(*body)?)?;
            call.same("result", &results, &xs)
        }
        // Any other form is refused by the lowering or the executor.
        _ => Ok(()),
    }
}

struct Flow<'a> {
    out: &'a Graph,
    target: &'a str,
}

impl Flow<'_> {
    fn invalid(&self, what: String) -> OpError {
        OpError::Invalid { op: self.target.into(), what }
    }

    /// Operands, lists flattened.
    fn parts(&self, args: &[Arg]) -> Vec<Part> {
        let mut all = Vec::new();
        for arg in args {
            match arg {
                Arg::List(items) => all.extend(self.parts(items)),
                Arg::Value(v) => all.push(self.out.meta(*v).cloned()),
                _ => all.push(None),
            }
        }
        all
    }

    fn subgraph(&self, id: SubgraphId) -> Result<&Graph, OpError> {
        self.out
            .subgraphs
            .get(id)
            .ok_or_else(|| self.invalid(format!("names the subgraph {id}, which is not there")))
    }

    /// Whether the placeholders of a subgraph have the types of its operands.
    fn takes(&self, id: SubgraphId, given: &[Part]) -> Result<(), OpError> {
        let graph = self.subgraph(id)?;
        // The seed of a body's random numbers is not an operand.
        let operands = graph.inputs().filter(|(_, kind, _)| *kind != InputKind::Seed);
        let wanted: Vec<Part> = operands.map(|(v, _, _)| graph.meta(v).cloned()).collect();
        if wanted.len() != given.len() {
            let (name, n, m) = (&graph.name, wanted.len(), given.len());
            return Err(self.invalid(format!("gives the subgraph `{name}`, which takes {n} operands, {m}")));
        }
        self.same("operand", &wanted, given)
    }

    /// The types that a subgraph returns.
    fn gives(&self, id: SubgraphId) -> Result<Vec<Part>, OpError> {
        let graph = self.subgraph(id)?;
        let one = |arg: &Arg| if let Arg::Value(v) = arg { graph.meta(*v).cloned() } else { None };
        Ok(graph.outputs.iter().map(|o| one(&o.arg)).collect())
    }

    /// The length of the sliced operands, and the types of their slices.
    fn slices(&self, xs: &[Part]) -> Result<(SymExpr, Vec<Part>), OpError> {
        let mut length: Option<SymExpr> = None;
        let mut slices = Vec::with_capacity(xs.len());
        for x in xs {
            let Some(x) = x else { return Err(self.invalid("runs over something that is no tensor".into())) };
            let Some((n, rest)) = x.sizes.split_first() else {
                return Err(self.invalid(format!("runs over {x}, which has no dimension")));
            };
            if length.as_ref().is_some_and(|length| self.differ(length, n)) {
                return Err(self.invalid(format!("runs over tensors of different lengths, one of them {x}")));
            }
            length.get_or_insert_with(|| n.clone());
            slices.push(Some(x.with_sizes(rest.iter().cloned())));
        }
        Ok((length.ok_or_else(|| self.invalid("runs over nothing".into()))?, slices))
    }

    /// `scan` and `map`, which is a scan that carries nothing.
    fn looped(
        &self,
        body: SubgraphId,
        carried: &[Part],
        xs: &Arg,
        rest: &[Arg],
        results: &[Part],
    ) -> Result<(), OpError> {
        let (length, slices) = self.slices(&self.parts(std::slice::from_ref(xs)))?;
        let given = carried.iter().cloned().chain(slices).chain(self.parts(rest));
        self.takes(body, &given.collect::<Vec<_>>())?;
        let given = self.gives(body)?;
        let (next, ys) = given.split_at(carried.len().min(given.len()));
        self.same("carried value", carried, next)?;
        let stacked = |y: &Part| {
            let y = y.as_ref()?;
            Some(y.with_sizes(
                std::iter::once(length.clone()).chain(y.sizes.iter().cloned()).collect::<Shape>(),
            ))
        };
        let wanted: Vec<Part> = carried.iter().cloned().chain(ys.iter().map(stacked)).collect();
        self.same("result", results, &wanted)
    }

    /// Whether types agree pair by pair; the longer list may have more.
    fn same(&self, what: &str, wanted: &[Part], given: &[Part]) -> Result<(), OpError> {
        for (n, (wanted, given)) in wanted.iter().zip(given).enumerate() {
            let (Some(wanted), Some(given)) = (wanted, given) else { continue };
            let fits = wanted.dtype == given.dtype
                && wanted.rank() == given.rank()
                && !wanted.sizes.iter().zip(&given.sizes).any(|(a, b)| self.differ(a, b));
            if !fits {
                return Err(self.invalid(format!("{what} {n} is {given}, where the graph says {wanted}")));
            }
        }
        Ok(())
    }

    fn differ(&self, a: &SymExpr, b: &SymExpr) -> bool {
        let bounds = &self.out.symbols;
        a != b && Relation::Zero.decided(&(a - b), &bounds) == Some(false)
    }
}
