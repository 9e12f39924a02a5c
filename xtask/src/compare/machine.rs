//! A description of the machine that was measured on.

use std::path::Path;
use std::process::Command;

use super::measure::Side;

/// Cores that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One line: processor, cores, threads, versions of PyTorch and of the other peers.
pub(super) fn describe(python: &Path, threads: usize, peers: &[Side]) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processor(&info).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let mut text = format!("{model}, {} cores, {threads} threads", cores());
    let others = peers.iter().filter(|side| !side.is_torch()).map(|side| (side.name(), side.name()));
    for (name, module) in [("PyTorch", "torch")].into_iter().chain(others) {
        let program = format!("import {module}; print({module}.__version__)");
        let out = Command::new(python).args(["-c", &program]).output();
        let version = out.ok().map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        let version = version.filter(|v| !v.is_empty()).unwrap_or_else(|| "of unknown version".to_owned());
        text.push_str(&format!("; {name} {version}"));
    }
    format!("{text}; {}", std::env::consts::OS)
}

/// The name of the processor in the text of `/proc/cpuinfo`.
fn processor(info: &str) -> Option<String> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_processor_is_named() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n";
        assert_eq!(super::processor(info).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(super::processor(""), None);
    }
}
