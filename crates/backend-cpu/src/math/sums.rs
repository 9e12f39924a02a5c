//! Two-level sums: partial sums are added to a total with compensation (Knuth, The Art of Computer Programming, volume 2, 4.2.2,
//! theorem B). How long a partial sum is, `vir` says.

use cranelift_codegen::ir::condcodes::FloatCC;

use super::Lanes;

/// The formulas, for lanes of floats of any width.
pub(crate) trait Sums: Lanes {
    /// `total + x`, and `lost` with the rounding error.
    fn add_exactly(&mut self, total: Self::V, lost: Self::V, x: Self::V) -> (Self::V, Self::V) {
        let sum = self.fadd(total, x);
        let taken = self.fsub(sum, total);
        let kept = self.fsub(sum, taken);
        let of_total = self.fsub(total, kept);
        let of_x = self.fsub(x, taken);
        let error = self.fadd(of_total, of_x);
        (sum, self.fadd(lost, error))
    }

    /// The total with its compensation. Where the sum is infinite, the error is not a number and the sum is used alone.
    fn whole(&mut self, total: Self::V, lost: Self::V) -> Self::V {
        let sum = self.fadd(total, lost);
        let number = self.fcmp(FloatCC::Equal, lost, lost);
        self.select(number, sum, total)
    }
}

impl<L: Lanes> Sums for L {}
