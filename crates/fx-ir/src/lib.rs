//! The graph IR: nodes, symbols, signature, text format, verifier, rewriter, drawer; knows no operator.
