//! Exchanges of a program: they follow what they depend on, those that may wait stand side by side, and nothing touches their memory
//! until they have been waited for. What a program computes is compared with its graph over the group of the rank alone.

use std::collections::BTreeMap;
use std::fmt::Write;

use fx_ir::{Graph, NodeKind, OutputKind};
use kernel_ir::{BufId, ExternCall, ExternOp, Footprint, Program, Step, side_by_side};
use tensor::Tensor;

/// A training step of a chain of `layers` products of square matrices: gradients are exchanged, and updates read them, each where
/// it is computed or all `behind` the backward.
fn training(layers: usize, n: usize, behind: bool) -> String {
    let t = format!("f32[{n}, {n}]");
    let mut g = format!("fx 1.0\n\ngraph \"g\" {{\n  %y0: {t} = input \"x\"\n");
    (0..layers).for_each(|l| writeln!(g, "  %w{l}: {t} = buffer \"w{l}\"").unwrap());
    for l in 0..layers {
        writeln!(g, "  %y{}: {t} = prims.matmul(%y{l}, %w{l})", l + 1).unwrap();
    }
    writeln!(g, "  %d{layers}: {t} = prims.mul(%y{layers}, 0.5)").unwrap();
    let mut updates = String::new();
    for l in (0..layers).rev() {
        let d = l + 1;
        writeln!(g, "  %yt{l}: {t} = prims.permute(%y{l}, [1, 0])").unwrap();
        writeln!(g, "  %g{l}: {t} = prims.matmul(%yt{l}, %d{d})").unwrap();
        let to = if behind { &mut updates } else { &mut g };
        writeln!(to, "  %e{l}: {t} = prims.all_reduce(%g{l}, \"sum\", \"dp\")").unwrap();
        writeln!(to, "  %s{l}: {t} = prims.mul(%e{l}, -0.01)").unwrap();
        writeln!(to, "  %u{l}: {t} = prims.add(%w{l}, %s{l})").unwrap();
        writeln!(g, "  %wt{l}: {t} = prims.permute(%w{l}, [1, 0])").unwrap();
        writeln!(g, "  %d{l}: {t} = prims.matmul(%d{d}, %wt{l})").unwrap();
    }
    g += &updates;
    (0..layers).for_each(|l| writeln!(g, "  return buffer \"w{l}\" = %u{l}").unwrap());
    g + "  return %d0\n}\n"
}

/// A text with other lines in place of the calls of a target whose names begin so, made of the rest of the name and of what is
/// behind the colon.
fn replaced(text: &str, name: &str, target: &str, by: impl Fn(&str, &str) -> String) -> String {
    let one = |line: &str| {
        let rest = line.trim().strip_prefix(name).filter(|_| line.contains(target));
        rest.and_then(|rest| rest.split_once(':')).map_or(line.to_owned(), |(l, call)| by(l, call))
    };
    text.lines().map(one).collect::<Vec<_>>().join("\n") + "\n"
}

/// A chain of products whose weights are gathered where they are used.
fn gathered(layers: usize, n: usize) -> String {
    let t = format!("f32[{n}, {n}]");
    let mut g = format!("fx 1.0\n\ngraph \"g\" {{\n  %y0: {t} = input \"x\"\n");
    (0..layers).for_each(|l| writeln!(g, "  %w{l}: {t} = input \"w{l}\"").unwrap());
    for l in 0..layers {
        writeln!(g, "  %a{l}: f32[1, {n}, {n}] = prims.all_gather(%w{l}, 1, \"dp\")").unwrap();
        writeln!(g, "  %r{l}: {t} = prims.reshape(%a{l}, [{n}, {n}])").unwrap();
        writeln!(g, "  %y{}: {t} = prims.matmul(%y{l}, %r{l})", l + 1).unwrap();
    }
    writeln!(g, "  return %y{layers}\n}}").unwrap();
    g
}

/// Two products whose halves are added by ranks, one behind the other: each needs what the one before gave.
const CHAIN: &str = r#"fx 1.0

graph "g" {
  %x: f32[8, 8] = input "x"
  %v: f32[8, 8] = input "v"
  %w: f32[8, 8] = input "w"
  %a: f32[8, 8] = prims.matmul(%x, %v)
  %e: f32[8, 8] = prims.all_reduce(%a, "sum", "dp")
  %b: f32[8, 8] = prims.mul(%e, 0.5)
  %o: f32[8, 8] = prims.matmul(%x, %x)
  %c: f32[8, 8] = prims.matmul(%b, %w)
  %f: f32[8, 8] = prims.all_reduce(%c, "sum", "dp")
  %y: f32[8, 8] = prims.add(%f, %o)
  return %y
}
"#;

fn compiled(text: &str) -> Program {
    compiled_by(text, false)
}

fn compiled_by(text: &str, apart: bool) -> Program {
    let graph: Graph = text.parse().unwrap();
    fx_ir::verify(&graph, &prims::prim_legality()).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    let options = inductor::Options { written: inductor::buffer_writes(&graph), apart, ..Default::default() };
    let program = inductor::compile(&graph, &options).unwrap();
    kernel_ir::verify(&program).unwrap_or_else(|e| panic!("{e}\n{program}"));
    assert_eq!(program.to_string().parse::<Program>().unwrap(), program);
    program
}

/// The numbers of exchanges that stand side by side, in their order.
fn runs(program: &Program) -> Vec<usize> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(step) = program.steps.get(at) {
        let exchange = matches!(step, Step::Extern(ExternCall { op: ExternOp::Collective(_), .. }));
        let count = side_by_side(&program.steps[at..]);
        exchange.then(|| all.push(count));
        at += count;
    }
    all
}

fn kinds(program: &Program) -> String {
    let one = |s: &Step| match s {
        Step::Extern(ExternCall { op: ExternOp::Collective(c), .. }) => {
            if c.asynchronous {
                'e'
            } else {
                'E'
            }
        }
        Step::Extern(ExternCall { op: ExternOp::Wait, .. }) => 'w',
        Step::Matmul(_) => 'm',
        Step::Together(_) => 't',
        _ => 'l',
    };
    program.steps.iter().map(one).collect()
}

/// What holds of every program: all exchanges of the graph are there, every one that is started is waited for, and until then nobody
/// reads or writes its result or writes its operand, nor has their memory.
fn check(text: &str, program: &Program) -> Vec<usize> {
    let graph: Graph = text.parse().unwrap();
    let exchanges = |kind: &NodeKind| match kind {
        NodeKind::Call { target, .. } => target.contains("all_reduce") || target.contains("all_gather"),
        NodeKind::Placeholder { .. } => false,
    };
    let wanted = graph.order.iter().filter(|id| exchanges(&graph.nodes[**id].kind)).count();
    let mut open: BTreeMap<BufId, (BufId, usize)> = BTreeMap::new();
    let mut seen = Vec::new();
    let root = |o: &kernel_ir::Operand| program.root(o.buf);
    for (n, step) in program.steps.iter().enumerate() {
        let used = Footprint::of(program, step);
        match step {
            Step::Extern(ExternCall { op: ExternOp::Wait, inputs, outputs, .. }) => {
                let (operand, from) = open.remove(&root(&outputs[0])).expect("it was started");
                assert_eq!(operand, root(&inputs[0]));
                for live in
                    program.plan.lives.iter().filter(|l| l.buf == operand || l.buf == root(&outputs[0]))
                {
                    assert!(
                        live.first as usize <= from && live.last as usize >= n,
                        "{live:?}: {from}..{n}\n{program}"
                    );
                }
            }
            _ => {
                for (result, (operand, _)) in &open {
                    let touched = used.reads.contains(result)
                        || used.writes.contains(result)
                        || used.writes.contains(operand);
                    assert!(!touched, "`{}` touches what is exchanged\n{program}", step.name());
                }
            }
        }
        if let Step::Extern(ExternCall { op: ExternOp::Collective(c), inputs, outputs, name, .. }) = step {
            seen.push(name.clone());
            if c.asynchronous {
                open.insert(root(&outputs[0]), (root(&inputs[0]), n));
            }
        }
    }
    assert!(open.is_empty(), "not waited for: {open:?}\n{program}");
    assert_eq!(seen.len(), wanted, "{program}");
    let mut unique = seen.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), wanted, "{program}");
    places(text, &seen)
}

/// Where the graph has these calls.
fn places(text: &str, names: &[String]) -> Vec<usize> {
    names.iter().map(|name| text.find(&format!("%{name}: ")).expect("a call of the graph")).collect()
}

/// The same program over one rank: an exchange that is started spoils its result, and the wait for it copies the operand.
fn alone(program: &Program) -> Program {
    let text = program.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let (mut out, mut at) = (String::new(), 0);
    while let Some(line) = lines.get(at) {
        at += 1;
        let exchange = line.starts_with("extern ") && (line.contains(" group ") || line.contains(" wait"));
        if !exchange {
            out += &format!("{line}\n");
            continue;
        }
        let name = line.split('"').nth(1).unwrap();
        let operand = |line: &str| -> (String, usize, String) {
            let (buffer, rest) = line.trim().split_once(' ').unwrap().1.split_once('[').unwrap();
            let sizes = rest.split(']').next().unwrap();
            (buffer.to_owned(), sizes.split(',').count(), sizes.to_owned())
        };
        let ((from, rank, _), (to, ranks, sizes)) = (operand(lines[at]), operand(lines[at + 1]));
        at += 2;
        let all = ["i0", "i1", "i2"][..ranks].join(", ");
        let own = ["i0", "i1", "i2"][ranks - rank..ranks].join(", ");
        let value =
            if line.contains(" started") { "const 12345.0".into() } else { format!("load {from}[{own}]") };
        out += &format!(
            "loop \"{name}\" outer [{sizes}]\n  stage []\n    v0: f32 = {value}\n    v1: f32 = store {to}[{all}], v0\n"
        );
    }
    out.parse().unwrap_or_else(|e| panic!("{e}\n{out}"))
}

/// Whether the program gives what the graph does, over one rank, in an arena of its plan.
fn same_values(text: &str, program: &Program) {
    let graph: Graph = text.replace("\"dp\"", "\"self\"").replace("\"tp\"", "\"self\"").parse().unwrap();
    let program = alone(program);
    let sizes =
        |v| graph.meta(v).unwrap().static_sizes().unwrap().iter().map(|s| *s as usize).collect::<Vec<_>>();
    let all: Vec<Tensor> = graph
        .inputs()
        .map(|(v, _, name)| tensor::formula::fill(name, &sizes(v), 0.5, 0.0).unwrap())
        .collect();
    let wanted = interp::run(&graph, &all).unwrap();
    let options = interp::kernels::Options { planned_arena: true };
    let names: Vec<String> = graph.inputs().map(|(_, _, name)| name.to_owned()).collect();
    let named = |name: &str| names.iter().position(|n| n == name).map(|n| all[n].clone());
    let mut inputs: Vec<Tensor> = program.inputs.iter().map(|i| named(&i.name).unwrap()).collect();
    let code = interp::kernels::Executable::new(program.clone(), &named, options).unwrap();
    let mut outputs = code.call_written(&mut inputs).unwrap().into_iter();
    for (output, wanted) in graph.outputs.iter().zip(&wanted) {
        let got = match &output.kind {
            OutputKind::BufferMutation(name) => {
                inputs[program.inputs.iter().position(|i| i.name == *name).unwrap()].clone()
            }
            _ => outputs.next().unwrap(),
        };
        tensor::allclose(&got, wanted, 1e-4, 1e-4)
            .unwrap_or_else(|m| panic!("{:?}: {m}\n{program}", output.kind));
    }
}

/// The two sums of a normalisation's gradient, each of which is exchanged as soon as it is there.
const TWO_SUMS: &str = r#"fx 1.0

graph "g" {
  %x: f32[4, 16] = input "x"
  %y: f32[4, 16] = input "y"
  %s: f32[16] = prims.sum(%x, [0])
  %a: f32[16] = prims.all_reduce(%s, "sum", "dp")
  %p: f32[4, 16] = prims.mul(%x, %y)
  %t: f32[16] = prims.sum(%p, [0])
  %b: f32[16] = prims.all_reduce(%t, "sum", "dp")
  return %a
  return %b
}
"#;

#[test]
fn sums_that_are_exchanged_at_once_are_one_walk() {
    let program = compiled(TWO_SUMS);
    check(TWO_SUMS, &program);
    same_values(TWO_SUMS, &program);
    let kinds = kinds(&program);
    assert!(kinds.starts_with("leew"), "{kinds}\n{program}");
}

#[test]
fn gradients_are_exchanged_together_and_updates_stand_behind() {
    let text = training(7, 16, false);
    let program = compiled(&text);
    check(&text, &program);
    same_values(&text, &program);
    assert_eq!(runs(&program), [7], "{}", kinds(&program));
    // All are waited for at once, and all updates are one step.
    assert!(kinds(&program).ends_with("wwwwwwwt"), "{}", kinds(&program));
    // 4 MiB each: the first is a bucket that is full at once, 6 of the others have 24 MiB.
    for behind in [false, true] {
        let text = training(10, 1024, behind);
        let program = compiled(&text);
        check(&text, &program);
        assert_eq!(runs(&program), [1, 6, 3], "{}", kinds(&program));
        // A bucket is waited for when the next one has been started: products run beside every bucket but the last.
        let kinds = kinds(&program);
        let first = kinds.find('e').unwrap();
        let beside = kinds[first..].split('w').next().unwrap().matches('m').count();
        assert!(beside >= 6, "{kinds}");
    }
}

#[test]
fn weights_are_gathered_together_and_ahead_of_their_readers() {
    let text = gathered(6, 16);
    let program = compiled(&text);
    check(&text, &program);
    same_values(&text, &program);
    assert_eq!(runs(&program), [6], "{}", kinds(&program));
    // 16 MiB each: every one is a bucket, and each is started before those who read the one before.
    let text = gathered(4, 2048);
    let program = compiled(&text);
    check(&text, &program);
    let kinds = kinds(&program);
    // Nothing runs beside the first one.
    assert_eq!(kinds, "Eemwemwemwm");
}

#[test]
fn what_costly_steps_need_at_once_is_not_postponed() {
    let program = compiled(CHAIN);
    check(CHAIN, &program);
    same_values(CHAIN, &program);
    assert_eq!(runs(&program), [1, 1], "{}", kinds(&program));
}

#[test]
fn exchanges_of_other_groups_part_nothing() {
    let text = training(6, 16, false);
    let at = text.find("%e2").unwrap();
    let text = format!("{}{}", &text[..at], text[at..].replacen("\"dp\"", "\"tp\"", 1));
    let program = compiled(&text);
    check(&text, &program);
    same_values(&text, &program);
    let mut runs = runs(&program);
    runs.sort_unstable();
    assert_eq!(runs, [1, 5], "{}", kinds(&program));
}

#[test]
fn sums_over_two_axes_are_two_buckets() {
    // A gradient is summed over one axis, and its sum over another one.
    let text = training(6, 16, false);
    let twice = replaced(&text, "%e", "all_reduce", |l, call| {
        let first = call.replace("\"dp\"", "\"tp\"");
        format!("  %h{l}:{first}\n  %e{l}: f32[16, 16] = prims.all_reduce(%h{l}, \"sum\", \"dp\")")
    });
    let program = compiled(&twice);
    check(&twice, &program);
    same_values(&twice, &program);
    assert_eq!(runs(&program), [6, 6], "{}", kinds(&program));
}

#[test]
fn gradients_are_one_bucket_though_activations_are_summed_between() {
    // What the backward passes on is summed over another axis, and needed at once.
    let text = training(6, 16, false);
    let both = replaced(&text, "%d", "prims.matmul", |l, call| {
        format!("  %p{l}:{call}\n  %d{l}: f32[16, 16] = prims.all_reduce(%p{l}, \"sum\", \"tp\")")
    });
    let program = compiled(&both);
    check(&both, &program);
    same_values(&both, &program);
    let mut runs = runs(&program);
    runs.sort_unstable();
    assert_eq!(runs, [1, 1, 1, 1, 1, 1, 6], "{}", kinds(&program));
}

/// A generator without state elsewhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// Some values, each of earlier ones, with exchanges among them; some are new values of buffers.
fn random(seed: u64) -> String {
    let mut r = Numbers(seed);
    let t = "f32[4, 4]";
    let (inputs, buffers, count) = (2, 1 + r.below(3), 6 + r.below(20));
    let mut g = "fx 1.0\n\ngraph \"g\" {\n".to_owned();
    let mut names: Vec<String> = Vec::new();
    for n in 0..inputs + buffers {
        let (name, kind) = if n < inputs { (format!("x{n}"), "input") } else { (format!("b{n}"), "buffer") };
        writeln!(g, "  %{name}: {t} = {kind} \"{name}\"").unwrap();
        names.push(name);
    }
    for n in 0..count {
        // Recent values more often than others.
        let recent = names.len().min(6);
        let mut one = || match r.below(3) {
            0 => r.below(names.len()),
            _ => names.len() - 1 - r.below(recent),
        };
        let (a, b) = (&names[one()].clone(), &names[one()].clone());
        let call = match r.below(6) {
            0 => format!("prims.matmul(%{a}, %{b})"),
            1 => format!("prims.add(%{a}, %{b})"),
            2 => format!("prims.mul(%{a}, 0.5)"),
            3 => {
                format!("prims.all_reduce(%{a}, \"max\", \"{}\")", if r.below(2) == 0 { "tp" } else { "dp" })
            }
            _ => format!("prims.all_reduce(%{a}, \"sum\", \"dp\")"),
        };
        writeln!(g, "  %v{n}: {t} = {call}").unwrap();
        names.push(format!("v{n}"));
    }
    let first = inputs + buffers;
    let mut results = vec![format!("%v{}", count - 1)];
    for n in inputs..first {
        let new = &names[first + r.below(count)];
        if !results.iter().any(|o| o.ends_with(&format!("%{new}"))) {
            results.push(format!("buffer \"b{n}\" = %{new}"));
        }
    }
    results.iter().for_each(|r| writeln!(g, "  return {r}").unwrap());
    g + "}\n"
}

#[test]
fn random_programs_keep_their_order_and_values() {
    let mut together = 0;
    for seed in 0..300 {
        let text = random(seed);
        let program = compiled(&text);
        check(&text, &program);
        same_values(&text, &program);
        together += usize::from(runs(&program).iter().any(|n| *n > 1));
        let program = compiled_by(&text, true);
        let order = check(&text, &program);
        assert!(order.is_sorted(), "{order:?}\n{program}");
        same_values(&text, &program);
        assert!(runs(&program).iter().all(|n| *n == 1), "{program}");
    }
    assert!(together > 50, "{together} programs have exchanges side by side");
}
