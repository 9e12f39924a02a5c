//! Logging by stage: `--log` or FERROFLUX_LOG. Nothing is set up if neither is given.

use anyhow::Result;
use ferroflux::log::STAGES;
use tracing_subscriber::EnvFilter;

use crate::report::usage;

/// Sets up the log. `option` takes precedence over the variable, both over `usual`, the command's own default.
pub(crate) fn start(option: Option<&str>, usual: Option<&str>) -> Result<()> {
    let requested = option.map(str::to_owned).or_else(|| std::env::var("FERROFLUX_LOG").ok());
    let Some(text) = requested.or_else(|| usual.map(str::to_owned)) else {
        return Ok(());
    };
    let names: Vec<&str> = STAGES.iter().map(|s| s.0).collect();
    let wrong = |e: String| {
        usage(
            format!("`{text}` is no log filter: {e}"),
            format!(
                "give a level (error, warn, info, debug, trace), stages ({}), or `crate=level`, separated by commas",
                names.join(", ")
            ),
        )
    };
    let filter = EnvFilter::try_new(directives(&text)).map_err(|e| wrong(e.to_string()))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .try_init()
        .map_err(|e| wrong(e.to_string()))
}

/// Stages as directives of their crates: `aot` is `aot_autograd=debug`, `aot=info` is `aot_autograd=info`.
fn directives(text: &str) -> String {
    let one = |part: &str| {
        let (name, level) = part.split_once('=').unwrap_or((part, "debug"));
        match STAGES.iter().find(|s| s.0 == name) {
            Some((_, crates)) => crates.iter().map(|c| format!("{c}={level}")).collect::<Vec<_>>().join(","),
            None => part.to_owned(),
        }
    };
    text.split(',').map(str::trim).filter(|p| !p.is_empty()).map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::directives;

    #[test]
    fn stages_are_their_crates() {
        assert_eq!(directives("fusion"), "fusion=debug,inductor=debug");
        assert_eq!(directives("info, archive=trace"), "info,pt2=trace");
        assert_eq!(directives("kernel=info"), "kernel=info,backend_cpu=info,kernel_ir=info");
    }
}
