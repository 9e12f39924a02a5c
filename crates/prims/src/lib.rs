//! The operator tables: one entry per operator holds all that is known of it.
