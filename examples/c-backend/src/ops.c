// See ops.h. A row has the function for each dtype that it takes; integers wrap.
#include "ops.h"

#include <math.h>
#include <string.h>

static int64_t wrapped(uint64_t bits) {
  int64_t value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float add_f(float a, float b) { return a + b; }
static float sub_f(float a, float b) { return a - b; }
static float mul_f(float a, float b) { return a * b; }
static float div_f(float a, float b) { return a / b; }
// NaN wins, unlike C's fminf and fmaxf.
static float min_f(float a, float b) { return isnan(a) || a < b ? a : b; }
static float max_f(float a, float b) { return isnan(a) || a > b ? a : b; }
static float neg_f(float a) { return -a; }
static float rsqrt_f(float a) { return 1.0f / sqrtf(a); }

static int64_t add_i(int64_t a, int64_t b) { return wrapped((uint64_t)a + (uint64_t)b); }
static int64_t sub_i(int64_t a, int64_t b) { return wrapped((uint64_t)a - (uint64_t)b); }
static int64_t mul_i(int64_t a, int64_t b) { return wrapped((uint64_t)a * (uint64_t)b); }
static int64_t min_i(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_i(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t and_b(int64_t a, int64_t b) { return a & b; }
static int64_t or_b(int64_t a, int64_t b) { return a | b; }
static int64_t xor_b(int64_t a, int64_t b) { return a ^ b; }

// How two operands may stand to each other.
enum { LESS = 1, EQUAL = 2, GREATER = 4, UNORDERED = 8 };

typedef struct Row {
  const char *name;
  float (*one)(float);
  float (*two)(float, float);
  int64_t (*whole)(int64_t, int64_t);
  int64_t (*truth)(int64_t, int64_t);
  int holds;  // of a comparison: where it is true
} Row;

static const Row ROWS[] = {
    {"add", NULL, add_f, add_i, NULL, 0},
    {"sub", NULL, sub_f, sub_i, NULL, 0},
    {"mul", NULL, mul_f, mul_i, NULL, 0},
    {"div", NULL, div_f, NULL, NULL, 0},
    {"rem", NULL, fmodf, NULL, NULL, 0},
    {"pow", NULL, powf, NULL, NULL, 0},
    {"atan2", NULL, atan2f, NULL, NULL, 0},
    {"min", NULL, min_f, min_i, NULL, 0},
    {"max", NULL, max_f, max_i, NULL, 0},
    {"copysign", NULL, copysignf, NULL, NULL, 0},
    {"and", NULL, NULL, NULL, and_b, 0},
    {"or", NULL, NULL, NULL, or_b, 0},
    {"xor", NULL, NULL, NULL, xor_b, 0},
    {"neg", neg_f, NULL, NULL, NULL, 0},
    {"abs", fabsf, NULL, NULL, NULL, 0},
    {"floor", floorf, NULL, NULL, NULL, 0},
    {"ceil", ceilf, NULL, NULL, NULL, 0},
    {"trunc", truncf, NULL, NULL, NULL, 0},
    {"round", rintf, NULL, NULL, NULL, 0},
    {"sqrt", sqrtf, NULL, NULL, NULL, 0},
    {"rsqrt", rsqrt_f, NULL, NULL, NULL, 0},
    {"exp", expf, NULL, NULL, NULL, 0},
    {"exp2", exp2f, NULL, NULL, NULL, 0},
    {"expm1", expm1f, NULL, NULL, NULL, 0},
    {"log", logf, NULL, NULL, NULL, 0},
    {"log2", log2f, NULL, NULL, NULL, 0},
    {"log10", log10f, NULL, NULL, NULL, 0},
    {"log1p", log1pf, NULL, NULL, NULL, 0},
    {"sin", sinf, NULL, NULL, NULL, 0},
    {"cos", cosf, NULL, NULL, NULL, 0},
    {"tan", tanf, NULL, NULL, NULL, 0},
    {"asin", asinf, NULL, NULL, NULL, 0},
    {"acos", acosf, NULL, NULL, NULL, 0},
    {"atan", atanf, NULL, NULL, NULL, 0},
    {"sinh", sinhf, NULL, NULL, NULL, 0},
    {"cosh", coshf, NULL, NULL, NULL, 0},
    {"tanh", tanhf, NULL, NULL, NULL, 0},
    {"asinh", asinhf, NULL, NULL, NULL, 0},
    {"acosh", acoshf, NULL, NULL, NULL, 0},
    {"atanh", atanhf, NULL, NULL, NULL, 0},
    {"erf", erff, NULL, NULL, NULL, 0},
    {"erfc", erfcf, NULL, NULL, NULL, 0},
    {"eq", NULL, NULL, NULL, NULL, EQUAL},
    {"ne", NULL, NULL, NULL, NULL, LESS | GREATER | UNORDERED},
    {"lt", NULL, NULL, NULL, NULL, LESS},
    {"le", NULL, NULL, NULL, NULL, LESS | EQUAL},
    {"gt", NULL, NULL, NULL, NULL, GREATER},
    {"ge", NULL, NULL, NULL, NULL, GREATER | EQUAL},
    {"not", NULL, NULL, NULL, NULL, 0},
    {"select", NULL, NULL, NULL, NULL, 0},
};

enum { N_ROWS = sizeof ROWS / sizeof ROWS[0], NOT = N_ROWS - 2, SELECT = N_ROWS - 1 };

int op_find(Text name) {
  for (int i = 0; i < N_ROWS; i++)
    if (text_is(name, ROWS[i].name)) return i;
  return -1;
}

bool op_takes(int op, const DType *args, size_t n, DType result) {
  if (op < 0 || n == 0 || n > 3) return false;
  const Row *row = &ROWS[op];
  if (op == SELECT) return n == 3 && args[0] == BOOLEANS && args[1] == args[2] && args[1] == result;
  if (op == NOT) return n == 1 && args[0] == BOOLEANS && result == BOOLEANS;
  if (row->one != NULL) return n == 1 && args[0] == F32 && result == F32;
  if (n != 2 || args[0] != args[1]) return false;
  if (row->holds != 0) return result == BOOLEANS;
  bool there = args[0] == F32 ? row->two != NULL : args[0] == I64 ? row->whole != NULL : row->truth != NULL;
  return there && result == args[0];
}

static int relation(DType of, const Value *args) {
  if (of != F32) return args[0].i < args[1].i ? LESS : args[0].i > args[1].i ? GREATER : EQUAL;
  float a = args[0].f, b = args[1].f;
  return a < b ? LESS : a > b ? GREATER : a == b ? EQUAL : UNORDERED;
}

Value op_apply(int op, DType of, const Value *args) {
  const Row *row = &ROWS[op];
  Value out = {0, 0};
  if (op == SELECT) return args[0].i != 0 ? args[1] : args[2];
  if (op == NOT) out.i = args[0].i == 0;
  else if (row->holds != 0) out.i = (row->holds & relation(of, args)) != 0;
  else if (row->one != NULL) out.f = row->one(args[0].f);
  else if (of == F32) out.f = row->two(args[0].f, args[1].f);
  else if (of == I64) out.i = row->whole(args[0].i, args[1].i);
  else out.i = row->truth(args[0].i, args[1].i);
  return out;
}
