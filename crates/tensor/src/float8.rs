//! The 8-bit floats of PyTorch: `float8_e4m3fn` and `float8_e5m2` (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
//!
//! Here are the number types and their conversions, rounded to the nearest and to even as PyTorch does it on a CPU, without
//! saturation. Not here: arithmetic, which is done in `f32`.

use half::f16;

/// A number with 4 bits of exponent and 3 of fraction, without infinities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// A number with 5 bits of exponent and 2 of fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

impl F8E4M3 {
    /// The nearest number; `NaN` where that is beyond the largest, 448 (above 464, where 480 would be nearer).
    pub fn from_f32(x: f32) -> F8E4M3 {
        // 480 is the first number that the format's patterns would have after 448; its pattern is `NaN`.
        F8E4M3(rounded::<3>(x, 7, 480.0).unwrap_or(0x7f) | sign(x))
    }
    /// The same number; exact.
    pub fn to_f32(self) -> f32 {
        let (magnitude, negative) = (u32::from(self.0 & 0x7f), self.0 & 0x80 != 0);
        let x = match magnitude {
            0x7f => f32::NAN,
            // The fraction and exponent stand at the top of those of `f32`, whose exponent has a bias 120 higher.
            m => f32::from_bits(m << 20) * f32::from_bits((127 + 120) << 23),
        };
        if negative { -x } else { x }
    }
}

impl F8E5M2 {
    /// The nearest number; infinity where that is beyond the largest, 57,344.
    pub fn from_f32(x: f32) -> F8E5M2 {
        let beyond = if x.is_nan() { 0x7f } else { 0x7c };
        F8E5M2(rounded::<2>(x, 15, 65536.0).unwrap_or(beyond) | sign(x))
    }
    /// The same number; exact.
    pub fn to_f32(self) -> f32 {
        f16::from_bits(u16::from(self.0) << 8).to_f32()
    }
}

fn sign(x: f32) -> u8 {
    u8::from(x.is_sign_negative()) << 7
}

/// The pattern of the nearest magnitude with `FRACTION` bits of fraction and this bias of the exponent; `None` from `beyond` on,
/// a power of two or a number with as few bits, and for `NaN`.
fn rounded<const FRACTION: u32>(x: f32, bias: u32, beyond: f32) -> Option<u8> {
    let x = x.abs();
    if x.is_nan() || x >= beyond {
        return None;
    }
    let (cut, least) = (23 - FRACTION, 127 - bias + 1);
    let bits = x.to_bits();
    let pattern = if bits >> 23 < least {
        // Subnormal: adding a number whose last place is the smallest subnormal rounds to a multiple of that.
        let aligned = f32::from_bits((least + cut) << 23);
        (x + aligned).to_bits() - aligned.to_bits()
    } else {
        let even = (bits >> cut) & 1;
        (bits + ((1 << (cut - 1)) - 1) + even - ((127 - bias) << 23)) >> cut
    };
    Some(pattern as u8)
}

impl From<F8E4M3> for f64 {
    fn from(x: F8E4M3) -> f64 {
        x.to_f32().into()
    }
}

impl From<F8E5M2> for f64 {
    fn from(x: F8E5M2) -> f64 {
        x.to_f32().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that a pattern stands for, by its definition.
    fn value(pattern: u8, fraction: u32, bias: i32) -> f64 {
        let (e, m) = (i32::from(pattern & 0x7f) >> fraction, f64::from(pattern & ((1 << fraction) - 1)));
        let unit = 2f64.powi(-(fraction as i32));
        if e == 0 { m * unit * 2f64.powi(1 - bias) } else { (1.0 + m * unit) * 2f64.powi(e - bias) }
    }

    #[test]
    fn every_pattern_is_its_number() {
        for p in 0..0x7fu8 {
            assert_eq!(f64::from(F8E4M3(p)), value(p, 3, 7), "{p:#x}");
            assert_eq!(f64::from(F8E4M3(p | 0x80)), -value(p, 3, 7));
            assert_eq!(F8E4M3::from_f32(F8E4M3(p).to_f32()), F8E4M3(p));
        }
        for p in 0..0x7cu8 {
            assert_eq!(f64::from(F8E5M2(p)), value(p, 2, 15), "{p:#x}");
            assert_eq!(F8E5M2::from_f32(-F8E5M2(p).to_f32()), F8E5M2(p | 0x80));
        }
        assert!(F8E4M3(0x7f).to_f32().is_nan() && F8E5M2(0x7d).to_f32().is_nan());
        assert_eq!(F8E5M2(0xfc).to_f32(), f32::NEG_INFINITY);
    }

    /// Between two neighbours the nearer one, at the middle the even one.
    #[test]
    fn numbers_between_go_to_the_nearest() {
        for p in 0..0x7eu8 {
            let (low, high) = (F8E4M3(p).to_f32(), F8E4M3(p + 1).to_f32());
            let high = if p == 0x7e { 480.0 } else { high };
            let middle = (low + high) / 2.0;
            assert_eq!(F8E4M3::from_f32(middle).0, p + (p & 1), "{p:#x}");
            assert_eq!(F8E4M3::from_f32(middle.next_down()).0, p);
            assert_eq!(F8E4M3::from_f32(middle.next_up()).0, p + 1);
        }
        for p in 0..0x7bu8 {
            let middle = (F8E5M2(p).to_f32() + F8E5M2(p + 1).to_f32()) / 2.0;
            assert_eq!(F8E5M2::from_f32(middle).0, p + (p & 1), "{p:#x}");
            assert_eq!(F8E5M2::from_f32(middle.next_down()).0, p);
            assert_eq!(F8E5M2::from_f32(middle.next_up()).0, p + 1);
        }
    }

    #[test]
    fn what_is_beyond_does_not_saturate() {
        let e4m3 = [448.0, 463.9, 464.0, 464.1, f32::INFINITY, f32::NAN].map(|x| F8E4M3::from_f32(x).0);
        assert_eq!(e4m3, [0x7e, 0x7e, 0x7e, 0x7f, 0x7f, 0x7f]);
        let e5m2 = [57344.0, 61439.0, 61440.0, -1e9, f32::INFINITY].map(|x| F8E5M2::from_f32(x).0);
        assert_eq!(e5m2, [0x7b, 0x7b, 0x7c, 0xfc, 0x7c]);
        assert!(F8E5M2::from_f32(f32::NAN).to_f32().is_nan());
        assert_eq!([F8E4M3::from_f32(-0.0).0, F8E5M2::from_f32(-1e-9).0], [0x80, 0x80]);
    }
}
