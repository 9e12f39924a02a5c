//! Any bytes into the `.kir` parser: an error or a program, never a panic; the verifier judges whatever reads, and what it
//! accepts prints and reads back equal.

#![no_main]

use kernel_ir::Program;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(program) = source.parse::<Program>() else { return };
    if kernel_ir::verify(&program).is_ok() {
        let printed = program.to_string();
        match printed.parse::<Program>() {
            // By bytes, because a `NaN` is not equal to itself.
            Ok(again) => assert_eq!(again.to_bytes(), program.to_bytes(), "{printed}"),
            Err(error) => panic!("{error}\n{printed}"),
        }
    }
});
