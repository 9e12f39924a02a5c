//! A cache of the results of binding constants, in files for later processes: packed weights and the persistent buffers
//! that calls read. The file's name is a checksum of the program, this build, the instruction set and all constants; its
//! bytes are checked before they are used, and if anything is wrong with it, the weights are packed again. The owner of the
//! folder decides where files are and when they are removed.
//!
//! A file is mapped, so that all processes share its pages. Truncating a mapped file removes its pages: reading them kills
//! the process (SIGBUS). So nothing is mapped beyond the file's end, files are written without permission to write them,
//! and each call first checks that the file still has its length ([`Mapped::is_whole`]). The remaining risk is that the
//! owner or the administrator makes a file writable and truncates it during a call.
//!
//! Layout, integers little-endian: `FFXPACK1`, the file's name without its end (32 letters), u64 records, u64 checksum of
//! all records up to the next page; the records (seven u64 each: kind, three numbers, place, length in bytes, checksum); then
//! the data at multiples of 64 bytes, from a page boundary on.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ir_core::EntityId;
use kernel_ir::{Dequant, InstKind, Operand, Program, Step, Storage};
use memmap2::{Mmap, MmapOptions};
use rayon::prelude::*;
use rustc_hash::FxHasher;

use super::Op;
use super::control::PlannedStep;
use super::packs::Packed;
use super::prepare::members;
use crate::micro::narrow::NarrowWeights;
use crate::micro::quantized::QuantizedWeights;
use crate::micro::{self, AlignedBuf, ConvWeights, Isa, PackedB};

const MAGIC: &[u8; 8] = b"FFXPACK1";
const HEAD: usize = 56;
/// Letters of a name.
const NAME: usize = 32;
const RECORD: usize = 56;
/// Constants of fewer bytes than these are packed faster than they are read.
const LEAST: usize = 8 << 20;
/// Bytes that one thread hashes at a time.
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;
/// Alignment of the data: one cache line.
const ALIGN: usize = 64;

/// The cache of binding results.
pub(super) struct BindCache {
    pub(super) folder: PathBuf,
    /// Checksum of the program's bytes.
    pub(super) program: u64,
}

/// A persistent buffer; its first number is the buffer's.
const BUFFER: u64 = 0;
/// A slot of packed weights that holds none.
const EMPTY: u64 = 1;
/// Panels of a matrix; its numbers are groups, K and N.
const MATMUL: u64 = 2;
/// The same of a convolution.
const CONV: u64 = 3;
/// Weights of a depthwise convolution.
const DEPTHWISE: u64 = 4;
/// Panels of the transformed weights of a convolution.
const WINOGRAD: u64 = 5;

/// The first of the kinds of weights of narrow numbers, by [`NarrowWeights::code`]; numbers as for a matrix.
const NARROW: u64 = 6;
/// The first of the kinds of quantized weights, by [`QuantizedWeights::code`]; numbers as the weights' own shape.
const QUANTIZED: u64 = NARROW + NarrowWeights::CODES;
/// The first number that is no kind.
const KINDS: u64 = QUANTIZED + QuantizedWeights::CODES;

/// Contents of a record: kind, numbers, data.
type Item<'a> = (u64, [usize; 3], &'a [u8]);

/// Contents of a file.
pub(super) struct Loaded {
    /// Persistent buffers: number, first byte, bytes.
    pub(super) buffers: Vec<(usize, *mut u8, usize)>,
    pub(super) packed: Vec<Option<Packed>>,
    pub(super) mapped: Mapped,
}

/// A mapped file and a handle of it, by which its length can be queried even if its name is gone.
pub(super) struct Mapped {
    map: Arc<Mmap>,
    file: File,
}

impl Mapped {
    /// Bytes that are mapped.
    pub(super) fn bytes(&self) -> usize {
        self.map.len()
    }
    /// Whether the file still has all bytes that are mapped.
    pub(super) fn is_whole(&self) -> bool {
        self.file.metadata().is_ok_and(|about| about.len() >= self.map.len() as u64)
    }
}

/// Checksum of bytes, computed by all threads. It detects accidents, not attacks.
fn checksum(bytes: &[u8]) -> u64 {
    of_parts(bytes.len(), bytes.par_chunks(CHUNK).map(one).collect())
}

/// The same, computed by this thread: others compute for calls meanwhile.
fn checksum_alone(bytes: &[u8]) -> u64 {
    of_parts(bytes.len(), bytes.chunks(CHUNK).map(one).collect())
}

fn of_parts(bytes: usize, parts: Vec<u64>) -> u64 {
    let mut hash = FxHasher::default();
    hash.write_usize(bytes);
    parts.into_iter().for_each(|p| hash.write_u64(p));
    hash.finish()
}

pub(super) fn one(bytes: &[u8]) -> u64 {
    let mut hash = FxHasher::default();
    hash.write(bytes);
    hash.finish()
}

impl BindCache {
    /// The file for these constants; `None` where they are too small to be worth one.
    pub(super) fn path(&self, constants: &[(&str, &[u8])]) -> Option<PathBuf> {
        let bytes: usize = constants.iter().map(|(_, b)| b.len()).sum();
        if bytes < LEAST {
            return None;
        }
        let sums: Vec<u64> = constants.par_iter().map(|(_, b)| checksum(b)).collect();
        let half = |seed: u64| {
            let mut hash = FxHasher::default();
            hash.write_u64(seed);
            hash.write_u64(self.program);
            hash.write(env!("FFX_CPU_BUILD").as_bytes());
            hash.write(micro::variant().as_bytes());
            for ((name, bytes), sum) in constants.iter().zip(&sums) {
                hash.write(name.as_bytes());
                hash.write_usize(bytes.len());
                hash.write_u64(*sum);
            }
            hash.finish()
        };
        Some(self.folder.join(format!("{:016x}{:016x}.weights", half(1), half(2))))
    }
}

/// The persistent buffers that steps of a call read other than as packed weights.
pub(super) fn needed(program: &Program, steps: &[PlannedStep], packed: &[Option<Packed>]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut add = |buf| {
        let root = program.root(buf);
        if program.buffers[root].storage == Storage::Persistent {
            found.push(root.index());
        }
    };
    program.outputs.iter().for_each(|o| add(o.buf));
    let is_packed = |slot: usize| packed.get(slot).is_some_and(Option::is_some);
    let each = program.steps.iter().zip(steps).flat_map(|(step, planned)| match (step, planned.op()) {
        (Step::Together(t), Some(Op::Several(list))) => members(&t.steps, list),
        _ => vec![(step, Some(planned))],
    });
    for (step, planned) in each {
        let through: Vec<&Operand> = match (step, planned.and_then(PlannedStep::op)) {
            (Step::Matmul(m), Some(Op::Matmul(_, slot))) if is_packed(*slot) => vec![&m.b],
            (Step::Matmul(m), Some(Op::Narrow(_, slot))) if is_packed(*slot) => vec![&m.b],
            (Step::Matmul(m), Some(Op::Quantized(_, slot))) if is_packed(*slot) => {
                [&m.b].into_iter().chain(m.dequant.iter().flat_map(Dequant::operands)).collect()
            }
            (Step::Conv(c), Some(Op::Conv(_, slot) | Op::Narrow(_, slot))) if is_packed(*slot) => {
                vec![&c.weight]
            }
            _ => Vec::new(),
        };
        if through.is_empty() {
            step.accesses().0.into_iter().for_each(&mut add);
            continue;
        }
        let is_read = |o: &&Operand| !through.iter().any(|t| std::ptr::eq(*o, *t));
        step.operands().into_iter().filter(is_read).for_each(|o| add(o.buf));
        for inst in step.bodies().into_iter().flat_map(|(_, insts)| insts) {
            if let InstKind::Load { buf, .. } = &inst.kind {
                add(*buf);
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Writes a file atomically.
///
/// # Errors
/// The error of the system.
pub(super) fn save(
    path: &Path,
    buffers: &[(usize, &[u8])],
    packed: &[Option<Packed>],
) -> std::io::Result<()> {
    let buffers = buffers.iter().map(|&(number, bytes)| (BUFFER, [number, 0, 0], bytes));
    let slots = packed.iter().map(|slot| match slot {
        None => (EMPTY, [0; 3], &[][..]),
        Some(Packed::Narrow(w)) => (NARROW + w.code(), w.shape(), w.as_bytes()),
        Some(Packed::Quantized(w)) => (QUANTIZED + w.code(), w.shape(), w.as_bytes()),
        Some(Packed::Matmul(b)) => (MATMUL, b.shape(), b.as_bytes()),
        Some(Packed::Conv(w)) => match w.matrix() {
            Some(b) => (if w.is_winograd() { WINOGRAD } else { CONV }, b.shape(), b.as_bytes()),
            None => (DEPTHWISE, [0; 3], w.as_bytes()),
        },
    });
    write(path, &buffers.chain(slots).collect::<Vec<Item<'_>>>())
}

fn write(path: &Path, items: &[Item<'_>]) -> std::io::Result<()> {
    let start = (HEAD + RECORD * items.len()).next_multiple_of(PAGE);
    let mut head = vec![0u8; start];
    let mut at = start;
    for (n, (kind, [a, b, c], data)) in items.iter().enumerate() {
        let sum = checksum_alone(data);
        let record = [*kind, *a as u64, *b as u64, *c as u64, at as u64, data.len() as u64, sum];
        for (k, number) in record.iter().enumerate() {
            let at = HEAD + n * RECORD + k * 8;
            head[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        at = (at + data.len()).next_multiple_of(ALIGN);
    }
    head[..8].copy_from_slice(MAGIC);
    head[8..8 + NAME].copy_from_slice(name_of(path).as_bytes());
    head[40..48].copy_from_slice(&(items.len() as u64).to_le_bytes());
    let sum = checksum(&head[HEAD..]);
    head[48..56].copy_from_slice(&sum.to_le_bytes());
    // Nothing writes it again: it is mapped, and replaced by renaming.
    unfinished(path, 0o400, |file| {
        file.write_all(&head)?;
        for (_, _, data) in items {
            file.write_all(data)?;
            file.write_all(&[0; ALIGN][..data.len().next_multiple_of(ALIGN) - data.len()])?;
        }
        Ok(())
    })
}

/// Writes a file under another name, with these permissions, and renames it when it is whole.
///
/// # Errors
/// The error of the system, or that of `fill`.
pub(super) fn unfinished(
    path: &Path,
    permissions: u32,
    fill: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let name = format!(".new-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let unfinished = folder.join(name);
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, permissions);
    #[cfg(not(unix))]
    let _ = permissions;
    let file = options.open(&unfinished)?;
    let mut file = BufWriter::with_capacity(CHUNK, file);
    let filled = fill(&mut file).and_then(|()| file.flush());
    let written = filled.and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // A leftover temporary file is removed with those of dead processes.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// The name of a file without its end, as long as names are.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.chars().filter(char::is_ascii_hexdigit).chain(std::iter::repeat('0')).take(NAME).collect()
}

/// Reads a file for a program; `None`, with the reason in the log, where it is missing or damaged.
pub(super) fn load(path: &Path, program: &Program, slots: usize) -> Option<Loaded> {
    let file = File::open(path).ok()?;
    match read(file, &name_of(path), program, slots) {
        Ok(loaded) => {
            // The time says when it was last used; that it cannot be set is no harm.
            let _ = loaded.mapped.file.set_modified(std::time::SystemTime::now());
            Some(loaded)
        }
        Err(why) => {
            tracing::warn!(target: "cache", file = %path.display(), "packed weights cannot be used and are packed again: {why}");
            let _ = fs::remove_file(path);
            None
        }
    }
}

/// One record: kind, three numbers, place, length in bytes, checksum.
type Record = [u64; RECORD / 8];

/// The records of a file, and the end of their data. Nothing is mapped yet: the mapped range is known to exist.
fn records(mut file: &File, name: &str) -> Result<(Vec<Record>, u64), String> {
    let short = |_| "it is cut short".to_owned();
    let length = file.metadata().map_err(|e| e.to_string())?.len();
    let mut head = [0u8; HEAD];
    file.read_exact(&mut head).map_err(short)?;
    if !head.starts_with(MAGIC) {
        return Err("it is no file of packed weights".into());
    }
    if head[8..8 + NAME] != *name.as_bytes() {
        return Err("it is that of other constants or of another program".into());
    }
    let number = |bytes: &[u8], k: usize| {
        bytes.get(8 * k..).and_then(<[u8]>::first_chunk::<8>).map_or(0, |b| u64::from_le_bytes(*b))
    };
    let bytes = number(&head, 5).checked_mul(RECORD as u64).filter(|n| *n <= length);
    let bytes = usize::try_from(bytes.ok_or("its table's length is wrong")?).map_err(|e| e.to_string())?;
    let mut table = vec![0u8; (HEAD + bytes).next_multiple_of(PAGE) - HEAD];
    file.read_exact(&mut table).map_err(short)?;
    if checksum(&table) != number(&head, 6) {
        return Err("its table's checksum is wrong".into());
    }
    let record = |bytes: &[u8]| std::array::from_fn(|k| number(bytes, k));
    let records: Vec<Record> = table[..bytes].chunks_exact(RECORD).map(record).collect();
    let ends = records.iter().map(|r| r[4].checked_add(r[5]));
    let end = ends.max().flatten().unwrap_or(0).max((HEAD + table.len()) as u64);
    if end > length {
        return Err("it is cut short".into());
    }
    Ok((records, end))
}

fn read(file: File, name: &str, program: &Program, slots: usize) -> Result<Loaded, String> {
    let (records, end) = records(&file, name)?;
    let mut options = MmapOptions::new();
    options.populate().len(usize::try_from(end).map_err(|e| e.to_string())?);
    // SAFETY: the mapping is only read, and is within the file. Files of the folder are replaced by renaming, never
    // changed; the documentation of this module describes the remaining risk.
    let map = Arc::new(unsafe { options.map(&file) }.map_err(|e| e.to_string())?);
    let mapped = Mapped { map: Arc::clone(&map), file };
    if !mapped.is_whole() {
        return Err("it is cut short".into());
    }
    let mut loaded = Loaded { buffers: Vec::new(), packed: Vec::new(), mapped };
    for [kind, a, b, c, at, bytes, sum] in records {
        let size = |n: u64| usize::try_from(n).map_err(|e| e.to_string());
        let (shape, at, bytes) = ([size(a)?, size(b)?, size(c)?], size(at)?, size(bytes)?);
        let data = at.checked_add(bytes).and_then(|end| map.get(at..end)).filter(|_| at % ALIGN == 0);
        let data = data.ok_or("a record lies outside of it")?;
        if checksum(data) != sum {
            return Err("a checksum is wrong".into());
        }
        let buf = || AlignedBuf::of_file(Arc::clone(&map), at, bytes / size_of::<f32>());
        let matrix = || PackedB::of_file(Isa::best(), shape, buf()).ok_or("a pack has another size");
        loaded.packed.push(match kind {
            BUFFER => {
                if shape[0] >= program.buffers.len() {
                    return Err("it is of another program".into());
                }
                loaded.buffers.push((shape[0], data.as_ptr().cast_mut(), bytes));
                continue;
            }
            EMPTY => None,
            MATMUL => Some(Packed::Matmul(matrix()?)),
            CONV => Some(Packed::Conv(ConvWeights::of_matrix(matrix()?))),
            WINOGRAD => Some(Packed::Conv(ConvWeights::of_winograd(matrix()?))),
            DEPTHWISE => Some(Packed::Conv(ConvWeights::of_depthwise(buf()))),
            QUANTIZED..KINDS => {
                let weights = QuantizedWeights::of_file(Isa::best(), kind - QUANTIZED, shape, buf());
                Some(Packed::Quantized(weights.ok_or("a pack has another size")?))
            }
            NARROW..QUANTIZED => {
                let weights = NarrowWeights::of_file(kind - NARROW, Isa::best(), shape, buf());
                Some(Packed::Narrow(weights.ok_or("a pack has another size")?))
            }
            _ => return Err("it has records of another version".into()),
        });
    }
    if loaded.packed.len() == slots { Ok(loaded) } else { Err("it is of another program".into()) }
}
