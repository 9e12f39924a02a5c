//! The parts of `ferroflux train` besides the compiled step: batches, checkpoints, schedules by name, the options of a
//! step, the loss plot, the display of progress.

pub(crate) mod checkpoint;
pub(crate) mod data;
pub(crate) mod display;
pub(crate) mod evaluate;
pub(crate) mod plot;
pub(crate) mod schedule;
pub(crate) mod step;
