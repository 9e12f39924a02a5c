//! The report as JUnit XML, which every CI system reads: one test case a check.

use std::fmt::Write as _;
use std::path::Path;

use crate::report::{Outcome, Report, Status};

impl Report {
    /// JUnit XML: a suite named after the library. Declined and skipped checks are `skipped`.
    pub fn junit(&self) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let skipped = self.count(Status::Declined) + self.count(Status::Skipped);
        let seconds: f64 = self.outcomes.iter().map(|o| o.seconds).sum();
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{skipped}\" time=\"{seconds:.3}\">",
            escaped(&self.library.display().to_string()),
            self.outcomes.len(),
            self.count(Status::Failed),
        );
        self.outcomes.iter().for_each(|o| case(o, &mut out));
        out.push_str("</testsuite>\n");
        out
    }
}

impl Report {
    /// Writes the XML, whole or not at all.
    ///
    /// # Errors
    /// The file system's.
    pub fn write_junit(&self, file: &Path) -> std::io::Result<()> {
        ir_core::write_whole(file, self.junit().as_bytes())
    }
}

fn case(o: &Outcome, out: &mut String) {
    let _ = write!(
        out,
        "  <testcase classname=\"ferroflux.conformance\" name=\"{}\" time=\"{:.3}\"",
        escaped(o.name),
        o.seconds
    );
    let detail = escaped(&o.detail());
    let _ = match o.status {
        Status::Passed => writeln!(out, "/>"),
        Status::Declined | Status::Skipped => {
            writeln!(out, "><skipped message=\"{detail}\"/></testcase>")
        }
        Status::Failed => {
            let all: Vec<_> = o.failures.iter().map(|r| format!("{}: {}", r.case, r.message)).collect();
            let text = escaped(&o.end.iter().cloned().chain(all).collect::<Vec<_>>().join("\n"));
            writeln!(out, "><failure message=\"{detail}\">{text}</failure></testcase>")
        }
    };
}

/// Text for an attribute or an element; characters that XML 1.0 does not have become `?`.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => out.push(c),
            _ => out.push('?'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CaseNote;

    fn outcome(name: &'static str, status: Status, failures: Vec<CaseNote>) -> Outcome {
        let (about, declined, end) = ("a thing", vec![], None);
        Outcome { name, about, status, passed: 1, failures, declined, end, seconds: 0.25 }
    }

    #[test]
    fn failures_are_escaped_and_counted() {
        let remark = CaseNote { case: "add <f32>".into(), message: "3 & \u{1} not \"4\"".into() };
        let outcomes = vec![outcome("a", Status::Passed, vec![]), outcome("b", Status::Failed, vec![remark])];
        let xml = Report { library: "lib<x>.so".into(), outcomes }.junit();
        let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="lib&lt;x&gt;.so" tests="2" failures="1" errors="0" skipped="0" time="0.500">
  <testcase classname="ferroflux.conformance" name="a" time="0.250"/>
  <testcase classname="ferroflux.conformance" name="b" time="0.250"><failure message="add &lt;f32&gt;: 3 &amp; ? not &quot;4&quot;">add &lt;f32&gt;: 3 &amp; ? not &quot;4&quot;</failure></testcase>
</testsuite>
"#;
        assert_eq!(xml, expected);
    }
}
