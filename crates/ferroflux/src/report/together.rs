//! The trace of a process, or of all processes of a mesh in one file: these send what they have recorded, in the time that they have
//! in common, to the first rank.

use super::{Reports, reports};
use crate::Error;
use crate::mesh::Member;
use crate::profiler::{Trace, chrome_of_all, joins, of_process};

/// The file of all that is known.
const WHOLE: &str = "trace.json";
/// Bytes that ranks exchange at once: all of them receive what is for the first one.
const CHUNK: usize = 1 << 20;

/// The file of a process that knows of itself alone.
fn of_rank(rank: usize) -> String {
    format!("trace-rank{rank}.json")
}

impl Reports {
    /// Writes the trace, if it was not written together with those of other processes since their ranks have joined.
    pub(super) fn write_trace(&self, trace: &Trace) -> Result<(), Error> {
        if self.gathered.is_some_and(|joined| joined == joins()) {
            return Ok(());
        }
        let rank = of_process();
        if rank == Some(0) {
            // It is of an earlier run.
            self.remove(WHOLE);
        }
        let name = rank.map_or_else(|| WHOLE.to_owned(), of_rank);
        self.file(&name, trace.chrome_json().as_bytes())
    }

    fn remove(&self, name: &str) {
        // Most often there is none.
        let _ = std::fs::remove_file(self.folder.join(name));
    }
}

/// Writes one `DIR/trace.json` with the events of all ranks, where the first rank has a folder ([`write_to`](super::write_to)). Every
/// rank calls it, whether it records or not.
///
/// # Errors
/// The engine's: a rank that is gone. The file cannot be written.
pub fn gather(member: &Member) -> Result<(), Error> {
    let writes = member.rank() == 0 && reports().is_some();
    // Where ranks are threads of one process, the events of all are there when all have come here.
    if member.all_gather(&[u8::from(writes)])?[0] != [1] {
        return Ok(());
    }
    let own = match &*reports() {
        // Other ranks of the process are in its trace too.
        Some(reports) if member.clock().first => reports.recording.so_far().chrome_list(),
        _ => String::new(),
    };
    let lengths = member.all_gather(&(own.len() as u64).to_le_bytes())?;
    let length = |bytes: &Vec<u8>| bytes[..].try_into().map_or(0, |b| u64::from_le_bytes(b) as usize);
    let lengths: Vec<usize> = lengths.iter().map(length).collect();
    let lists = collected(member, own.as_bytes(), &lengths)?;
    if let Some(reports) = reports().as_mut() {
        reports.gathered = Some(joins());
        if member.clock().first {
            reports.remove(&of_rank(member.rank()));
        }
        if writes {
            reports.file(WHOLE, chrome_of_all(&lists, member.clock().accuracy).as_bytes())?;
        }
    }
    Ok(())
}

/// The texts of all ranks, on the first one; others get none.
fn collected(member: &Member, own: &[u8], lengths: &[usize]) -> Result<Vec<String>, Error> {
    let most = lengths.iter().copied().max().unwrap_or(0);
    let mut texts: Vec<Vec<u8>> = vec![Vec::new(); lengths.len()];
    for at in (0..most).step_by(CHUNK) {
        let size = CHUNK.min(most - at);
        let mut sent = own.get(at..).unwrap_or_default().to_vec();
        sent.resize(size, 0);
        let received = member.all_gather(&sent)?;
        if member.rank() > 0 {
            continue;
        }
        for ((text, bytes), length) in texts.iter_mut().zip(received).zip(lengths) {
            let left = length.saturating_sub(at).min(size);
            text.extend_from_slice(bytes.get(..left).unwrap_or_default());
        }
    }
    Ok(texts.into_iter().map(|t| String::from_utf8_lossy(&t).into_owned()).collect())
}
