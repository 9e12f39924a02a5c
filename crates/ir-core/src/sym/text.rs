//! Text and serde forms of expressions: `2*s0 + i1 // 4 - 3`. Serialized as a number where it is one, else as text.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Atom, Repr, SymExpr, SymId};

impl fmt::Display for SymExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr::Poly(p) = &self.0 else { return write!(f, "{}", self.as_const().unwrap_or(0)) };
        for (n, term) in p.terms.iter().enumerate() {
            let sign = if term.coef < 0 { "-" } else { "+" };
            match (n, sign) {
                (0, "-") => f.write_str("-")?,
                (0, _) => {}
                _ => write!(f, " {sign} ")?,
            }
            let magnitude = term.coef.unsigned_abs();
            if magnitude != 1 {
                write!(f, "{magnitude}*")?;
            }
            for (m, atom) in term.factors.iter().enumerate() {
                if m > 0 {
                    f.write_str("*")?;
                }
                // A division binds as strongly as a product: `2*(a // b)`, and `-(a // b)` is not `(-a) // b`.
                let alone = term.factors.len() == 1 && magnitude == 1 && (n > 0 || term.coef > 0);
                match atom {
                    Atom::FloorDiv(_) | Atom::Mod(_) if !alone => write!(f, "({atom})")?,
                    _ => write!(f, "{atom}")?,
                }
            }
        }
        match p.constant {
            0 => Ok(()),
            c if c < 0 => write!(f, " - {}", c.unsigned_abs()),
            c => write!(f, " + {c}"),
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Sym(id) => write!(f, "{id}"),
            Atom::Loop(n) => write!(f, "i{n}"),
            Atom::Value(n) => write!(f, "v{n}"),
            Atom::FloorDiv(ab) => write!(f, "{} // {}", Operand(&ab.0), Operand(&ab.1)),
            Atom::Mod(ab) => write!(f, "{} % {}", Operand(&ab.0), Operand(&ab.1)),
            Atom::Min(ab) => write!(f, "min({}, {})", ab.0, ab.1),
            Atom::Max(ab) => write!(f, "max({}, {})", ab.0, ab.1),
        }
    }
}

/// An operand of a division: in parentheses unless it is one name or number.
struct Operand<'a>(&'a SymExpr);

impl fmt::Display for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let simple = match self.0.as_atom() {
            Some(Atom::FloorDiv(_) | Atom::Mod(_)) => false,
            Some(_) => true,
            None => self.0.as_const().is_some_and(|c| c >= 0),
        };
        if simple { write!(f, "{}", self.0) } else { write!(f, "({})", self.0) }
    }
}

impl SymExpr {
    /// The text form with other names for size symbols, where `name` knows one.
    pub fn text_with<'n>(&self, name: &dyn Fn(SymId) -> Option<&'n str>) -> String {
        let text = self.to_string();
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(at) = rest.find('s') {
            let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
            let end = at + 1 + digits;
            out.push_str(&rest[..at]);
            match rest[at + 1..end].parse().ok().and_then(|n| name(SymId(n))) {
                Some(name) => out.push_str(name),
                None => out.push_str(&rest[at..end]),
            }
            rest = &rest[end..];
        }
        out + rest
    }
}

impl fmt::Debug for SymExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Debug for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SymExpr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_const() {
            Some(c) => serializer.serialize_i64(c),
            None => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for SymExpr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = SymExpr;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer or the text of a size expression")
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<SymExpr, E> {
                Ok(SymExpr::from_i64(v))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<SymExpr, E> {
                i64::try_from(v).map(SymExpr::from_i64).map_err(|_| E::custom("a size does not fit 64 bits"))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<SymExpr, E> {
                v.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
