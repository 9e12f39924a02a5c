// See expr.h. The grammar: sums of products of factors; `*`, `//` and `%` bind alike, from left to right. A factor is a
// number, a name (`s0` a size, `i0` a loop variable, `v0` a value), `min(a, b)`, `max(a, b)` or a sum in parentheses.
#include "expr.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STACK = 32, MAX_DEPTH = 32 };

typedef struct Parser {
  const char *at, *end;
  Expr expr;
  size_t room;
  int depth;
  bool failed;
} Parser;

static void emit(Parser *p, Code code, int64_t n) {
  if (p->expr.n_words == p->room) {
    size_t room = p->room == 0 ? 4 : 2 * p->room;
    Word *words = realloc(p->expr.words, room * sizeof *words);
    if (words == NULL) {
      p->failed = true;
      return;
    }
    p->expr.words = words;
    p->room = room;
  }
  Word word = {code, n};
  p->expr.words[p->expr.n_words++] = word;
}

static bool take(Parser *p, const char *sign) {
  while (p->at < p->end && *p->at == ' ') p->at++;
  size_t len = strlen(sign);
  if ((size_t)(p->end - p->at) < len || memcmp(p->at, sign, len) != 0) return false;
  p->at += len;
  return true;
}

static void expect(Parser *p, const char *sign) {
  if (!take(p, sign)) p->failed = true;
}

static int64_t digits(Parser *p) {
  int64_t value = 0;
  const char *start = p->at;
  for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
    int digit = *p->at - '0';
    if (value > (INT64_MAX - digit) / 10) p->failed = true;
    if (!p->failed) value = value * 10 + digit;
  }
  if (p->at == start) p->failed = true;
  return value;
}

static void sum(Parser *p);

static void factor(Parser *p) {
  bool min = take(p, "min("), max = !min && take(p, "max(");
  if (min || max) {
    sum(p);
    expect(p, ",");
    sum(p);
    expect(p, ")");
    emit(p, min ? MIN : MAX, 0);
  } else if (take(p, "(")) {
    sum(p);
    expect(p, ")");
  } else if (take(p, "s")) {
    emit(p, SYMBOL, digits(p));
  } else if (take(p, "i")) {
    emit(p, LOOP, digits(p));
  } else if (take(p, "v")) {
    emit(p, VALUE, digits(p));
  } else {
    emit(p, PUSH, digits(p));
  }
}

static void product(Parser *p) {
  factor(p);
  while (!p->failed) {
    bool divided = take(p, "//"), rest = !divided && take(p, "%");
    if (!divided && !rest && !take(p, "*")) return;
    factor(p);
    emit(p, divided ? FLOORDIV : rest ? MOD : MUL, 0);
  }
}

static void sum(Parser *p) {
  if (++p->depth > MAX_DEPTH) p->failed = true;
  if (p->failed) return;
  if (take(p, "-")) {
    emit(p, PUSH, 0);
    product(p);
    emit(p, SUB, 0);
  } else {
    product(p);
  }
  while (!p->failed) {
    bool minus = take(p, "-");
    if (!minus && !take(p, "+")) break;
    product(p);
    emit(p, minus ? SUB : ADD, 0);
  }
  p->depth--;
}

static bool fits_stack(const Expr *e) {
  size_t height = 0;
  for (size_t i = 0; i < e->n_words; i++) {
    height = e->words[i].code <= VALUE ? height + 1 : height - 1;
    if (height > MAX_STACK) return false;
  }
  return height == 1;
}

Expr expr_read(Reader *r) {
  Parser p = {NULL, NULL, {NULL, 0}, 0, 0, false};
  Item item = read_item(r);
  if (item.kind == INTEGER) {
    emit(&p, PUSH, item.integer);
  } else if (item.kind == TEXT) {
    p.at = item.text.data;
    p.end = item.text.data + item.text.len;
    sum(&p);
    take(&p, "");
    if (p.at != p.end) p.failed = true;
  } else {
    p.failed = true;
  }
  if (p.failed || !fits_stack(&p.expr)) {
    r->failed = true;
    expr_free(&p.expr);
  }
  return p.expr;
}

void expr_free(Expr *e) {
  free(e->words);
  e->words = NULL;
  e->n_words = 0;
}

static int64_t wrapped(uint64_t bits) {
  int64_t value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to minus infinity; the remainder has the sign of the divisor. -1 is apart, because C's quotient may overflow.
static int64_t divide(int64_t a, int64_t b, bool remainder) {
  if (b == -1) return remainder ? 0 : wrapped(-(uint64_t)a);
  int64_t quotient = a / b, rest = a % b;
  bool down = rest != 0 && (rest < 0) != (b < 0);
  return remainder ? rest + (down ? b : 0) : quotient - (down ? 1 : 0);
}

static bool apply(Code code, int64_t a, int64_t b, int64_t *out) {
  switch (code) {
    case ADD: *out = wrapped((uint64_t)a + (uint64_t)b); return true;
    case SUB: *out = wrapped((uint64_t)a - (uint64_t)b); return true;
    case MUL: *out = wrapped((uint64_t)a * (uint64_t)b); return true;
    case MIN: *out = a < b ? a : b; return true;
    case MAX: *out = a > b ? a : b; return true;
    default: *out = b == 0 ? 0 : divide(a, b, code == MOD); return b != 0;
  }
}

static bool look_up(const Names *names, Word word, int64_t *out) {
  const int64_t *list = word.code == SYMBOL ? names->symbols : word.code == LOOP ? names->loops : names->values;
  size_t count = word.code == SYMBOL ? names->n_symbols : word.code == LOOP ? names->n_loops : names->n_values;
  if (word.n < 0 || (uint64_t)word.n >= count) return false;
  *out = list[word.n];
  return true;
}

bool expr_eval(const Expr *e, const Names *names, int64_t *out) {
  int64_t stack[MAX_STACK];
  size_t height = 0;
  for (size_t i = 0; i < e->n_words; i++) {
    Word word = e->words[i];
    if (word.code == PUSH) {
      stack[height++] = word.n;
    } else if (word.code <= VALUE) {
      if (!look_up(names, word, &stack[height++])) return false;
    } else {
      height--;
      if (!apply(word.code, stack[height - 1], stack[height], &stack[height - 1])) return false;
    }
  }
  *out = height == 1 ? stack[0] : 0;
  return height == 1;
}

int64_t expr_largest(const Expr *e, Code kind) {
  int64_t largest = -1;
  for (size_t i = 0; i < e->n_words; i++)
    if (e->words[i].code == kind && e->words[i].n > largest) largest = e->words[i].n;
  return largest;
}

int64_t expr_symbol(const Expr *e) {
  return e->n_words == 1 && e->words[0].code == SYMBOL ? e->words[0].n : -1;
}
