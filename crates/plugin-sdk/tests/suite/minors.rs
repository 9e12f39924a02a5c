//! A plugin of this minor in a host of an earlier one: the host is a C program built against that minor's header. The
//! other way round, a plugin of an earlier minor in this host, is in the tests of the C example.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common;

use std::path::Path;
use std::process::Command;

#[test]
fn a_host_of_an_earlier_minor_runs_this_plugin() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::TempDir::new().unwrap();
    for (minor, newer, larger) in [
        ("released/1.0", true, true),
        ("released/1.1", true, false),
        ("released/1.2", true, false),
        ("", false, false),
    ] {
        let binary = folder.path().join("host");
        let include = here.join("../plugin-abi/include").join(minor);
        let built = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            .arg(format!("-I{}", include.display()))
            .arg(here.join("tests/old_host.c"))
            .args([Path::new("-o"), &binary, Path::new("-ldl")])
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let run = Command::new(&binary).arg(common::library("fixture")).output().unwrap();
        let (out, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{minor}: {errors}");
        let (newer, larger) = (i32::from(newer), i32::from(larger));
        let wanted = format!(
            "table 1.{newer} larger {larger}\nname fixture devices 2 logged 1\noutputs 3.5 6.5\n\
             error 1 the program takes 1 \n"
        );
        assert_eq!(out, wanted, "{minor}");
    }
}
