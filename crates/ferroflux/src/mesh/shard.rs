//! The stage behind `optimized` for a rank of a mesh: the whole graph becomes that of the rank, and weights become parts.

use std::collections::BTreeMap;

use fx_ir::{Graph, InputKind};
use kernel_ir::{ExternOp, Program, Step, side_by_side};
use plugin_host::{LoadedExecutable, Value};
use sharding::{Link, Mesh, Part, Plan, Spec, localize, propagate, spec};
use tensor::Tensor;
use tracing::info_span;

use super::regions::{PartPlace, Region, Window, copy, numbers};
use super::{BatchGroups, Member};
use crate::Error;
use crate::pipeline::{KernelOptions, Kernels};

/// How a compilation uses a mesh.
#[derive(Clone, Debug)]
pub(crate) struct MeshOptions {
    /// This rank.
    pub(crate) member: Member,
    /// What the user fixed; `None` is what the axes' names suggest.
    pub(crate) plan: Option<Plan>,
    /// Placements by pattern, which come before the plan's.
    pub(crate) placements: Vec<(String, String)>,
    /// Figures of links by axis, which come before the plan's.
    pub(crate) links: BTreeMap<String, Link>,
}

/// The graph of a rank.
pub(crate) struct Sharded {
    pub(crate) graph: Graph,
    pub(crate) parts: Parts,
}

/// Which parts of the weights and of the state a rank has, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    member: Option<Member>,
    all: BTreeMap<String, Split>,
}

/// A tensor of which a rank has a part.
#[derive(Clone, Debug)]
struct Split {
    spec: Spec,
    whole: Vec<usize>,
    own: Part,
}

impl MeshOptions {
    /// The plan, with the placements that were given one by one.
    pub(crate) fn whole_plan(&self, mesh: &Mesh) -> Result<Plan, Error> {
        let usual = || if self.placements.is_empty() { Plan::usual(mesh) } else { Plan::default() };
        let rest = self.plan.clone().unwrap_or_else(usual);
        let mut plan = Plan { placements: Vec::new(), ..rest.clone() };
        plan.links.extend(self.links.clone());
        for (pattern, placements) in &self.placements {
            plan.place(pattern, placements)?;
        }
        plan.placements.extend(rest.placements);
        Ok(plan)
    }

    /// The graph of this rank. `forward` is the program without its backward pass.
    ///
    /// # Errors
    /// A plan that does not fit the program, calls without a local form, batch norms whose groups ranks do not have.
    pub(crate) fn shard(
        &self,
        graph: &Graph,
        forward: &Graph,
        groups: &BatchGroups,
    ) -> Result<Sharded, Error> {
        let _span = info_span!("shard").entered();
        let mesh = self.member.mesh();
        let plan = self.whole_plan(mesh)?;
        let costs = plan.costs(mesh)?;
        let fixed = plan.resolve(graph, forward, mesh, &costs)?;
        let layout = propagate(graph, mesh, &fixed, &costs)?;
        groups.check(graph, &layout)?;
        for (node, target, why) in &layout.gathered {
            tracing::info!(target: "sharding", node, target, "runs on whole tensors: {why}");
        }
        let local = localize(graph, mesh, &layout, &self.member.coordinates())?;
        if cfg!(debug_assertions) {
            fx_ir::well_formed(&local.graph).map_err(Error::Graph)?;
        }
        let mut parts = Parts { member: Some(self.member.clone()), all: BTreeMap::new() };
        for (v, kind, name) in graph.inputs().filter(|(_, kind, _)| *kind != InputKind::User) {
            let spec = layout.values.get(&v).filter(|s| !spec::is_whole(s));
            let (Some(spec), Some(part), Some(meta)) = (spec, local.parts.get(name), graph.meta(v)) else {
                continue;
            };
            debug_assert_ne!(kind, InputKind::Seed);
            let sizes = meta.static_sizes().unwrap_or_default();
            let whole = sizes.iter().map(|s| *s as usize).collect();
            parts.all.insert(name.to_owned(), Split { spec: spec.clone(), whole, own: part.clone() });
        }
        Ok(Sharded { graph: local.graph, parts })
    }

    /// Compiles this rank's graph and gives the executable its groups; every rank of the mesh calls it for the same program. Where
    /// ranks order exchanges differently or bring others together, because parts of different sizes were fused in other ways, they
    /// keep those of the graph.
    ///
    /// # Errors
    /// Those of `compile`; ranks with other exchanges.
    pub(crate) fn compile(
        &self,
        options: &KernelOptions,
        compile: impl Fn(&KernelOptions) -> Result<(Kernels, LoadedExecutable), Error>,
    ) -> Result<(Kernels, LoadedExecutable), Error> {
        let (kernels, mut executable) = compile(options)?;
        let Some(what) = self.attach(&mut executable, &kernels.program)? else {
            return Ok((kernels, executable));
        };
        tracing::info!(target: "sharding", "exchanges stay apart: {what}");
        let (kernels, mut executable) = compile(&KernelOptions { apart: true, ..options.clone() })?;
        match self.attach(&mut executable, &kernels.program)? {
            None => Ok((kernels, executable)),
            Some(what) => Err(Error::Mesh(what)),
        }
    }

    /// Gives an executable its groups, and tells what is different on another rank.
    fn attach(&self, executable: &mut LoadedExecutable, program: &Program) -> Result<Option<String>, Error> {
        let mut all = Vec::new();
        exchanges(&program.steps, &mut all);
        self.member.attach(executable, &all)
    }
}

/// An exchange of a program, by which ranks compare theirs.
pub(super) struct Exchange {
    pub(super) group: String,
    /// What all ranks must agree about.
    pub(super) op: String,
    /// What those of the group must agree about besides: parts of different sizes make programs of different sizes.
    pub(super) sizes: String,
    /// How many from this one on stand side by side.
    pub(super) beside: usize,
}

/// A name without the numbers that make it unique in the graph of one rank.
fn stem(name: &str) -> &str {
    name.trim_end_matches(|c: char| c == '_' || c.is_ascii_digit())
}

/// The exchanges of a list of steps, in order.
fn exchanges(steps: &[Step], into: &mut Vec<Exchange>) {
    let mut beside = 0;
    for (n, step) in steps.iter().enumerate() {
        beside = if beside > 1 { beside - 1 } else { side_by_side(&steps[n..]) };
        if let Step::Extern(call) = step
            && let ExternOp::Collective(c) = &call.op
        {
            let sizes = format!("{:?}", call.inputs.first().map(|o| &o.sizes));
            into.push(Exchange {
                group: c.group.to_string(),
                op: format!("{:?} in {}", c.op, stem(&call.name)),
                sizes,
                beside,
            });
        }
        step.nested().into_iter().for_each(|list| exchanges(list, into));
    }
}

impl Parts {
    /// The rank's part of a tensor, as a view where it is one range of it; the tensor itself where the rank has the whole.
    pub(crate) fn cut(&self, name: &str, tensor: &Tensor) -> Result<Tensor, Error> {
        let Some(split) = self.all.get(name) else { return Ok(tensor.clone()) };
        if tensor.sizes() != split.whole {
            let (is, wanted) = (tensor.sizes(), &split.whole);
            return Err(Error::Snapshot(format!(
                "`{name}` has sizes {is:?}, the whole tensor has {wanted:?}"
            )));
        }
        let (place, sizes) = split.place()?;
        let regions = place.regions(&sizes);
        let range = |r: &Region| -> Result<Tensor, Error> {
            let dims = r.first.iter().zip(&r.sizes).enumerate();
            dims.into_iter().try_fold(tensor.clone(), |t, (dim, (first, n))| Ok(t.narrow(dim, *first, *n)?))
        };
        if let [one] = &regions[..] {
            return range(one);
        }
        let width = tensor.dtype().size();
        let mut bytes = vec![0u8; sizes.iter().product::<usize>() * width];
        for r in &regions {
            let origin = vec![0; r.sizes.len()];
            let (into, from) =
                (Window { sizes: &sizes, first: &r.at }, Window { sizes: &r.sizes, first: &origin });
            copy((&mut bytes, &into), (&bytes_of(&range(r)?)?, &from), &r.sizes, width);
        }
        of_bytes(&bytes, tensor.dtype(), &sizes)
    }

    /// The same for a value; those on a device are whole.
    pub(crate) fn cut_value(&self, name: &str, value: Value) -> Result<Value, Error> {
        match value {
            Value::Host(tensor) => Ok(Value::Host(self.cut(name, &tensor)?)),
            Value::Device(_) if self.all.contains_key(name) => {
                Err(Error::Internal(format!("`{name}` is on a device before it is cut")))
            }
            device => Ok(device),
        }
    }

    /// The part of a tensor that the rank has; `None` where it has the whole.
    pub(crate) fn get(&self, name: &str) -> Option<&Part> {
        self.all.get(name).map(|split| &split.own)
    }

    /// Where the rank's part of a tensor lies, and its sizes; `None` where it has the whole.
    pub(crate) fn placed(&self, name: &str) -> Result<Option<(PartPlace, Vec<usize>)>, Error> {
        self.all.get(name).map(Split::place).transpose()
    }

    /// Sizes of the rank's part of a tensor that has these sizes.
    pub(crate) fn sizes(&self, name: &str, whole: &[usize]) -> Vec<usize> {
        self.get(name).and_then(|p| numbers(&p.sizes).ok()).unwrap_or_else(|| whole.to_vec())
    }

    /// Whether this rank is the first of those that have its part of a tensor.
    pub(crate) fn keeps(&self, name: &str) -> bool {
        let Some(member) = &self.member else { return true };
        let Some(split) = self.all.get(name) else { return member.rank() == 0 };
        split.spec.iter().zip(member.coordinates()).all(|(p, at)| p.dim().is_some() || at == 0)
    }

    /// The rank's part of a tensor, from parts that others made.
    pub(crate) fn assembled(
        &self,
        name: &str,
        pieces: &[(&Tensor, Option<&PartPlace>)],
    ) -> Result<Tensor, Error> {
        let wrong = |what: &str| Error::Snapshot(format!("the parts of `{name}` {what}"));
        let &[(first, place), ref rest @ ..] = pieces else { return Err(wrong("are missing")) };
        let Some(place) = place else {
            return if rest.is_empty() {
                self.cut(name, first)
            } else {
                Err(wrong("are not of one snapshot"))
            };
        };
        let (whole, dtype) = (&place.whole, first.dtype());
        let (own, sizes) = match self.all.get(name) {
            Some(split) if split.whole != *whole => return Err(wrong("are of a tensor of other sizes")),
            Some(split) => split.place()?,
            None => {
                let (whole, first) = (whole.clone(), vec![0; whole.len()]);
                (PartPlace { whole: whole.clone(), first, pieces: BTreeMap::new() }, whole)
            }
        };
        let own = own.regions(&sizes);
        let mut bytes = vec![0u8; sizes.iter().product::<usize>() * dtype.size()];
        let mut missing = sizes.iter().product::<usize>();
        for (tensor, place) in pieces {
            let fits = |p: &&PartPlace| p.whole == *whole && p.fits(tensor.sizes());
            let place = place.filter(|p| fits(p) && tensor.dtype() == dtype);
            let place = place.ok_or_else(|| wrong("are not of one snapshot"))?;
            for (mine, theirs) in pairs(&own, &place.regions(tensor.sizes())) {
                let Some(common) = mine.common(theirs) else { continue };
                let mut part = (*tensor).clone();
                for (dim, (first, length)) in common.other.iter().zip(&common.sizes).enumerate() {
                    part = part.narrow(dim, *first, *length)?;
                }
                let origin = vec![0; sizes.len()];
                let into = Window { sizes: &sizes, first: &common.own };
                let from = Window { sizes: &common.sizes, first: &origin };
                copy((&mut bytes, &into), (&bytes_of(&part)?, &from), &common.sizes, dtype.size());
                missing = missing.saturating_sub(common.sizes.iter().product());
            }
        }
        if missing > 0 {
            return Err(wrong("do not cover it: some are missing"));
        }
        of_bytes(&bytes, dtype, &sizes)
    }

    /// The whole tensor from the parts of all ranks; the tensor itself where the rank has the whole. Every rank calls it.
    pub(crate) fn gather(&self, name: &str, own: Tensor) -> Result<Tensor, Error> {
        let (Some(split), Some(member)) = (self.all.get(name), &self.member) else { return Ok(own) };
        let sizes: Vec<ir_core::SymExpr> = split.whole.iter().map(|s| (*s as i64).into()).collect();
        let mesh = member.mesh();
        let part = |rank: usize| {
            let part = spec::part(mesh, &split.spec, &sizes, &mesh.coordinates(rank));
            Ok((PartPlace::of(&part, &split.whole)?, numbers(&part.sizes)?))
        };
        let parts = (0..mesh.ranks()).map(part).collect::<Result<Vec<_>, Error>>()?;
        let width = own.dtype().size();
        let largest = parts.iter().map(|(_, sizes)| sizes.iter().product::<usize>() * width).max();
        let mut sent = bytes_of(&own)?;
        sent.resize(largest.unwrap_or(0), 0);
        let received = member.all_gather(&sent)?;
        let mut whole = vec![0u8; split.whole.iter().product::<usize>() * width];
        for ((place, sizes), from) in parts.iter().zip(&received) {
            for r in place.regions(sizes) {
                let into = Window { sizes: &split.whole, first: &r.first };
                copy((&mut whole, &into), (from, &Window { sizes, first: &r.at }), &r.sizes, width);
            }
        }
        of_bytes(&whole, own.dtype(), &split.whole)
    }
}

impl Split {
    /// Where the rank's part lies, and its sizes.
    fn place(&self) -> Result<(PartPlace, Vec<usize>), Error> {
        Ok((PartPlace::of(&self.own, &self.whole)?, numbers(&self.own.sizes)?))
    }
}

/// Every region of one list with every one of another.
fn pairs<'a>(a: &'a [Region], b: &'a [Region]) -> impl Iterator<Item = (&'a Region, &'a Region)> {
    a.iter().flat_map(move |x| b.iter().map(move |y| (x, y)))
}

/// The elements of a tensor in row-major order.
fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, Error> {
    let tensor = tensor.contiguous()?;
    Ok(tensor::with_element!(tensor.dtype(), T => {
        let values = tensor.to_vec::<T>()?;
        // SAFETY: elements are plain numbers without padding, and as many as the bytes say.
        unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(&values[..])) }.to_vec()
    }))
}

/// A tensor of elements in row-major order.
fn of_bytes(bytes: &[u8], dtype: ir_core::DType, sizes: &[usize]) -> Result<Tensor, Error> {
    let mut tensor = Tensor::zeros(dtype, sizes)?;
    tensor::with_element!(dtype, T => {
        if let Some(slice) = tensor.as_mut_slice::<T>() {
            let count = bytes.len().min(size_of_val(slice));
            // SAFETY: elements are plain numbers: every pattern of bytes that another tensor of this dtype had is one. Both
            // are valid for `count` bytes and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slice.as_mut_ptr().cast::<u8>(), count) }
        }
    });
    Ok(tensor)
}
