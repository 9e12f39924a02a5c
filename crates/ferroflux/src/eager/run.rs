//! Computes recorded values: the piece that they need is compiled for its structure and types, kept, and run. Not here: what
//! belongs to a piece ([`dynamo::Piece`]).

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dynamo::{Lru, Piece, PieceKey, Value};

use crate::cache::Cache;
use crate::func::CompiledFunc;
use crate::{Error, Options};

/// Pieces that are kept. A training loop has a handful; shapes that vary make one each.
const KEPT: usize = 512;

/// A recorded chain is computed at this length even if no value is wanted, so that a loop does not grow without bound.
pub(super) const LONGEST: u32 = 512;

/// Computes values and stores them in their nodes.
///
/// # Errors
/// Errors of the compiler and of the backend.
pub(crate) fn force(values: &[Value]) -> Result<(), Error> {
    let missing: Vec<Value> = values.iter().filter(|v| v.data().is_none()).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let piece = Piece::of(&missing);
    if piece.is_empty() {
        return Ok(());
    }
    let compiled = compiled(&piece)?;
    let results = compiled.call(&piece.inputs())?;
    piece.store(results);
    Ok(())
}

/// The compiled form of a piece, from the cache or made now.
fn compiled(piece: &Piece) -> Result<Arc<CompiledFunc>, Error> {
    static PIECES: OnceLock<Mutex<Lru<PieceKey, Arc<CompiledFunc>>>> = OnceLock::new();
    let pieces = PIECES.get_or_init(|| Mutex::new(Lru::new(KEPT)));
    let key = piece.key();
    if let Some(found) = pieces.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(found);
    }
    let graph = piece.graph().map_err(|e| Error::Function(e.to_string()))?;
    tracing::debug!(target: "graph", calls = piece.calls(), "recorded calls are compiled\n{graph}");
    let made = Arc::new(CompiledFunc::new(graph, options())?);
    pieces.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&made));
    Ok(made)
}

/// The backend of pieces: the CPU's where it is linked in, else the interpreter. They are too many and too small for the
/// cache on disk.
fn options() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let options = Options::new().cache(Cache::Off);
        if cfg!(feature = "cpu") { options } else { options.backend("eager") }
    })
}
