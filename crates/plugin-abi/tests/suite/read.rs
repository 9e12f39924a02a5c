//! The rule for reading tables of other versions: truncated, newer, and not tables at all.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::mem::offset_of;

use plugin_abi::table::read;
use plugin_abi::{FfxPlugin, FfxStr, Head, TableError, text_bytes, write_text};

unsafe extern "C" fn no_extension(_: *mut c_void, _: FfxStr) -> *const c_void {
    std::ptr::null()
}

fn plugin() -> FfxPlugin {
    FfxPlugin {
        head: Head::of::<FfxPlugin>(),
        ctx: std::ptr::null_mut(),
        describe: None,
        enumerate_devices: None,
        compile: None,
        executable_info: None,
        execute: None,
        executable_destroy: None,
        bind_constants: None,
        query_support: None,
        memory_estimate: None,
        get_extension: Some(no_extension),
        artifact_compat_string: None,
        artifact_save: None,
        artifact_load: None,
    }
}

fn read_plugin(table: &FfxPlugin) -> Result<FfxPlugin, TableError> {
    // SAFETY: a live table.
    unsafe { read(table) }
}

#[test]
fn a_slot_is_read_only_where_it_is_covered_whole() {
    let mut table = plugin();
    assert!(read_plugin(&table).unwrap().get_extension.is_some());
    let end = offset_of!(FfxPlugin, get_extension) + 8;
    for cut in [1, 4, 7, 8] {
        table.head.struct_size = (end - cut) as u32;
        assert!(read_plugin(&table).unwrap().get_extension.is_none(), "{cut} bytes short");
    }
    table.head.struct_size = (offset_of!(FfxPlugin, get_extension) + 8) as u32;
    assert!(read_plugin(&table).unwrap().get_extension.is_some());
}

#[test]
fn a_newer_and_larger_table_is_read_as_far_as_it_is_known() {
    #[repr(C)]
    struct Newer {
        known: FfxPlugin,
        unknown: [usize; 3],
    }
    let mut newer = Newer { known: plugin(), unknown: [usize::MAX; 3] };
    newer.known.head =
        Head { struct_size: size_of::<Newer>() as u32, major: plugin_abi::ABI_MAJOR, minor: 99 };
    let read = read_plugin(&newer.known).unwrap();
    assert!(read.get_extension.is_some());
    assert_eq!((read.head.minor, read.head.struct_size as usize), (99, size_of::<Newer>()));
    assert_eq!(newer.unknown, [usize::MAX; 3]);
}

#[test]
fn what_is_no_table_is_refused() {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { read::<FfxPlugin>(std::ptr::null()) }.err(), Some(TableError::Null));
    let mut table = plugin();
    table.head.struct_size = 7;
    assert_eq!(read_plugin(&table).err(), Some(TableError::Truncated(7)));
    table.head = Head { struct_size: 96, major: 2, minor: 0 };
    assert_eq!(read_plugin(&table).err(), Some(TableError::Major(2)));
    let off = std::ptr::from_ref(&table).cast::<u8>().wrapping_add(1).cast::<FfxPlugin>();
    // SAFETY: misalignment is found before anything is read.
    assert_eq!(unsafe { read(off) }.err(), Some(TableError::Misaligned));
}

#[test]
fn fixed_texts_are_cut_at_a_character_and_end_with_nul() {
    let mut buffer = [1u8; 6];
    write_text(&mut buffer, "abcé€");
    assert_eq!((text_bytes(&buffer), buffer[5]), ("abcé".as_bytes(), 0));
    write_text(&mut buffer, "a\0b");
    assert_eq!(text_bytes(&buffer), b"a");
    assert_eq!(text_bytes(b"no end"), b"no end");
    write_text(&mut [], "nothing fits");
}
