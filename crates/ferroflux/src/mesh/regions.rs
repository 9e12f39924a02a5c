//! Where a rank's part lies in its tensor: the ranges along every dimension that it consists of, one or, where a dimension is in
//! sections, several; and copies of such ranges between row-major arrays.
//!
//! Not here: which part a rank has (`sharding`).

use std::collections::BTreeMap;

use sharding::Part;

use crate::Error;

/// Where a part lies in its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPlace {
    /// Sizes of the whole tensor.
    pub whole: Vec<usize>,
    /// The index of the part's first element.
    pub first: Vec<usize>,
    /// Of dimensions in sections: the ranges of the whole that follow one another in the part, by first index and length.
    pub pieces: BTreeMap<usize, Vec<(usize, usize)>>,
}

/// A range along every dimension, in a part and in the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// First index in the whole.
    pub(super) first: Vec<usize>,
    /// First index in the part.
    pub(super) at: Vec<usize>,
    /// Lengths.
    pub(super) sizes: Vec<usize>,
}

impl PartPlace {
    /// That of a part of a tensor with these sizes.
    pub(super) fn of(part: &Part, whole: &[usize]) -> Result<PartPlace, Error> {
        let pair = |(first, length): &_| Ok((number(first)?, number(length)?));
        let pieces = part.pieces.iter().map(|(dim, list)| {
            let list = list.iter().map(pair).collect::<Result<Vec<_>, Error>>()?;
            Ok((*dim, list))
        });
        Ok(PartPlace {
            whole: whole.to_vec(),
            first: numbers(&part.offsets)?,
            pieces: pieces.collect::<Result<_, Error>>()?,
        })
    }

    /// Whether a part of these sizes lies within the whole.
    pub fn fits(&self, sizes: &[usize]) -> bool {
        let rank = sizes.len();
        let within = |dim: usize, first: usize, length: usize| {
            first.checked_add(length).is_some_and(|end| end <= self.whole[dim])
        };
        let fits = |dim: usize| match self.pieces.get(&dim) {
            None => within(dim, self.first[dim], sizes[dim]),
            Some(list) => {
                let total = list.iter().try_fold(0usize, |sum, (_, length)| sum.checked_add(*length));
                total == Some(sizes[dim]) && list.iter().all(|(first, length)| within(dim, *first, *length))
            }
        };
        let known = self.pieces.keys().all(|dim| *dim < rank);
        self.first.len() == rank && self.whole.len() == rank && known && (0..rank).all(fits)
    }

    /// The ranges that a part of these sizes consists of; it fits.
    pub(super) fn regions(&self, sizes: &[usize]) -> Vec<Region> {
        let mut all = vec![Region { first: Vec::new(), at: Vec::new(), sizes: Vec::new() }];
        for (dim, size) in sizes.iter().enumerate() {
            let one = [(self.first[dim], *size)];
            let pieces = self.pieces.get(&dim).map_or(&one[..], |list| &list[..]);
            let mut next = Vec::new();
            for region in &all {
                let mut at = 0;
                for (first, length) in pieces {
                    let mut region = region.clone();
                    region.first.push(*first);
                    region.at.push(at);
                    region.sizes.push(*length);
                    next.push(region);
                    at += length;
                }
            }
            all = next;
        }
        all
    }
}

impl Region {
    /// What two regions of one whole have in common; `None` where that is nothing.
    pub(super) fn common(&self, other: &Region) -> Option<Common> {
        let mut common = Common { own: Vec::new(), other: Vec::new(), sizes: Vec::new() };
        for dim in 0..self.sizes.len() {
            let begin = self.first[dim].max(other.first[dim]);
            let end = (self.first[dim] + self.sizes[dim]).min(other.first[dim] + other.sizes[dim]);
            common.sizes.push(end.checked_sub(begin).filter(|n| *n > 0)?);
            common.own.push(self.at[dim] + begin - self.first[dim]);
            common.other.push(other.at[dim] + begin - other.first[dim]);
        }
        Some(common)
    }
}

/// A range that two parts have in common: its first index in each, and its lengths.
pub(super) struct Common {
    pub(super) own: Vec<usize>,
    pub(super) other: Vec<usize>,
    pub(super) sizes: Vec<usize>,
}

/// A number of a part of a weight, whose sizes are fixed.
fn number(e: &ir_core::SymExpr) -> Result<usize, Error> {
    let number = e.as_const().and_then(|n| usize::try_from(n).ok());
    number.ok_or_else(|| Error::Internal("a part of a weight has no fixed size".into()))
}

/// The same of a list.
pub(super) fn numbers(list: &[ir_core::SymExpr]) -> Result<Vec<usize>, Error> {
    list.iter().map(number).collect()
}

/// A row-major array, and an index in it.
pub(super) struct Window<'a> {
    pub(super) sizes: &'a [usize],
    pub(super) first: &'a [usize],
}

impl Window<'_> {
    /// Number of the element at an index behind the first one.
    fn element(&self, index: &[usize]) -> usize {
        let dims = self.sizes.iter().zip(self.first).zip(index);
        dims.fold(0, |at, ((size, first), index)| at * size + first + index)
    }
}

/// Copies a range of one row-major array to another.
pub(super) fn copy(
    (to, into): (&mut [u8], &Window<'_>),
    (from, out_of): (&[u8], &Window<'_>),
    sizes: &[usize],
    width: usize,
) {
    let row = sizes.last().map_or(1, |n| *n) * width;
    let rows: usize = sizes.iter().rev().skip(1).product();
    if row == 0 {
        return;
    }
    let mut index = vec![0; sizes.len()];
    for _ in 0..rows {
        let (a, b) = (into.element(&index) * width, out_of.element(&index) * width);
        to[a..a + row].copy_from_slice(&from[b..b + row]);
        // The last dimension is the row.
        for dim in (0..sizes.len().saturating_sub(1)).rev() {
            index[dim] += 1;
            if index[dim] < sizes[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Parts of a matrix whose rows are in sections and whose columns are in halves make it whole again.
    #[test]
    fn parts_in_sections_make_the_whole() {
        let sizes = [6usize, 4];
        let whole: Vec<u8> = (0..24).collect();
        let mut again = vec![255u8; 24];
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            // Sections of four and two rows, on two ranks.
            let pieces = BTreeMap::from([(0, vec![(2 * row, 2), (4 + row, 1)])]);
            let place = PartPlace { whole: sizes.to_vec(), first: vec![2 * row, 2 * column], pieces };
            let own = [3, 2];
            assert!(place.fits(&own) && !place.fits(&[4, 2]));
            let mut part = vec![0u8; 6];
            let regions = place.regions(&own);
            assert_eq!(regions.len(), 2);
            for r in &regions {
                let (inner, outer) =
                    (Window { sizes: &own, first: &r.at }, Window { sizes: &sizes, first: &r.first });
                copy((&mut part, &inner), (&whole, &outer), &r.sizes, 1);
                copy((&mut again, &outer), (&part.clone(), &inner), &r.sizes, 1);
            }
            assert_eq!(part[0], whole[(2 * row) * 4 + 2 * column]);
            assert_eq!(part[4], whole[(4 + row) * 4 + 2 * column]);
        }
        assert_eq!(again, whole);
    }
}
