//! Golden layouts: size and offsets of every table on 64-bit targets. A changed line here is a break of the ABI and
//! demands a new major; an appended one demands a new minor.
#![cfg(target_pointer_width = "64")]
#![allow(clippy::unwrap_used)]

use plugin_abi::{
    DLManagedTensorVersioned, DLTensor, FfxArtifact, FfxCollectivePrograms, FfxCollectives,
    FfxCompileRequest, FfxDescription, FfxDeviceInfo, FfxDeviceMemory, FfxError, FfxExchange,
    FfxExecutableInfo, FfxGroup, FfxHost, FfxInspection, FfxIrVersion, FfxListing, FfxMemoryEstimate,
    FfxNameValue, FfxOptionSpec, FfxPlugin, FfxProgram, FfxRefusal, FfxStepRun, FfxStr, FfxStreams, FfxWorld,
    Table,
};
use std::mem::{offset_of, size_of};

/// `Name size: field@offset+size …`
fn layout<T: Table>() -> String {
    let fields: Vec<_> = T::FIELDS.iter().map(|f| format!("{}@{}+{}", f.name, f.offset, f.size)).collect();
    format!("{} {}: {}", T::NAME, size_of::<T>(), fields.join(" "))
}

const HEAD: &str = "struct_size@0+4 major@4+2 minor@6+2";

fn check<T: Table>(golden: &str) {
    let (name, fields) = golden.split_once(": ").unwrap();
    assert_eq!(layout::<T>(), format!("{name}: {HEAD} {fields}"));
}

#[test]
fn tables_have_their_golden_layout() {
    check::<FfxError>("FfxError 2320: code@8+4 reserved@12+4 node@16+256 message@272+2048");
    check::<FfxHost>("FfxHost 56: ctx@8+8 version@16+16 log@32+8 allocate_memory@40+8 free_memory@48+8");
    check::<FfxOptionSpec>(
        "FfxOptionSpec 80: kind@8+4 reserved@12+4 name@16+16 help@32+16 default_value@48+16 choices@64+8 n_choices@72+8",
    );
    check::<FfxDescription>(
        "FfxDescription 104: name@8+16 version@24+16 summary@40+16 irs@56+8 n_irs@64+8 modes@72+8 n_modes@80+8 \
         options@88+8 n_options@96+8",
    );
    check::<FfxDeviceInfo>(
        "FfxDeviceInfo 72: device@8+8 name@16+16 unavailable_because@32+16 memory_bytes@48+8 attributes@56+8 \
         n_attributes@64+8",
    );
    check::<FfxProgram>("FfxProgram 32: ir@8+8 bytes@16+8 n_bytes@24+8");
    check::<FfxCompileRequest>(
        "FfxCompileRequest 56: program@8+8 device@16+8 mode@24+16 options@40+8 n_options@48+8",
    );
    check::<FfxRefusal>("FfxRefusal 40: node@8+16 reason@24+16");
    check::<FfxMemoryEstimate>("FfxMemoryEstimate 32: constant_bytes@8+8 peak_bytes@16+8 code_bytes@24+8");
    check::<FfxExecutableInfo>("FfxExecutableInfo 32: n_inputs@8+8 n_outputs@16+8 n_constants@24+8");
    check::<FfxDeviceMemory>(
        "FfxDeviceMemory 48: to_device@8+8 to_host@16+8 allocate@24+8 copy@32+8 release_constants@40+8",
    );
    check::<FfxStreams>("FfxStreams 32: create@8+8 synchronize@16+8 destroy@24+8");
    check::<FfxWorld>("FfxWorld 48: rank@8+4 size@12+4 device@16+8 address@24+16 timeout_ms@40+8");
    check::<FfxExchange>(
        "FfxExchange 80: kind@8+4 combine@12+4 dtype@16+4 reserved@20+4 count@24+8 send@32+8 receive@40+8 parameter@48+8 \
         stream@56+8 step@64+16",
    );
    check::<FfxCollectives>(
        "FfxCollectives 80: ctx@8+8 join@16+8 split@24+8 start@32+8 wait@40+8 abort@48+8 leave@56+8 start_several@64+8 adopt@72+8",
    );
    check::<FfxGroup>("FfxGroup 48: name@8+16 engine@24+8 communicator@32+8 rank@40+4 size@44+4");
    check::<FfxCollectivePrograms>("FfxCollectivePrograms 16: attach@8+8");
    check::<FfxInspection>("FfxInspection 24: listings@8+8 observe@16+8");
    check::<FfxListing>("FfxListing 56: step@8+16 language@24+16 text@40+16");
    check::<FfxStepRun>(
        "FfxStepRun 120: device@8+8 program@16+16 step@32+16 ago@48+8 duration@56+8 exchange@64+16 group@80+16 \
         bytes@96+8 exchanges@104+8 stream@112+8",
    );
    check::<FfxArtifact>("FfxArtifact 32: device@8+8 bytes@16+8 n_bytes@24+8");
    check::<FfxPlugin>(
        "FfxPlugin 120: ctx@8+8 describe@16+8 enumerate_devices@24+8 compile@32+8 executable_info@40+8 execute@48+8 \
         executable_destroy@56+8 bind_constants@64+8 query_support@72+8 memory_estimate@80+8 get_extension@88+8 \
         artifact_compat_string@96+8 artifact_save@104+8 artifact_load@112+8",
    );
}

/// A field that the list forgets would be read as null for ever: the listed fields must fill the struct.
#[test]
fn listed_fields_leave_no_gap() {
    fn dense<T: Table>() {
        let mut end = 0;
        for field in T::FIELDS {
            assert_eq!(field.offset, end, "{}::{}", T::NAME, field.name);
            end = field.end();
        }
        assert_eq!(end, size_of::<T>(), "{}", T::NAME);
    }
    dense::<FfxError>();
    dense::<FfxHost>();
    dense::<FfxOptionSpec>();
    dense::<FfxDescription>();
    dense::<FfxDeviceInfo>();
    dense::<FfxProgram>();
    dense::<FfxCompileRequest>();
    dense::<FfxRefusal>();
    dense::<FfxMemoryEstimate>();
    dense::<FfxExecutableInfo>();
    dense::<FfxArtifact>();
    dense::<FfxDeviceMemory>();
    dense::<FfxWorld>();
    dense::<FfxExchange>();
    dense::<FfxCollectives>();
    dense::<FfxGroup>();
    dense::<FfxCollectivePrograms>();
    dense::<FfxStreams>();
    dense::<FfxInspection>();
    dense::<FfxListing>();
    dense::<FfxStepRun>();
    dense::<FfxPlugin>();
}

/// What each released minor had: a table of this size ends at the end of a field, and what came after it is optional.
/// Sizes are in a list that only grows.
#[test]
fn every_released_size_ends_with_a_whole_field() {
    fn ends_at<T: Table>(released: &[usize]) {
        for size in released {
            assert!(T::FIELDS.iter().any(|f| f.end() == *size), "{} of {size} bytes", T::NAME);
        }
        assert_eq!(released.last(), Some(&size_of::<T>()), "{}: this minor's size is in the list", T::NAME);
    }
    // Sizes of each minor, where they differ.
    ends_at::<FfxPlugin>(&[96, 120]);
    ends_at::<FfxDeviceMemory>(&[24, 40, 48]);
    ends_at::<FfxHost>(&[40, 56]);
    ends_at::<FfxError>(&[2320]);
    assert_eq!((plugin_abi::ABI_MAJOR, plugin_abi::ABI_MINOR), (1, 3));
}

/// Error codes and levels are numbers of the contract, too.
#[test]
fn codes_have_their_golden_values() {
    use plugin_abi::*;
    let codes = [
        FFX_OK,
        FFX_ERR_INVALID_ARGUMENT,
        FFX_ERR_UNSUPPORTED,
        FFX_ERR_INCOMPATIBLE,
        FFX_ERR_UNAVAILABLE,
        FFX_ERR_OUT_OF_MEMORY,
        FFX_ERR_PANIC,
        FFX_ERR_INTERNAL,
        FFX_ERR_DAMAGED,
    ];
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((FFX_LEVEL_FX_IR, FFX_LEVEL_KERNEL_IR), (1, 2));
    let kinds = [FFX_OPTION_BOOL, FFX_OPTION_INT, FFX_OPTION_FLOAT, FFX_OPTION_TEXT, FFX_OPTION_CHOICE];
    assert_eq!(kinds, [1, 2, 3, 4, 5]);
    let levels = [FFX_LOG_ERROR, FFX_LOG_WARN, FFX_LOG_INFO, FFX_LOG_DEBUG, FFX_LOG_TRACE];
    assert_eq!(levels, [1, 2, 3, 4, 5]);
    assert_eq!(ENTRY_SYMBOL, "ffx_plugin_entry_v1");
    assert_eq!(
        [DEVICE_MEMORY, STREAMS, INSPECTION],
        ["ferroflux.device-memory.v1", "ferroflux.streams.v1", "ferroflux.inspection.v1"]
    );
}

#[test]
fn frozen_pairs_and_dlpack_have_their_golden_layout() {
    assert_eq!((size_of::<FfxStr>(), offset_of!(FfxStr, len)), (16, 8));
    assert_eq!((size_of::<FfxNameValue>(), offset_of!(FfxNameValue, value)), (32, 16));
    assert_eq!((size_of::<FfxIrVersion>(), offset_of!(FfxIrVersion, minor)), (8, 6));
    let tensor = [
        offset_of!(DLTensor, data),
        offset_of!(DLTensor, device),
        offset_of!(DLTensor, ndim),
        offset_of!(DLTensor, dtype),
        offset_of!(DLTensor, shape),
        offset_of!(DLTensor, strides),
        offset_of!(DLTensor, byte_offset),
        size_of::<DLTensor>(),
    ];
    assert_eq!(tensor, [0, 8, 16, 20, 24, 32, 40, 48]);
    let managed = [
        offset_of!(DLManagedTensorVersioned, manager_ctx),
        offset_of!(DLManagedTensorVersioned, deleter),
        offset_of!(DLManagedTensorVersioned, flags),
        offset_of!(DLManagedTensorVersioned, dl_tensor),
        size_of::<DLManagedTensorVersioned>(),
    ];
    assert_eq!(managed, [8, 16, 24, 32, 80]);
}
