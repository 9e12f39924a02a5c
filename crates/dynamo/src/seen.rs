//! Which sizes and floats become dynamic: as in PyTorch, a dimension of an argument is a number at first and a symbol from its
//! second size on. Floats of recorded operators are constants for their first values.

use smallvec::SmallVec;

/// The sizes that a declared dynamic dimension may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimRange {
    /// Smallest size, inclusive.
    pub min: i64,
    /// Largest size, inclusive; `None` is unbounded.
    pub max: Option<i64>,
}

/// The sizes that the arguments of a function have had. Arguments of another rank begin anew.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    arguments: Vec<SmallVec<[Dim; 4]>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Dim {
    Always(i64),
    Varied,
}

impl Seen {
    /// Records the sizes of one call's arguments.
    pub fn add<'a>(&mut self, sizes: impl Iterator<Item = &'a [i64]>) {
        for (n, sizes) in sizes.enumerate() {
            if self.arguments.len() <= n {
                self.arguments.push(SmallVec::new());
            }
            let seen = &mut self.arguments[n];
            if seen.len() != sizes.len() {
                *seen = sizes.iter().map(|&s| Dim::Always(s)).collect();
                continue;
            }
            for (dim, &size) in seen.iter_mut().zip(sizes) {
                if *dim != Dim::Always(size) {
                    *dim = Dim::Varied;
                }
            }
        }
    }

    /// Whether a dimension has had several sizes.
    pub fn varied(&self, argument: usize, dim: usize) -> bool {
        self.arguments.get(argument).and_then(|a| a.get(dim)) == Some(&Dim::Varied)
    }
}

/// Values of a float at one place that are constants. A program has a few numbers at places of the same structure; a schedule
/// has another one at every step.
const CONSTANTS: usize = 3;

/// The floats that calls of one structure have had.
#[derive(Clone, Debug, Default)]
pub struct SeenFloats {
    /// The bits of the first values at each place.
    places: Vec<SmallVec<[u64; CONSTANTS + 1]>>,
}

impl SeenFloats {
    /// Records the floats of one run.
    pub fn add(&mut self, floats: &[f64]) {
        self.places.resize_with(self.places.len().max(floats.len()), SmallVec::new);
        for (seen, x) in self.places.iter_mut().zip(floats) {
            if seen.len() <= CONSTANTS && !seen.contains(&x.to_bits()) {
                seen.push(x.to_bits());
            }
        }
    }

    /// Whether the float at this place has had more values than constants have.
    pub fn varied(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|seen| seen.len() > CONSTANTS)
    }
}

#[cfg(test)]
mod tests {
    use super::{Seen, SeenFloats};

    #[test]
    fn a_float_varies_from_its_fourth_value_on() {
        let mut seen = SeenFloats::default();
        for x in [0.5, 2.0, 0.5, 2.0, 3.0] {
            seen.add(&[x, 1.0]);
        }
        assert!(!seen.varied(0) && !seen.varied(1));
        seen.add(&[4.0, 1.0]);
        assert!(seen.varied(0) && !seen.varied(1) && !seen.varied(2));
    }

    #[test]
    fn a_dimension_varies_from_its_second_size_on() {
        let mut seen = Seen::default();
        let one = |seen: &mut Seen, x: &[i64]| seen.add([x].into_iter());
        one(&mut seen, &[2, 3]);
        assert!(!seen.varied(0, 0));
        one(&mut seen, &[4, 3]);
        assert!(seen.varied(0, 0) && !seen.varied(0, 1) && !seen.varied(1, 0));
        one(&mut seen, &[4]);
        assert!(!seen.varied(0, 0), "another rank begins anew");
    }
}
