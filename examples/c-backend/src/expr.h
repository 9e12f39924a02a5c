// Integer expressions of a program: sizes, strides, indices. They stand in the bytes as a number or as text, `2*s0 + i1`;
// here they are short programs for a stack.
#ifndef EXPR_H
#define EXPR_H

#include "reader.h"

typedef enum Code { PUSH, SYMBOL, LOOP, VALUE, ADD, SUB, MUL, FLOORDIV, MOD, MIN, MAX } Code;

typedef struct Word {
  Code code;
  int64_t n;  // the number, or which symbol, loop variable or value
} Word;

typedef struct Expr {
  Word *words;
  size_t n_words;
} Expr;

// What names stand for. A name beyond a count is unknown.
typedef struct Names {
  const int64_t *symbols, *loops, *values;
  size_t n_symbols, n_loops, n_values;
} Names;

// Reads an expression; failure is the reader's. To be freed by `expr_free`.
Expr expr_read(Reader *r);
void expr_free(Expr *e);
// Sets `*out`; false for an unknown name or a division by zero.
bool expr_eval(const Expr *e, const Names *names, int64_t *out);
// The largest number `n` of a name of a kind (SYMBOL, LOOP, VALUE) in it, or -1.
int64_t expr_largest(const Expr *e, Code kind);
// The symbol that the whole expression is, or -1.
int64_t expr_symbol(const Expr *e);

#endif
