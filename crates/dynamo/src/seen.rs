//! Which sizes become dynamic: as in PyTorch, a dimension of an argument is a number at first and a symbol from its second
//! size on.

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

#[cfg(test)]
mod tests {
    use super::Seen;

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
