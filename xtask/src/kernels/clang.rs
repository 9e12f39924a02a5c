//! Kernels for AMD's GPUs through clang, without HIP's headers and device libraries: machine code, what the compiler says of the
//! registers of each, and the instructions that it chose. Not here: what is asked of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use backend_rocm::Clang;
use gpu_runtime::Module;

/// What the compiler says of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) vgprs: u32,
    pub(crate) agprs: u32,
    pub(crate) sgprs: u32,
    /// Bytes of memory that a lane's registers are spilled to.
    pub(crate) scratch: u32,
    /// Bytes of the local data share beside what the launch adds.
    pub(crate) lds: u32,
    /// Waves of a SIMD that registers have room for.
    pub(crate) waves: u32,
    /// The instructions, a line each, with labels.
    pub(crate) code: Vec<String>,
}

impl Usage {
    /// Whether matrix cores are used.
    pub(crate) fn matrix(&self) -> bool {
        self.code.iter().any(|line| is_matrix(line))
    }
}

/// Whether an instruction is one of matrix cores.
pub(crate) fn is_matrix(instruction: &str) -> bool {
    instruction.starts_with("v_mfma") || instruction.starts_with("v_wmma")
}

/// Compiles a module and says what each kernel uses, by its entry.
///
/// # Errors
/// What the compiler says.
pub(crate) fn usages(clang: &Clang, module: &Module, architecture: &str) -> Result<BTreeMap<String, Usage>> {
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("module.hip");
    std::fs::write(&source, module.text())?;
    let output = clang
        .command(architecture)
        .args(["-Rpass-analysis=kernel-resource-usage", "-save-temps=obj"])
        .arg(&source)
        .arg("-o")
        .arg(folder.path().join("module.co"))
        .output()
        .with_context(|| clang.program().display().to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let errors =
            said.lines().filter(|line| line.contains("error:")).take(8).collect::<Vec<_>>().join("\n");
        bail!("{}", if errors.is_empty() { said.chars().take(2000).collect() } else { errors });
    }
    let mut usages = remarks(&said);
    for (entry, code) in listing(folder.path())? {
        usages.entry(entry).or_default().code = code;
    }
    usages.retain(|entry, _| module.entries.contains(entry));
    Ok(usages)
}

/// The remarks of the compiler by kernel.
fn remarks(said: &str) -> BTreeMap<String, Usage> {
    let mut all = BTreeMap::new();
    let mut name = String::new();
    // With or without the place before the word `remark`.
    for line in said.lines().filter(|line| line.contains("remark:")) {
        let text = line.split(" [-Rpass").next().unwrap_or_default();
        let Some((before, value)) = text.rsplit_once(": ") else { continue };
        let what = before.rsplit(':').next().unwrap_or_default().trim();
        if what == "Function Name" {
            name = value.trim().to_owned();
            all.insert(name.clone(), Usage::default());
            continue;
        }
        let Some(usage) = all.get_mut(&name) else { continue };
        let number = value.trim().parse().unwrap_or(0);
        match what.split('[').next().unwrap_or_default().trim() {
            "VGPRs" => usage.vgprs = number,
            "AGPRs" => usage.agprs = number,
            "SGPRs" => usage.sgprs = number,
            "ScratchSize" => usage.scratch = number,
            "Occupancy" => usage.waves = number,
            "LDS Size" => usage.lds = number,
            _ => {}
        }
    }
    all
}

/// The instructions of each function of the assembly text that the compiler left.
fn listing(folder: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != "s") {
            continue;
        }
        let mut name = None;
        for line in std::fs::read_to_string(&path)?.lines() {
            let code = line.split(';').next().unwrap_or_default();
            let text = code.trim();
            if text.starts_with(".Lfunc_end") {
                name = None;
            } else if let Some(label) = text.strip_suffix(':').filter(|l| !l.starts_with('.')) {
                name = Some(label.to_owned());
                all.insert(label.to_owned(), Vec::new());
            } else if let Some(list) = name.as_ref().and_then(|n| all.get_mut(n))
                && !text.is_empty()
                && (!text.starts_with('.') || text.ends_with(':'))
            {
                let list: &mut Vec<String> = list;
                list.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{Usage, remarks};

    #[test]
    fn remarks_are_read_by_kernel() {
        let said = "a.hip:8:1: remark: Function Name: k0 [-Rpass-analysis=kernel-resource-usage]\n    8 | x\n\
                    a.hip:8:1: remark:     VGPRs: 39 [-Rpass-analysis=kernel-resource-usage]\n\
                    a.hip:8:1: remark:     ScratchSize [bytes/lane]: 16 [-Rpass-analysis=kernel-resource-usage]\n\
                    a.hip:8:1: remark:     Occupancy [waves/SIMD]: 8 [-Rpass-analysis=kernel-resource-usage]\n\
                    remark: a.hip:8:1:     LDS Size [bytes/block]: 32 [-Rpass-analysis=kernel-resource-usage]\n";
        let all = remarks(said);
        let expected = Usage { vgprs: 39, scratch: 16, waves: 8, lds: 32, ..Usage::default() };
        assert_eq!(all.get("k0"), Some(&expected));
    }
}
