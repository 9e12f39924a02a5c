//! Exchanges side by side: those of one group that do not need one another become a bucket, which an engine runs as one. Each
//! first moves behind the last costly step that it depends on; their order is then that of these steps. What is
//! decided here follows from the program's dependencies and the bytes of exchanges, so that ranks with equal programs decide
//! alike; those with different ones find that out when they compare their exchanges, and compile with none brought together.
//!
//! A bucket is *late*, in the place of its last exchange, where nothing costly could use a result before: gradients, which
//! updates read. It is *early*, in the place of its first one, where operands are there by then: weights that are gathered,
//! one bucket ahead of those who read them. Loops that read a result stand behind the next bucket, or where they are needed, so
//! that an exchange has the work of one bucket for itself.
//!
//! Not here: where an exchange is waited for (`exchanges`), and who runs a bucket as one (backends).

mod flow;
mod groups;
mod placement;

use kernel_ir::{Program, Step};

use self::flow::{Exchanged, Flow};
use self::placement::Placement;

/// Inputs that have no more bytes than these are exchanged with earlier ones.
const SMALL_BYTES: i64 = 1 << 20;

/// The same steps in an order in which buckets stand side by side, each with the number of its bucket.
pub(crate) fn run(program: &Program, steps: Vec<Step>) -> Vec<(Step, Option<usize>)> {
    let steps = advanced(program, steps);
    let flow = Flow::of(program, &steps, false);
    let buckets = groups::divide(&flow);
    let order = groups::order(&flow, &buckets);
    let ends = groups::ends(&flow, &buckets, &order);
    let steps = reordered(steps, order);
    let flow = Flow::of(program, &steps, true);
    let order = Placement::new(&flow, &ends).order();
    let bucket = |number: usize| ends.partition_point(|end| *end <= number);
    let numbers: Vec<Option<usize>> = order.iter().map(|n| flow.number[*n].map(bucket)).collect();
    reordered(steps, order).into_iter().zip(numbers).collect()
}

fn reordered(steps: Vec<Step>, order: Vec<usize>) -> Vec<Step> {
    debug_assert_eq!(order.len(), steps.len(), "every step has one place");
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    order.into_iter().filter_map(|n| steps[n].take()).collect()
}

/// The same steps with every exchange behind the last costly step that it depends on: the graph has that of a gradient where its
/// update is. Exchanges of inputs stay where they are needed; small ones join those before, so that they do not stand between
/// others.
fn advanced(program: &Program, steps: Vec<Step>) -> Vec<Step> {
    let flow = Flow::of(program, &steps, false);
    let mut ready: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    // The exchanges of inputs so far; those of few bytes are made with the ones before.
    let mut inputs: Vec<&Exchanged> = Vec::new();
    for exchange in &flow.exchanges {
        match flow.ready(exchange.step) {
            Some(n) => ready[n].push(exchange.step),
            None => {
                let alike = |e: &&&Exchanged| {
                    e.group == exchange.group && flow.segments[e.step] == flow.segments[exchange.step]
                };
                let before = inputs.iter().rev().find(alike).filter(|_| exchange.bytes <= SMALL_BYTES);
                before.into_iter().for_each(|e| ready[e.step].push(exchange.step));
                // Those that were moved are no places for others.
                if before.is_none() {
                    inputs.push(exchange);
                }
            }
        }
    }
    let moved: Vec<usize> = ready.iter().flatten().copied().collect();
    let mut placement = Placement::new(&flow, &[]);
    for (n, behind) in ready.iter().enumerate() {
        if !moved.contains(&n) {
            placement.place(n);
        }
        behind.iter().for_each(|exchange| placement.place(*exchange));
    }
    reordered(steps, placement.finished())
}
