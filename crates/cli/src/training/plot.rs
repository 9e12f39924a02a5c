//! The losses as an SVG: every step in grey, a running mean in colour. Plain text, without a library.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 40.0;
/// More points than pixels are useless.
const POINTS: usize = 1400;

/// A drawing of the losses of a run.
pub(crate) fn losses(title: &str, losses: &[f64]) -> String {
    let finite = || losses.iter().copied().filter(|x| x.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let (low, high) = if low < high { (low, high) } else { (low.min(0.0).min(high), high.max(1.0).max(low)) };
    let (low, high) = if low.is_finite() { (low, high) } else { (0.0, 1.0) };
    let last = losses.len().saturating_sub(1).max(1) as f64;
    let x = |step: f64| LEFT + step / last * (WIDTH - LEFT - RIGHT);
    let y = |loss: f64| TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    // Writing to a string cannot fail.
    for n in 0..=4 {
        let value = low + (high - low) * f64::from(n) / 4.0;
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            crate::show::number(value)
        );
        let step = (last * f64::from(n) / 4.0).round();
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step}</text>",
            x(step),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">step</text>", LEFT, HEIGHT - 6.0);
    line(&mut svg, losses, "#b8b8b8", 1.0, &x, &y);
    line(&mut svg, &smooth(losses), "#c0392b", 1.8, &x, &y);
    svg.push_str("</svg>\n");
    svg
}

fn line(
    svg: &mut String,
    values: &[f64],
    colour: &str,
    width: f64,
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
) {
    let every = values.len().div_ceil(POINTS).max(1);
    let points =
        values.iter().enumerate().filter(|(n, v)| v.is_finite() && (n % every == 0 || n + 1 == values.len()));
    let points: Vec<String> = points.map(|(n, v)| format!("{:.1},{:.1}", x(n as f64), y(*v))).collect();
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" points=\"{}\"/>",
        points.join(" ")
    );
}

/// An exponential running mean over about a fiftieth of the run.
fn smooth(losses: &[f64]) -> Vec<f64> {
    let weight = (50.0 / losses.len().max(1) as f64).min(1.0);
    let mut mean = f64::NAN;
    let one = |&loss: &f64| {
        if loss.is_finite() {
            mean = if mean.is_nan() { loss } else { mean + weight * (loss - mean) };
        }
        mean
    };
    losses.iter().map(one).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::losses;

    #[test]
    fn odd_losses_are_drawn() {
        for list in [&[][..], &[1.0], &[f64::NAN, f64::INFINITY], &[2.0, 2.0], &[3.0, f64::NAN, 1.0]] {
            let svg = losses("a < b", list);
            assert!(svg.ends_with("</svg>\n") && svg.contains("a &lt; b"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
