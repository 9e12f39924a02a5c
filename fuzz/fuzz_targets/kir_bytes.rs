//! Any bytes as a kernel-ir program, as a plugin receives it: an error or a program, never a panic; the verifier judges
//! whatever reads, and a program that reads writes and reads back equal.

#![no_main]

use kernel_ir::Program;
use libfuzzer_sys::fuzz_target;

/// The header of the format, so that a fuzzer need not find it.
const HEADER: &[u8] = b"FFXK\x01\0\0\0";

fuzz_target!(|data: &[u8]| {
    let _ = Program::from_bytes(data);
    if let Ok(program) = Program::from_bytes(&[HEADER, data].concat()) {
        let _ = kernel_ir::verify(&program);
        let bytes = program.to_bytes();
        match Program::from_bytes(&bytes) {
            Ok(again) => assert_eq!(again.to_bytes(), bytes),
            Err(error) => panic!("{error}"),
        }
    }
});
