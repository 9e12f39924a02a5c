//! What a launch takes: words, and tensor maps in numbers. The driver makes the latter's bytes when it launches, so that they
//! follow their buffer's address wherever that moves, in recorded launches too.

use gpu_codegen::{Param, TensorMap};
use ir_core::{DType, SymExpr};

use crate::GpuError;

/// Dimensions of a tensor map at most.
const MAX_DIMENSIONS: usize = 5;

/// The arguments of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// One a parameter, in order: an address or a number. Of a tensor map: the address of its buffer's memory.
    pub words: &'a [u64],
    /// The tensor maps among the parameters.
    pub maps: &'a [Map],
}

impl<'a> Arguments<'a> {
    /// Those of a kernel without tensor maps.
    pub fn plain(words: &'a [u64]) -> Arguments<'a> {
        Arguments { words, maps: &[] }
    }

    /// The address that a map's tensor begins at.
    pub fn start(&self, map: &Map) -> u64 {
        self.words.get(map.param).map_or(0, |base| base + map.offset)
    }
}

/// A tensor map ([`TensorMap`]) in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// The number of its parameter.
    pub param: usize,
    /// Dtype of its elements.
    pub dtype: DType,
    /// Bytes from the buffer's memory to the first element.
    pub offset: u64,
    /// Dimensions; of the lists below so many count, the innermost first.
    pub rank: usize,
    /// Sizes.
    pub sizes: [u64; MAX_DIMENSIONS],
    /// Bytes from one to the next.
    pub strides: [u64; MAX_DIMENSIONS],
    /// Sizes of the box that is copied at once.
    pub window: [u32; MAX_DIMENSIONS],
}

impl Map {
    /// The maps of a kernel.
    ///
    /// # Errors
    /// What `size` says of an expression without a value; a map that no driver takes.
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
