//! `ferroflux backends`: every backend, usable or not.

use std::io::Write;

use anyhow::Result;
use ferroflux::{BackendInfo, DeviceInfo, list_backends};

use crate::show;

/// Arguments of `backends`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prints a JSON array instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let backends = list_backends();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&backends)?)?;
        return Ok(());
    }
    for backend in &backends {
        print(backend, out)?;
    }
    Ok(())
}

fn print(b: &BackendInfo, out: &mut dyn Write) -> Result<()> {
    let state =
        b.unavailable_because.as_deref().map_or("ready".to_owned(), |why| format!("unavailable: {why}"));
    writeln!(out, "{}: {state}", b.name)?;
    let version = if b.version.is_empty() { String::new() } else { format!(", version {}", b.version) };
    if !b.summary.is_empty() {
        writeln!(out, "  {}", b.summary)?;
    }
    writeln!(out, "  from: {}{version}", b.source)?;
    if !b.modes.is_empty() {
        writeln!(out, "  modes: {}", b.modes.join(", "))?;
    }
    for device in &b.devices {
        writeln!(out, "  device: {}", device_text(device))?;
    }
    for o in &b.options {
        let default = if o.default.is_empty() { String::new() } else { format!(" (default {})", o.default) };
        writeln!(out, "  option {}: {}{default}", o.name, o.help)?;
    }
    Ok(())
}

fn device_text(device: &DeviceInfo) -> String {
    let mut text = device.name.clone();
    if device.memory_bytes > 0 {
        text.push_str(&format!(", {}", show::bytes(device.memory_bytes)));
    }
    for (name, value) in &device.attributes {
        text.push_str(&format!(", {name} {value}"));
    }
    if let Some(why) = &device.unavailable_because {
        text.push_str(&format!("; unavailable: {why}"));
    }
    text
}
