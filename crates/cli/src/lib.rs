//! The ferroflux command.
