//! The facade: Program, compile(), Compiled, Options, list_backends().
