//! Whether this processor's gathers are worth their instruction. Knows no leaf.
//!
//! On some processors a gather takes little longer than loads of its elements one by one, and the code around it stays wide. On others
//! it takes several times as long, since their microcode guards against what gathers may leak (Intel's Skylake to Ice Lake, since
//! August 2023); loops with an address for each point are then quicker in 128-bit code, which loads elements one by one.

use std::arch::x86_64::{
    __cpuid, __m256, __m512i, _mm256_add_ps, _mm256_setr_ps, _mm256_setzero_ps, _mm512_i64gather_ps,
    _mm512_loadu_si512,
};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Gathers that are timed together.
const TIMED: usize = 256;
/// Elements that indices tell apart: all of them in the first-level cache.
const ELEMENTS: usize = 1024;

type Elements = [f32; ELEMENTS];
type Indices = [[i64; 8]; TIMED];

/// Whether a gather by 64-bit indices, as leaves have them, takes less than one and a half times as long as single loads. Where
/// nothing is known of the processor it is measured once, for some microseconds; needs AVX-512.
///
/// The order in which loops add depends on their width, and so on this answer: processes that are to agree to the last digit
/// need the same one, which a measurement on a busy machine does not promise.
pub(super) fn pay() -> bool {
    static PAY: OnceLock<bool> = OnceLock::new();
    *PAY.get_or_init(|| !guarded() && measured())
}

/// Models of Intel's family 6 with AVX-512 whose gathers leak, as Intel lists them for gather data sampling (CVE-2022-40982): servers
/// of Skylake to Cooper Lake, Ice Lake, Tiger Lake and Rocket Lake.
const LEAKING: [u32; 7] = [0x55, 0x6a, 0x6c, 0x7e, 0x8c, 0x8d, 0xa7];

/// Whether microcode guards the gathers of this processor. Systems that cannot tell (a guest does not see its host's microcode) are
/// taken to have it.
fn guarded() -> bool {
    // "GenuineIntel", in the order of the registers.
    let maker = __cpuid(0);
    let intel = (maker.ebx, maker.edx, maker.ecx) == (0x756e_6547, 0x4965_6e69, 0x6c65_746e);
    let version = __cpuid(1).eax;
    let (family, model) = ((version >> 8) & 0xf, ((version >> 12) & 0xf0) | ((version >> 4) & 0xf));
    let told = || std::fs::read_to_string("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling");
    intel
        && family == 6
        && LEAKING.contains(&model)
        && !told().is_ok_and(|text| text.starts_with("Vulnerable"))
}

/// What [`pay`] asks, of this processor as it is now.
fn measured() -> bool {
    let data = [1.0; ELEMENTS];
    let indices: Indices =
        std::array::from_fn(|n| std::array::from_fn(|i| ((8 * n + i) * 37 % ELEMENTS) as i64));
    let best = |sum: unsafe fn(&Elements, &Indices) -> __m256| {
        let time = || {
            let start = Instant::now();
            // SAFETY: the caller has asked for AVX-512, and every index is below the number of elements.
            black_box(unsafe { sum(black_box(&data), black_box(&indices)) });
            start.elapsed()
        };
        (0..8).map(|_| time()).min().unwrap_or(Duration::MAX)
    };
    // Where microcode guards gathers they take 3.7 times as long as loads, beside another thread on the same core 2.1 times (Xeon,
    // family 6 model 85).
    best(gathered) * 2 < best(loaded) * 3
}

/// # Safety
/// AVX-512; indices below the number of elements.
#[target_feature(enable = "avx512f")]
unsafe fn gathered(data: &Elements, indices: &Indices) -> __m256 {
    let mut sum = _mm256_setzero_ps();
    for eight in indices {
        // SAFETY: eight indices, each of an element.
        let next = unsafe {
            let at: __m512i = _mm512_loadu_si512(eight.as_ptr().cast());
            _mm512_i64gather_ps::<4>(at, data.as_ptr())
        };
        sum = _mm256_add_ps(sum, next);
    }
    sum
}

/// # Safety
/// AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn loaded(data: &Elements, indices: &Indices) -> __m256 {
    let mut sum = _mm256_setzero_ps();
    for eight in indices {
        // Without a check of the index, in any profile.
        let [a, b, c, d, e, f, g, h] = eight.map(|i| data[i as usize % ELEMENTS]);
        sum = _mm256_add_ps(sum, _mm256_setr_ps(a, b, c, d, e, f, g, h));
    }
    sum
}
