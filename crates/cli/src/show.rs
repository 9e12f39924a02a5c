//! Tensors, numbers, times and sizes as text.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use ferroflux::ir_core::Scalar;
use ferroflux::{InputInfo, Tensor};

/// How many values of a tensor are shown.
pub(crate) const VALUES: usize = 8;

/// `f32[2, 3] = [0.5, 1.25, …]`: the first values in row-major order.
pub(crate) fn tensor(tensor: &Tensor) -> String {
    let values: Vec<String> = tensor.iter().take(VALUES).map(scalar).collect();
    let more = if tensor.numel() > VALUES { ", …" } else { "" };
    match tensor.rank() {
        0 => format!("{} = {}", type_of(tensor), values.concat()),
        _ => format!("{} = [{}{more}]", type_of(tensor), values.join(", ")),
    }
}

/// `f32[2, 3]`; `f32[]` for a scalar.
pub(crate) fn type_of(tensor: &Tensor) -> String {
    format!("{}{:?}", tensor.dtype(), tensor.sizes())
}

/// `x: f32[2, 3]`, `k: an integer`, `mode = "mean", as the model was exported`.
pub(crate) fn input(info: &InputInfo) -> String {
    match info.is_constant() {
        true => format!("{} = {}, as the model was exported", info.name, info.kind),
        false => format!("{}: {}", info.name, info.kind),
    }
}

fn scalar(value: Scalar) -> String {
    match value {
        Scalar::Float(x) => number(x),
        Scalar::Complex(re, im) => {
            format!("{}{}{}j", number(re), if im.is_sign_negative() { "-" } else { "+" }, number(im.abs()))
        }
        other => other.to_string(),
    }
}

/// Five significant digits.
pub(crate) fn number(x: f64) -> String {
    let size = x.abs();
    if x == 0.0 || !x.is_finite() {
        format!("{x}")
    } else if !(1e-4..1e6).contains(&size) {
        format!("{x:.4e}")
    } else {
        let digits = (4 - size.log10().floor() as i32).max(0) as usize;
        format!("{x:.digits$}")
    }
}

/// `0.42 ms`, `1.53 s`.
pub(crate) fn time(time: Duration) -> String {
    let ms = millis(time);
    match ms {
        _ if ms >= 1000.0 => format!("{:.2} s", ms / 1000.0),
        _ if ms >= 100.0 => format!("{ms:.0} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

/// Milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `rounded` to `digits` decimals, for JSON.
pub(crate) fn rounded(x: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (x * factor).round() / factor
}

/// `640 B`, `1.5 KiB`, `12.0 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    for unit in ["KiB", "MiB", "GiB"] {
        size /= 1024.0;
        if size < 1024.0 {
            return format!("{size:.1} {unit}");
        }
    }
    format!("{:.1} TiB", size / 1024.0)
}

/// `1 kernel`, `3 kernels`.
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Columns side by side, each as wide as its widest cell.
pub(crate) fn columns(rows: &[Vec<String>], out: &mut dyn Write) -> Result<()> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_five_digits() {
        let cases =
            [(0.0, "0"), (1.0, "1.0000"), (-3.4784923, "-3.4785"), (123456.7, "123457"), (1e-9, "1.0000e-9")];
        for (x, wanted) in cases {
            assert_eq!(number(x), wanted);
        }
        assert_eq!(number(f64::NAN), "NaN");
    }

    #[test]
    fn sizes_have_units() {
        let cases = [(640, "640 B"), (1536, "1.5 KiB"), (12 << 20, "12.0 MiB")];
        for (n, wanted) in cases {
            assert_eq!(bytes(n), wanted);
        }
    }
}
