//! Recorded launches that run as one, like device graphs: functions and grids are fixed, arguments can be updated.

use std::sync::{Arc, Mutex};

use gpu_runtime::{Arguments, GpuError, Grid, Map, Recorder, Recording};

use crate::driver::{locked, run};
use crate::launch::Function;
use crate::memory::Memory;

/// A recorded launch.
pub(crate) struct Launched {
    function: Function,
    grid: Grid,
    words: Vec<u64>,
    maps: Vec<Map>,
}

impl Launched {
    pub(crate) fn new(function: &Function, grid: Grid, arguments: Arguments<'_>) -> Launched {
        let Arguments { words, maps } = arguments;
        Launched { function: function.clone(), grid, words: words.to_vec(), maps: maps.to_vec() }
    }
}

/// Recorded launches in order.
pub(crate) struct Graph {
    memory: Arc<Mutex<Memory>>,
    launches: Mutex<Vec<Launched>>,
    backward: bool,
}

impl Graph {
    pub(crate) fn new(memory: &Arc<Mutex<Memory>>, launches: Vec<Launched>, backward: bool) -> Graph {
        Graph { memory: Arc::clone(memory), launches: Mutex::new(launches), backward }
    }
}

impl Recording<Function> for Graph {
    fn launch(&self) -> Result<(), GpuError> {
        for Launched { function, grid, words, maps } in &*locked(&self.launches) {
            // SAFETY: the arguments are those of the recorded launch or told since, by whose callers they are valid.
            unsafe { run(&self.memory, function, *grid, Arguments { words, maps }, self.backward)? };
        }
        Ok(())
    }

    unsafe fn update(
        &self,
        n: usize,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        let mut launches = locked(&self.launches);
        let there = Recorder::nth(&launches, n)?;
        if there.grid != grid || there.function.name() != function.name() {
            let what = format!("launch {n} was not recorded with this kernel and grid");
            return Err(GpuError::Malformed(what));
        }
        launches[n] = Launched::new(function, grid, arguments);
        Ok(())
    }
}
