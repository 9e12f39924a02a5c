//! The ways in which a product by packed weights may be computed: the instructions that multiply, and how far the product is cut into
//! tasks beside what the rules (`grid`, `narrow::product`) say. By another cut results are the same to the last bit, by other
//! instructions they may differ in how sums are rounded.
//!
//! Not here: the choice among them by time (`exec::tune`), and other packings of a weight.

use std::fmt;

use super::narrow::Unit;

/// Powers of two by which a rule's numbers of blocks of rows and of columns are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    rows: i8,
    columns: i8,
}

impl Cut {
    /// Those worth trying, the rule's own one first. One that the product is too small for is a repetition of another.
    pub const ALL: [Cut; 7] = [
        Cut::new(0, 0),
        Cut::new(1, 0),
        Cut::new(-1, 0),
        Cut::new(0, 1),
        Cut::new(0, -1),
        Cut::new(1, -1),
        Cut::new(-1, 1),
    ];

    const fn new(rows: i8, columns: i8) -> Cut {
        Cut { rows, columns }
    }

    /// The number of blocks of rows, of which there are `most` at most.
    pub(super) fn rows(self, blocks: usize, most: usize) -> usize {
        scaled(blocks, self.rows, most)
    }

    /// The same of columns.
    pub(super) fn columns(self, blocks: usize, most: usize) -> usize {
        scaled(blocks, self.columns, most)
    }
}

/// `blocks · 2^power`, from 1 to `most` where the rule's own number is none of these.
fn scaled(blocks: usize, power: i8, most: usize) -> usize {
    match power {
        0 => blocks,
        1.. => (blocks << power).min(most.max(blocks)),
        _ => (blocks >> power.unsigned_abs()).max(1),
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |power: i8| match power {
            0 => "",
            1.. => "2",
            _ => "1/2",
        };
        match (self.rows, self.columns) {
            (0, 0) => f.write_str("blocks by rule"),
            (rows, 0) => write!(f, "row blocks x{}", side(rows)),
            (0, columns) => write!(f, "column blocks x{}", side(columns)),
            (rows, columns) => write!(f, "row blocks x{}, column blocks x{}", side(rows), side(columns)),
        }
    }
}

/// A way to multiply by packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The instructions, where the weights are of narrow numbers.
    pub(super) unit: Option<Unit>,
    pub(super) cut: Cut,
}

impl Way {
    /// Every cut, by the instructions that the rule chooses where there is a choice.
    pub(super) fn cuts(unit: Option<Unit>) -> impl Iterator<Item = Way> {
        Cut::ALL.into_iter().map(move |cut| Way { unit, cut })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(unit) = self.unit {
            write!(f, "{unit:?}, ")?;
        }
        write!(f, "{}", self.cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_scaled_within_what_there_is() {
        for (power, blocks, most, expected) in
            [(0, 3, 8, 3), (1, 3, 8, 6), (1, 5, 8, 8), (1, 9, 8, 9), (-1, 5, 8, 2), (-1, 1, 8, 1)]
        {
            assert_eq!(scaled(blocks, power, most), expected, "{blocks} by 2^{power}, at most {most}");
        }
    }

    #[test]
    fn names_tell_cuts_apart() {
        let names: std::collections::BTreeSet<String> = Cut::ALL.iter().map(Cut::to_string).collect();
        assert_eq!(names.len(), Cut::ALL.len());
    }
}
