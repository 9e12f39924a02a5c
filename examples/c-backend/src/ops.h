// The scalar operators that this backend has, as a table. Their exact meaning is that of kernel-ir's own table.
#ifndef OPS_H
#define OPS_H

#include "program.h"

// A value of a loop body: `f` of f32, `i` of i64 and of truth values (0 or 1).
typedef struct Value {
  float f;
  int64_t i;
} Value;

// Number of an operator, or -1.
int op_find(Text name);
// Whether the operator takes operands of these dtypes and gives this one.
bool op_takes(int op, const DType *args, size_t n, DType result);
// Applies it; `of` is the dtype of the operands that are compared or computed with.
Value op_apply(int op, DType of, const Value *args);

#endif
