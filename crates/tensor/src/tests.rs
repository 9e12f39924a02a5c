//! Unit tests of the crate, by theme.

use crate::*;
