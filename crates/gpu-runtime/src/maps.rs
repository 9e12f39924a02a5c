//! The arguments of a launch: words, and evaluated tensor maps. The driver encodes the maps at each launch, so that they
//! follow their buffer's address, in recorded launches too.

use gpu_codegen::{Param, TensorMap};
use ir_core::{DType, SymExpr};

use crate::GpuError;

/// Maximum number of dimensions of a tensor map.
const MAX_DIMENSIONS: usize = 5;

/// The arguments of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// One word per parameter, in order: an address or a number. For a tensor map: the address of its buffer's memory.
    pub words: &'a [u64],
    /// The tensor maps among the parameters.
    pub maps: &'a [Map],
}

impl<'a> Arguments<'a> {
    /// The arguments of a kernel without tensor maps.
    pub fn plain(words: &'a [u64]) -> Arguments<'a> {
        Arguments { words, maps: &[] }
    }

    /// The address of the first element of a map's tensor.
    pub fn start(&self, map: &Map) -> u64 {
        self.words.get(map.param).map_or(0, |base| base + map.offset)
    }
}

/// An evaluated tensor map ([`TensorMap`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// The index of its parameter.
    pub param: usize,
    /// Dtype of its elements.
    pub dtype: DType,
    /// Bytes from the buffer's memory to the first element.
    pub offset: u64,
    /// Number of dimensions. The lists below have this many valid entries, the innermost dimension first.
    pub rank: usize,
    /// Sizes.
    pub sizes: [u64; MAX_DIMENSIONS],
    /// Strides in bytes.
    pub strides: [u64; MAX_DIMENSIONS],
    /// Sizes of the box that one copy transfers.
    pub window: [u32; MAX_DIMENSIONS],
}

impl Map {
    /// Evaluates the maps of a kernel.
    ///
    /// # Errors
    /// An expression that `size` cannot evaluate; a map that no driver supports.
    pub fn of(
        params: &[Param],
        maps: &[TensorMap],
        size: &dyn Fn(&SymExpr) -> Result<i64, GpuError>,
    ) -> Result<Vec<Map>, GpuError> {
        let mut all = Vec::with_capacity(maps.len());
        for (param, p) in params.iter().enumerate() {
            let Param::Map(n) = p else { continue };
            let missing = || GpuError::Malformed("a kernel without its tensor map".into());
            all.push(Map::new(param, maps.get(*n as usize).ok_or_else(missing)?, size)?);
        }
        Ok(all)
    }

    fn new(
        param: usize,
        map: &TensorMap,
        size: &dyn Fn(&SymExpr) -> Result<i64, GpuError>,
    ) -> Result<Map, GpuError> {
        let rank = map.sizes.len();
        if rank == 0 || rank > MAX_DIMENSIONS || map.strides.len() + 1 != rank || map.window.len() != rank {
            return Err(GpuError::Malformed(format!("a tensor map of {rank} dimensions")));
        }
        let width = map.dtype.size() as u64;
        let number = |e: &SymExpr| {
            let n = size(e)?;
            u64::try_from(n).map_err(|_| GpuError::Malformed(format!("{n} in a tensor map")))
        };
        let mut made = Map {
            param,
            dtype: map.dtype,
            offset: number(&map.offset)? * width,
            rank,
            sizes: [1; MAX_DIMENSIONS],
            strides: [width; MAX_DIMENSIONS],
            window: [1; MAX_DIMENSIONS],
        };
        for d in 0..rank {
            made.sizes[d] = number(&map.sizes[d])?;
            made.window[d] = map.window[d];
            if d > 0 {
                made.strides[d] = number(&map.strides[d - 1])? * width;
            }
        }
        Ok(made)
    }
}
