//! Any bytes into the `.fx` parser: an error or a graph, never a panic; a graph prints and reads back equal.

#![no_main]

use fx_ir::text;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    if let Ok(graph) = text::parse(source) {
        let _ = fx_ir::well_formed(&graph);
        let _ = graph.print_readable();
        let printed = text::print(&graph);
        match text::parse(&printed) {
            Ok(again) => assert_eq!(again, text::canonical(&graph), "{printed}"),
            Err(error) => panic!("{error}\n{printed}"),
        }
    }
});
