//! Options that `compile` takes: declared once with a kind and a default, checked before the backend sees them.
//! Values cross the boundary as text; here they are read back by kind.

use plugin_abi::{FFX_OPTION_BOOL, FFX_OPTION_CHOICE, FFX_OPTION_FLOAT, FFX_OPTION_INT, FFX_OPTION_TEXT};

use crate::PluginError;

/// Kind of an option's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// `true` or `false`.
    Bool,
    /// A signed 64-bit integer.
    Int,
    /// A floating-point number.
    Float,
    /// Any text.
    Text,
    /// One of these.
    Choice(Vec<String>),
}

impl OptionKind {
    /// The ABI's number.
    pub fn code(&self) -> u32 {
        match self {
            Self::Bool => FFX_OPTION_BOOL,
            Self::Int => FFX_OPTION_INT,
            Self::Float => FFX_OPTION_FLOAT,
            Self::Text => FFX_OPTION_TEXT,
            Self::Choice(_) => FFX_OPTION_CHOICE,
        }
    }

    /// What a value must look like, where `value` does not.
    fn expected_form(&self, value: &str) -> Option<String> {
        match self {
            Self::Bool => value.parse::<bool>().is_err().then(|| "`true` or `false`".to_owned()),
            Self::Int => value.parse::<i64>().is_err().then(|| "an integer".to_owned()),
            Self::Float => value.parse::<f64>().is_err().then(|| "a number".to_owned()),
            Self::Text => None,
            Self::Choice(all) => {
                (!all.iter().any(|c| c == value)).then(|| format!("one of {}", all.join(", ")))
            }
        }
    }
}

/// Declaration of one option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Name, unique within the backend.
    pub name: String,
    /// Kind of value.
    pub kind: OptionKind,
    /// What holds where the option is not given.
    pub default: String,
    /// One line for the user.
    pub help: String,
}

impl OptionSpec {
    /// An option of any kind.
    pub fn new(
        name: impl Into<String>,
        kind: OptionKind,
        default: impl ToString,
        help: impl Into<String>,
    ) -> Self {
        Self { name: name.into(), kind, default: default.to_string(), help: help.into() }
    }
}

/// The options of one `compile`: every declared one has a value of its kind.
#[derive(Clone, Debug, Default)]
pub struct Options {
    values: Vec<(OptionSpec, String)>,
}

impl Options {
    /// Checks `given` against the declarations and fills in defaults. The last of two equal names holds.
    pub fn resolve(specs: &[OptionSpec], given: &[(&str, &str)]) -> Result<Self, PluginError> {
        let mut values: Vec<_> = specs.iter().map(|s| (s.clone(), s.default.clone())).collect();
        for &(name, value) in given {
            let Some((spec, slot)) = values.iter_mut().find(|(s, _)| s.name == name) else {
                let known: Vec<_> = specs.iter().map(|s| s.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(PluginError::invalid(format!(
                    "unknown option `{name}`; this backend takes {known}"
                )));
            };
            if let Some(wanted) = spec.kind.expected_form(value) {
                return Err(PluginError::invalid(format!(
                    "option `{name}` is `{value}`, but must be {wanted}"
                )));
            }
            *slot = value.to_owned();
        }
        Ok(Self { values })
    }

    /// The value as text.
    pub fn text(&self, name: &str) -> Result<&str, PluginError> {
        self.values.iter().find(|(s, _)| s.name == name).map(|(_, v)| v.as_str()).ok_or_else(|| {
            PluginError::internal(format!("the backend reads option `{name}`, which it does not declare"))
        })
    }
    /// A `Bool` option.
    pub fn bool(&self, name: &str) -> Result<bool, PluginError> {
        self.parsed(name)
    }
    /// An `Int` option.
    pub fn int(&self, name: &str) -> Result<i64, PluginError> {
        self.parsed(name)
    }
    /// A `Float` option.
    pub fn float(&self, name: &str) -> Result<f64, PluginError> {
        self.parsed(name)
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<T, PluginError> {
        let text = self.text(name)?;
        text.parse().map_err(|_| {
            PluginError::internal(format!(
                "option `{name}` is declared or defaulted as `{text}`, of another kind"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs() -> Vec<OptionSpec> {
        vec![
            OptionSpec::new("threads", OptionKind::Int, 0, "worker threads; 0 is all cores"),
            OptionSpec::new(
                "isa",
                OptionKind::Choice(vec!["avx2".into(), "avx512".into()]),
                "avx2",
                "vectors",
            ),
        ]
    }

    #[test]
    fn defaults_and_given_values() {
        let options = Options::resolve(&specs(), &[("isa", "avx512")]).unwrap();
        assert_eq!(options.int("threads").unwrap(), 0);
        assert_eq!(options.text("isa").unwrap(), "avx512");
        assert!(options.bool("isa").is_err(), "a choice is not a bool");
        assert!(options.int("cores").is_err(), "never declared");
    }

    #[test]
    fn unknown_and_malformed_options_say_what_is_wanted() {
        let unknown = Options::resolve(&specs(), &[("thread", "1")]).unwrap_err().to_string();
        assert!(unknown.contains("`thread`") && unknown.contains("threads, isa"), "{unknown}");
        let bad = Options::resolve(&specs(), &[("threads", "many")]).unwrap_err().to_string();
        assert!(bad.contains("an integer"), "{bad}");
        let choice = Options::resolve(&specs(), &[("isa", "mmx")]).unwrap_err().to_string();
        assert!(choice.contains("avx2, avx512"), "{choice}");
    }
}
