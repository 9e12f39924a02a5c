//! The origin of a node in the user's program. Every node carries it so that an error can name the line.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Precisions;

/// Module path, operator and source line of a node. All parts may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Path of the module, innermost last: `layer1.0.conv1`.
    pub module: String,
    /// The function that was traced, as PyTorch names it: `conv2d_1`, `relu`.
    pub function: String,
    /// `file.py:12 in forward, x = self.conv(x)`, where the archive kept stack traces.
    pub source: Option<String>,
    /// The operator of the user's program that the node is a part of, where decomposition replaced it and errors of a call
    /// must name it: `aten.embedding.default`. Else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// The regions of mixed precision around the node, until the stage that gives them their meaning.
    #[serde(default, skip_serializing_if = "Precisions::is_empty")]
    pub precisions: Precisions,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "";
        if !self.module.is_empty() {
            write!(f, "{}", self.module)?;
            sep = ": ";
        }
        if !self.function.is_empty() {
            write!(f, "{sep}{}", self.function)?;
            sep = " at ";
        }
        if let Some(source) = &self.source {
            write!(f, "{sep}{source}")?;
        }
        Ok(())
    }
}
