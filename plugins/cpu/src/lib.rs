//! The CPU backend as a plugin library.
