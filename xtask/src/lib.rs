//! Automation: tests, corpus, tidy, comparison.
