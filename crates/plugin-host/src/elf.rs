//! Checks an ELF file before the system's loader maps it: a truncated file would end the process with SIGBUS instead of an
//! error. Only what the check needs is read; everything else is left to the loader.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::HostError;

const MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];
/// Type of a program header whose bytes are mapped.
const PT_LOAD: u32 = 1;
/// Bytes of the 64-bit file header and of one program header (System V ABI, "ELF-64 object file format").
const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// Checks that all mapped parts of a 64-bit little-endian ELF file lie inside the file. Other files pass: the loader
/// refuses them itself, or is not an ELF loader.
pub(crate) fn check_whole(path: &Path) -> Result<(), HostError> {
    let io = |e| HostError::io(path, e);
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut start = Vec::new();
    (&mut file).take(FILE_HEADER as u64).read_to_end(&mut start).map_err(io)?;
    if !start.starts_with(&MAGIC) {
        return Ok(());
    }
    let cut =
        || HostError::Library { path: path.to_owned(), reason: "the file is cut short; reinstall it".into() };
    let header: [u8; FILE_HEADER] = start.try_into().map_err(|_| cut())?;
    if header[4..6] != [2, 1] {
        return Ok(());
    }
    let (table, count) = (u64_at(&header, 32), u16_at(&header, 56));
    if usize::from(u16_at(&header, 54)) != PROGRAM_HEADER {
        return Ok(());
    }
    file.seek(SeekFrom::Start(table)).map_err(io)?;
    for _ in 0..count {
        let mut program = [0u8; PROGRAM_HEADER];
        file.read_exact(&mut program).map_err(|_| cut())?;
        let (offset, length) = (u64_at(&program, 8), u64_at(&program, 32));
        let end = offset.checked_add(length).ok_or_else(cut)?;
        if u32::from_le_bytes([program[0], program[1], program[2], program[3]]) == PT_LOAD && end > size {
            return Err(cut());
        }
    }
    Ok(())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
