//! The dialect: the text that precedes kernels. Helpers for all vendors are in `dialect/common`. They and the kernels use
//! functions that each vendor's folder defines (`dialect/cuda`, `dialect/hip`), and what all vendors' languages share:
//! C++17, `threadIdx` and its like, `__shared__`, `__global__`, `__launch_bounds__`, `__restrict__`, atomics.
//!
//! A module gets the helpers that its kernels name and, transitively, those that these name. An item of a file is the text
//! between two empty lines outside of braces; the names that it defines are found at its outermost level.
//!
//! Not here: the text of kernels.

pub(crate) mod fragments;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::Target;

/// A vendor's language: the files that define its functions, before and after the helpers that they may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dialect {
    /// The name of the vendor's compiler.
    pub name: &'static str,
    /// Files that come first: bits, waves, barriers, memory, 16-bit floats.
    pub before: &'static [&'static str],
    /// Files that come later: instructions over types of the first helpers.
    pub behind: &'static [&'static str],
    /// How tiles of matrix products come into shared memory.
    pub staging: &'static str,
    /// Whether they come through registers, so that kernels start copies before a product and end them behind it.
    pub through_registers: bool,
    /// Products of tiles by matrix cores.
    pub products: &'static str,
    /// What the compiler may lack, before everything: taken whole, then by name. Both ask whether it does.
    pub bare: [&'static str; 2],
}

impl Dialect {
    /// CUDA C++ for NVRTC.
    pub const CUDA: Dialect = Dialect {
        name: "cuda",
        before: &[include_str!("cuda/language.cu"), include_str!("cuda/numbers.cu")],
        behind: &[include_str!("cuda/instructions.cu"), include_str!("cuda/wgmma.cu")],
        staging: include_str!("cuda/staging.cu"),
        through_registers: false,
        products: include_str!("cuda/products.cu"),
        bare: ["", ""],
    };
    /// HIP for hiprtc, and for clang without HIP's headers and libraries.
    pub const HIP: Dialect = Dialect {
        name: "hip",
        before: &[include_str!("hip/language.cu"), include_str!("hip/numbers.cu")],
        behind: &[include_str!("hip/instructions.cu"), include_str!("hip/cores.cu")],
        staging: include_str!("hip/staging.cu"),
        through_registers: true,
        products: include_str!("hip/products.cu"),
        bare: [include_str!("hip/bare.cu"), include_str!("hip/math.cu")],
    };
}

/// The names of types, which precede everything else.
const TYPES: &str = include_str!("common/types.cu");
/// Helpers that a vendor's instructions may use.
const FIRST: [&str; 4] = [
    include_str!("common/scalar.cu"),
    include_str!("common/wave.cu"),
    include_str!("common/memory.cu"),
    include_str!("common/matrix.cu"),
];
/// What uses them, before and behind the vendor's staging.
const TILES: [&str; 2] = [include_str!("common/launch.cu"), include_str!("common/tile.cu")];
const PLAIN: &str = include_str!("common/plain.cu");
/// What stands behind the vendor's products.
const LAST: [&str; 7] = [
    include_str!("common/warpgroup.cu"),
    include_str!("common/flash.cu"),
    include_str!("common/flash_sections.cu"),
    include_str!("common/loops.cu"),
    include_str!("common/sort.cu"),
    include_str!("common/fourier.cu"),
    include_str!("common/depthwise.cu"),
];

/// All helpers of a target. Modules get those that their kernels use.
pub struct Prelude {
    /// The head of every module: the numbers and features that helpers test.
    head: String,
    items: Vec<Item>,
    /// The items that define each name.
    defined: BTreeMap<&'static str, Vec<usize>>,
}

/// A part of a file that is included whole or not at all.
struct Item {
    text: &'static str,
    mentions: BTreeSet<&'static str>,
}

impl Prelude {
    /// Reads the files of the target's dialect.
    pub fn new(target: &Target) -> Prelude {
        let Dialect { before, behind, staging, products, bare, .. } = target.dialect;
        let mut head = format!("#define WAVE {}\n", target.wave);
        let features = target.features;
        let words = [
            ("EARLY_LAUNCH", features.early_launch),
            ("MFMA", features.mfma),
            ("XF32", features.xf32),
            ("WMMA", features.wmma),
            ("WMMA_HALVES", features.wmma_halves),
        ];
        for (word, _) in words.iter().filter(|(_, there)| *there) {
            let _ = writeln!(head, "#define {word}");
        }
        if !bare[0].is_empty() {
            head.push_str(BARE);
            head.extend(without_comments(bare[0]));
            head.push_str("#endif\n");
        }
        let files = [bare[1], TYPES].into_iter().chain(before.iter().copied()).chain(FIRST);
        let files = files.chain(behind.iter().copied()).chain(TILES);
        let files = files.chain([staging, PLAIN, products]).chain(LAST);
        let mut prelude = Prelude { head, items: Vec::new(), defined: BTreeMap::new() };
        for text in files.flat_map(split) {
            let words = self::words(text);
            for name in defines(&words) {
                prelude.defined.entry(name).or_default().push(prelude.items.len());
            }
            let mentions = words.into_iter().filter(|w| is_name(w)).collect();
            prelude.items.push(Item { text, mentions });
        }
        prelude
    }

    /// Returns the text that these kernels need before them.
    pub fn of(&self, kernels: &str) -> String {
        let mut taken = vec![false; self.items.len()];
        let mut names: Vec<&str> = words(kernels).into_iter().filter(|w| is_name(w)).collect();
        while let Some(name) = names.pop() {
            for &n in self.defined.get(name).into_iter().flatten() {
                if !std::mem::replace(&mut taken[n], true) {
                    names.extend(&self.items[n].mentions);
                }
            }
        }
        let mut out = self.head.clone();
        for (item, _) in self.items.iter().zip(taken).filter(|(_, taken)| *taken) {
            out.extend(without_comments(item.text));
        }
        out
    }
}

/// What says that HIP's run-time compiler, or what stands for it, is not there.
const BARE: &str = "#if !defined(__HIPCC_RTC__) && !defined(FFX_EMULATED)\n#define BARE_HIP\n";

/// The lines of a text that are no comments, each with its end.
fn without_comments(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n"))
}

/// The items of a file.
fn split(file: &'static str) -> Vec<&'static str> {
    let (mut items, mut from, mut depth) = (Vec::new(), 0, 0i32);
    let mut at = 0;
    for line in file.split_inclusive('\n') {
        if line.trim().is_empty() && depth == 0 {
            items.push(&file[from..at]);
            from = at + line.len();
        }
        for word in words(line) {
            match word {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
        }
        at += line.len();
    }
    items.push(&file[from..]);
    items.retain(|item| item.lines().any(|l| !l.trim().is_empty() && !l.starts_with("//")));
    items
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// The identifiers and single characters of a text, without comments, numbers and strings.
fn words(text: &str) -> Vec<&str> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    let name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    while let Some(&b) = bytes.get(at) {
        let from = at;
        at += 1;
        let run = |at: usize, more: &dyn Fn(u8) -> bool| {
            bytes[at..].iter().position(|&b| !more(b)).map_or(bytes.len(), |n| at + n)
        };
        match b {
            b'/' if bytes.get(at) == Some(&b'/') => at = run(at, &|b| b != b'\n'),
            b'"' => {
                while bytes.get(at).is_some_and(|&b| b != b'"') {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'0'..=b'9' => at = run(at, &|b| name(b) || b == b'.'),
            _ if name(b) => {
                at = run(at, &name);
                out.push(&text[from..at]);
            }
            _ if b.is_ascii_graphic() => out.push(&text[from..at]),
            _ => {}
        }
    }
    out
}

/// The names that an item defines: functions, types, enumerators, macros with the names in their bodies, variables. A name
/// too many is harmless: an unneeded item is then included.
fn defines<'a>(words: &[&'a str]) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    let (mut braces, mut brackets, mut list) = (0, 0, false);
    for (n, &word) in words.iter().enumerate() {
        let before = |back: usize| n.checked_sub(back).map_or("", |n| words[n]);
        let next = words.get(n + 1).copied().unwrap_or("");
        match word {
            "{" => {
                list |= before(1) == "enum";
                braces += 1;
            }
            "}" => {
                list = false;
                braces -= 1;
            }
            "(" => brackets += 1,
            ")" => brackets -= 1,
            _ if !is_name(word) => {}
            _ if before(1) == "define" && before(2) == "#" => {
                names.insert(word);
            }
            // The first argument of a `MAKE_` macro is the name that it defines.
            _ if before(1) == "(" && before(2).starts_with("MAKE_") => {
                names.insert(word);
            }
            _ if list => {
                names.insert(word);
            }
            _ if braces == 0 && brackets == 0 => {
                let named = matches!(next, "(" | ";" | "=" | "{" | "<" | ":");
                if named {
                    names.insert(word);
                }
            }
            _ => {}
        }
    }
    for word in
        ["template", "alignas", "sizeof", "static_assert", "asm", "volatile", "struct", "enum", "union"]
    {
        names.remove(word);
    }
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A module has the helpers that its kernels name, with their dependencies, in the order of the files, and nothing
    /// else.
    #[test]
    fn modules_have_the_helpers_that_they_name() {
        let prelude = Prelude::new(&Target::HOPPER);
        let none = prelude.of("extern \"C\" __global__ void k() {}");
        assert_eq!(none, "#define WAVE 32\n#define EARLY_LAUNCH\n");
        let sums = prelude.of("x = team_combine<SUM, 512>(x, scratch);");
        let place = |text: &str| sums.find(text).unwrap_or_else(|| panic!("no `{text}` in\n{sums}"));
        assert!(place("typedef unsigned int u32;") < place("DEV u32 wave_down("));
        assert!(place("DEV u32 wave_down(") < place("T shuffle_down("));
        assert!(place("T shuffle_down(") < place("T team_combine("));
        assert!(!sums.contains("asm") && !sums.contains("sort_key") && !sums.contains("//"), "{sums}");
        let product = prelude.of("Wgmma<bf16, 64>::run<0, 0>(d, a, b, more); ldmatrix_x4_trans(r, p);");
        for text in [
            "FFX_WGMMA_16(bf16,",
            "#define FFX_D8(i)",
            "MAKE_LDMATRIX_4(ldmatrix_x4,",
            "struct alignas(2) bf16",
        ] {
            assert!(product.contains(text), "no `{text}` in\n{product}");
        }
    }

    /// Every common helper uses only functions that all vendors define, apart from those that depend on a feature.
    #[test]
    fn vendors_define_the_same_functions() {
        let of = |files: &[&'static str]| -> BTreeSet<&str> {
            files.iter().flat_map(|f| split(f)).flat_map(|item| defines(&words(item))).collect()
        };
        let (cuda, hip) = (of(Dialect::CUDA.before), of(Dialect::HIP.before));
        let common: BTreeSet<&str> =
            FIRST.iter().chain(&TILES).chain(&[PLAIN]).chain(&LAST).flat_map(|f| words(f)).collect();
        let missing: Vec<_> = cuda.iter().filter(|w| common.contains(*w) && !hip.contains(*w)).collect();
        assert!(missing.is_empty(), "hip lacks {missing:?}");
    }

    /// Prefixed names belong to a compiler; these belong to every vendor's.
    const SHARED: [&str; 8] = [
        "__device__",
        "__global__",
        "__shared__",
        "__restrict__",
        "__forceinline__",
        "__launch_bounds__",
        "__builtin_expect",
        "__builtin_assume",
    ];

    fn check(file: &str, text: &str) {
        for word in words(text) {
            assert!(word != "asm" && (!word.starts_with("__") || SHARED.contains(&word)), "{file}: `{word}`");
        }
    }

    /// Vendor instructions and built-in functions occur only in the vendor's folder: neither in the common helpers nor in
    /// the strings of the code generators.
    #[test]
    fn only_dialects_have_a_vendor() {
        [TYPES, PLAIN]
            .iter()
            .chain(&FIRST)
            .chain(&TILES)
            .chain(&LAST)
            .for_each(|text| check("a common helper", text));
        let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.ends_with("dialect") {
                    folders.push(path);
                } else if path.is_file() {
                    let text = std::fs::read_to_string(&path).unwrap().replace('"', " ").replace("//", " ");
                    check(&path.display().to_string(), &text);
                }
            }
        }
    }
}
