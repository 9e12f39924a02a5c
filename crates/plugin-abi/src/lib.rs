//! The C tables between host and plugin: layouts, version handshake, error struct; no logic.
