//! What calibration observes of an activation, and the affine quantization to `u8` that follows from it.

/// A quantization of activations to `u8`: `round(x / scale) + zero_point`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// The step between two integers.
    pub scale: f64,
    /// The integer that 0 becomes.
    pub zero_point: i64,
}

/// Largest integer of an activation.
const MOST: f64 = 255.0;
/// The smallest step, as PyTorch's observers have it: the distance of 1 to the next `f32`.
const LEAST_SCALE: f64 = f32::EPSILON as f64;

impl Affine {
    /// The quantization of a range, which is widened to have 0 in it.
    pub fn of_range(low: f64, high: f64) -> Affine {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let scale = ((high - low) / MOST).max(LEAST_SCALE);
        let zero_point = (-low / scale).round_ties_even().clamp(0.0, MOST);
        Affine { scale, zero_point: zero_point as i64 }
    }

    /// The number that is left of `x`.
    pub fn rounded(&self, x: f64) -> f64 {
        let zero = self.zero_point as f64;
        let integer = ((x / self.scale).round_ties_even() + zero).clamp(0.0, MOST);
        (integer - zero) * self.scale
    }
}

/// How the range of an activation is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observation {
    /// The smallest and the largest value of all.
    MinMax,
    /// Running means of the smallest and the largest value of each batch.
    MovingAverage,
    /// The range with the least squared error of all values, which may cut off a few.
    #[default]
    Histogram,
}

/// The weight of a batch in a running mean, PyTorch's default.
const WEIGHT: f64 = 0.01;
/// Bins of a histogram.
const BINS: usize = 2048;
/// Places of each end of the range that are tried.
const CUTS: usize = 64;

/// What was seen of one activation.
#[derive(Clone, Debug)]
pub struct Observer {
    how: Observation,
    /// The smallest and the largest value.
    range: Option<(f64, f64)>,
    /// Counts of values in equal parts of the range.
    bins: Vec<f64>,
}

impl Observer {
    /// One that has seen nothing.
    pub fn new(how: Observation) -> Observer {
        Observer { how, range: None, bins: Vec::new() }
    }

    /// Sees a batch of values; those that are not finite are left out.
    pub fn observe(&mut self, values: &[f64]) {
        let finite = values.iter().copied().filter(|x| x.is_finite());
        let ends = finite.clone().fold(None, |ends: Option<(f64, f64)>, x| {
            Some(ends.map_or((x, x), |(low, high)| (low.min(x), high.max(x))))
        });
        let Some((low, high)) = ends else { return };
        match self.how {
            Observation::MovingAverage => {
                let mean = |old: f64, new: f64| old + WEIGHT * (new - old);
                self.range = Some(match self.range {
                    Some((l, h)) => (mean(l, low), mean(h, high)),
                    None => (low, high),
                });
            }
            Observation::MinMax => self.widen(low, high),
            Observation::Histogram => {
                let old = self.range;
                self.widen(low, high);
                self.redistribute(old);
                finite.for_each(|x| self.count(x, 1.0));
            }
        }
    }

    fn widen(&mut self, low: f64, high: f64) {
        self.range = Some(self.range.map_or((low, high), |(l, h)| (l.min(low), h.max(high))));
    }

    /// Moves the counts of the old range to the bins of the new one.
    fn redistribute(&mut self, old: Option<(f64, f64)>) {
        if old == self.range && !self.bins.is_empty() {
            return;
        }
        let counts = std::mem::replace(&mut self.bins, vec![0.0; BINS]);
        let Some((low, high)) = old else { return };
        let width = (high - low) / BINS as f64;
        for (n, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0.0) {
            self.count(low + (n as f64 + 0.5) * width, count);
        }
    }

    fn count(&mut self, x: f64, count: f64) {
        let Some((low, high)) = self.range else { return };
        let place = if high > low { (x - low) / (high - low) * BINS as f64 } else { 0.0 };
        self.bins[(place as usize).min(BINS - 1)] += count;
    }

    /// The quantization; `None` where no finite value was seen.
    pub fn affine(&self) -> Option<Affine> {
        let (low, high) = self.range?;
        if self.how != Observation::Histogram || high <= low {
            return Some(Affine::of_range(low, high));
        }
        let cut = |n: usize| (high - low) * n as f64 / CUTS as f64;
        let mut best = (Affine::of_range(low, high), f64::INFINITY);
        for below in 0..CUTS {
            for above in 0..CUTS {
                let affine = Affine::of_range(low + cut(below), high - cut(above));
                let error = self.error(&affine, (low, high), best.1);
                if error < best.1 {
                    best = (affine, error);
                }
                // Cutting more can only be worse where nothing but 0 is left on that side.
                if high - cut(above) <= 0.0 {
                    break;
                }
            }
            if low + cut(below) >= 0.0 {
                break;
            }
        }
        Some(best.0)
    }

    /// The sum of squared errors of all values; more than `most` is not added up.
    fn error(&self, affine: &Affine, (low, high): (f64, f64), most: f64) -> f64 {
        let width = (high - low) / BINS as f64;
        let zero = affine.zero_point as f64;
        let (first, last) = (-zero * affine.scale, (MOST - zero) * affine.scale);
        // Values within a step are as likely as each other: their mean squared distance to the next integer.
        let inside = affine.scale * affine.scale / 12.0;
        let mut sum = 0.0;
        for (n, count) in self.bins.iter().enumerate().filter(|(_, count)| **count > 0.0) {
            let x = low + (n as f64 + 0.5) * width;
            let outside = (first - x).max(x - last).max(0.0);
            sum += count * (inside + outside * outside);
            if sum >= most {
                break;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(how: Observation, batches: &[&[f64]]) -> Affine {
        let mut observer = Observer::new(how);
        batches.iter().for_each(|batch| observer.observe(batch));
        observer.affine().unwrap()
    }

    #[test]
    fn ranges_have_zero_in_them() {
        let affine = seen(Observation::MinMax, &[&[2.0, 5.1], &[f64::NAN, 3.0]]);
        assert_eq!(affine, Affine { scale: 5.1 / 255.0, zero_point: 0 });
        let affine = seen(Observation::MinMax, &[&[-1.0, 1.0]]);
        assert_eq!(affine.zero_point, 128);
        assert_eq!(affine.rounded(0.0), 0.0);
        assert!((affine.rounded(0.3) - 0.3).abs() <= affine.scale / 2.0);
        assert_eq!(Observer::new(Observation::MinMax).affine(), None);
    }

    #[test]
    fn running_means_forget() {
        let affine = seen(Observation::MovingAverage, &[&[0.0, 1.0], &[0.0, 101.0]]);
        assert!((affine.scale * 255.0 - 2.0).abs() < 1e-9, "{affine:?}");
    }

    #[test]
    fn histograms_cut_off_what_is_rare() {
        let values: Vec<f64> = (0..200_000).map(|n| f64::from(n) / 200_000.0).collect();
        let mut batches = vec![&values[..]; 50];
        batches.push(&[8.0]);
        let (cut, whole) = (seen(Observation::Histogram, &batches), seen(Observation::MinMax, &batches));
        let of = |a: &Affine, x: f64| (a.rounded(x) - x).powi(2);
        let error = |a: &Affine| 50.0 * values.iter().map(|x| of(a, *x)).sum::<f64>() + of(a, 8.0);
        assert!(cut.scale < whole.scale / 2.0, "{cut:?} {whole:?}");
        assert!(error(&cut) < error(&whole) / 2.0, "{} {}", error(&cut), error(&whole));
        // A value far away that many have is kept.
        let many = vec![8.0; 100_000];
        let kept = seen(Observation::Histogram, &[&values, &many, &values]);
        assert!((kept.scale * 255.0 - 8.0).abs() < 0.2, "{kept:?}");
    }
}
