//! The extensions for programs on many ranks: an engine joins, splits and exchanges, here over one rank, because the judge has
//! one process; programs exchange over the group of the rank alone, and over a group of the plugin's own engine.

use ir_core::DType;
use kernel_ir::{Collective, CollectiveOp, Combine, ExternCall, ExternOp, SELF_GROUP, Step};
use plugin_host::{CompileArgs, DeviceId, Engine, KERNEL_IR, World};
use tensor::Tensor;

use super::Cx;
use crate::build::{Build, shape};
use crate::case::Fault;

pub(super) fn exchanges(cx: &mut Cx) -> Result<(), Fault> {
    let backend = cx.backend()?;
    let engine = backend.collectives()?;
    if engine.is_none() && !backend.runs_collectives() {
        return Err(Fault::Declined("the plugin has no extension for programs on many ranks".into()));
    }
    // An engine of a backend for devices exchanges their memory.
    let host = DeviceId { device_type: plugin_host::dlpack::DL_CPU, device_id: 0 };
    let device = if backend.has_device_memory() { backend.device()? } else { host };
    let engine = engine.as_ref().map(|engine| (engine, device));
    if let Some(engine) = engine {
        cx.case("one rank joins, splits and leaves", || joins(engine));
        cx.case("bytes go round", || {
            let all = join(engine, "bytes")?.all_gather(&[1, 2, 3])?;
            same(all == [[1, 2, 3]], "the bytes of one rank are not what it gave")
        });
        cx.case("a rank beyond the number of ranks is refused", || {
            let world = World { rank: 3, ..world(device, "beyond") };
            same(engine.0.join(&world).is_err(), "rank 3 of 1 has joined")
        });
    }
    if backend.runs_collectives() {
        for (name, op) in OPS {
            cx.case(&format!("{name} over the rank alone"), || runs(&backend, *op, SELF_GROUP, None));
            if let Some(engine) = engine {
                cx.case(&format!("{name} over a group of one"), || runs(&backend, *op, "dp", Some(engine)));
            }
        }
        cx.case("a group that was not attached is an error", || {
            let found = runs(&backend, CollectiveOp::AllReduce(Combine::Sum), "nowhere", None);
            same(found.is_err(), "a program has exchanged with a group that does not exist")
        });
    }
    Ok(())
}

/// Exchanges whose result over one rank is the operand.
const OPS: &[(&str, CollectiveOp)] = &[
    ("all_reduce", CollectiveOp::AllReduce(Combine::Mean)),
    ("all_gather", CollectiveOp::AllGather),
    ("reduce_scatter", CollectiveOp::ReduceScatter(Combine::Max)),
    ("all_to_all", CollectiveOp::AllToAll),
    ("broadcast", CollectiveOp::Broadcast { root: 0 }),
    ("shift", CollectiveOp::Shift { by: 1, wraps: true }),
];

fn same(holds: bool, otherwise: &str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::wrong(otherwise)) }
}

fn world(device: DeviceId, name: &str) -> World {
    World { rank: 0, size: 1, device, address: format!("conformance {name}"), timeout: None }
}

fn join((engine, device): (&Engine, DeviceId), name: &str) -> Result<plugin_host::Communicator, Fault> {
    Ok(engine.join(&world(device, name))?)
}

fn joins(engine: (&Engine, DeviceId)) -> Result<(), Fault> {
    for _ in 0..3 {
        let all = join(engine, "joins")?;
        let half = all.split(5, 7, (0, 1))?;
        // A group may be left in any order.
        drop(all);
        same(half.all_gather(&[9])? == [[9]], "a group does not outlive the one that it was split from")?;
    }
    Ok(())
}

/// Runs a program of one exchange that is started and waited for, and compares its result with its operand.
fn runs(
    backend: &plugin_host::LoadedBackend,
    op: CollectiveOp,
    group: &str,
    engine: Option<(&Engine, DeviceId)>,
) -> Result<(), Fault> {
    let (takes, gives) = op.blocks();
    let sizes = |many: bool| if many { shape(&[1, 4, 3]) } else { shape(&[4, 3]) };
    let mut b = Build::new("exchange");
    let (from, to) = (b.input(DType::F32, sizes(takes)), b.output(DType::F32, sizes(gives)));
    let collective = Collective { op, group: group.to_owned(), asynchronous: true };
    for (name, op) in [("start", ExternOp::Collective(collective)), ("wait", ExternOp::Wait)] {
        let (inputs, outputs) = (vec![b.whole(from)], vec![b.whole(to)]);
        b.program.steps.push(Step::Extern(ExternCall {
            name: name.into(),
            origins: vec![],
            op,
            inputs,
            outputs,
        }));
    }
    let bytes = b.finish().to_bytes();
    let mut executable = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes))?;
    let joined = engine.map(|engine| join(engine, "program")).transpose()?;
    if let Some(group_of_one) = &joined {
        executable.attach_groups(&[(group, group_of_one)])?;
    }
    // The executable keeps its groups.
    drop(joined);
    let values: Vec<f32> = (0..12).map(|n| n as f32 - 5.5).collect();
    let given = if takes { &[1, 4, 3][..] } else { &[4, 3] };
    let input = Tensor::from_vec(values.clone(), given).map_err(|e| Fault::wrong(e.to_string()))?;
    let results = executable.execute(&[&input])?;
    let found = results.first().and_then(|t| t.to_vec::<f32>().ok()).unwrap_or_default();
    same(found == values, "the result over one rank is not its operand")
}
