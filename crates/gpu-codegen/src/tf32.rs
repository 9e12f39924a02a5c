//! Where float32 operands may be rounded to tf32 (10 bits of mantissa), which tensor cores multiply several times as fast.
//! Convolutions and matrix products are told apart, because PyTorch's defaults differ for the two.

use std::fmt;

/// What may be computed in tf32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tf32 {
    /// Nothing.
    #[default]
    Off,
    /// Convolutions and their gradients.
    Convolutions,
    /// Matrix products.
    Products,
    /// Both.
    On,
}

impl Tf32 {
    /// All, in the order in which they are listed.
    pub const ALL: [Tf32; 4] = [Tf32::Off, Tf32::Convolutions, Tf32::Products, Tf32::On];

    /// The name by which users choose it.
    pub fn name(self) -> &'static str {
        match self {
            Tf32::Off => "off",
            Tf32::Convolutions => "convolutions",
            Tf32::Products => "products",
            Tf32::On => "on",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Tf32> {
        Tf32::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Whether convolutions may be.
    pub fn of_convolutions(self) -> bool {
        matches!(self, Tf32::Convolutions | Tf32::On)
    }

    /// Whether matrix products may be.
    pub fn of_products(self) -> bool {
        matches!(self, Tf32::Products | Tf32::On)
    }
}

impl From<bool> for Tf32 {
    /// Both or nothing.
    fn from(is_on: bool) -> Tf32 {
        if is_on { Tf32::On } else { Tf32::Off }
    }
}

impl fmt::Display for Tf32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_of_the_two_are_rounded() {
        let of = |name| Tf32::named(name).map(|t| (t.of_convolutions(), t.of_products()));
        assert_eq!(of("off"), Some((false, false)));
        assert_eq!(of("convolutions"), Some((true, false)));
        assert_eq!(of("products"), Some((false, true)));
        assert_eq!(of("on"), Some((true, true)));
        assert_eq!(of("yes"), None);
        assert_eq!([Tf32::from(false), Tf32::from(true)], [Tf32::Off, Tf32::On]);
    }
}
