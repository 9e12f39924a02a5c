// Running steps: memory of each buffer at the sizes of a call, and the loops and products over it.
#ifndef RUN_H
#define RUN_H

#include "program.h"

// Where a buffer lies, in elements. Every index within `sizes` is inside of the memory: that is checked when it is made.
typedef struct Place {
  void *data;
  DType dtype;
  size_t rank, span;
  int64_t sizes[MAX_RANK], strides[MAX_RANK], offset;
} Place;

// One call.
typedef struct Call {
  const Program *program;
  int64_t *symbols;
  Place *places;         // of each buffer
  void **owned;          // memory of each buffer that the call allocated, or NULL
  const char *problem;   // why it failed; static text, or `message`
  Text about;            // what the problem is with
  char message[512];     // of an index that is out of bounds
  bool no_memory;
} Call;

// A call without memory yet; false without memory for itself.
bool call_open(Call *call, const Program *program);
void call_close(Call *call);
// Notes a failure; gives false.
bool call_fail(Call *call, const char *problem, Text about);

// Bytes of an element.
size_t width_of(DType dtype);
// Evaluates sizes, strides and offset at the call's sizes; false, with the reason, where they make no tensor.
bool place_evaluate(Call *call, Place *place, const Shape *sizes, const Shape *strides, const Expr *offset, Text name);
// Gives memory to every buffer of a kind of storage (zeros), then places every view.
bool place_owned(Call *call, Storage storage);
bool place_views(Call *call);
// Copies elements from one place to another of the same sizes.
void place_copy(const Place *from, Place *to);

// The factors of a product at the sizes of a call, and the sizes of its result.
typedef struct Factors {
  Place a, b;
  const int64_t *ranges;
} Factors;

// Places the factors; false, with the reason, where they do not fit each other or the result (products.c).
bool factors_open(Call *call, const Kernel *k, const int64_t *ranges, Factors *factors);
// The element of the product at a point of its result.
float product_at(const Kernel *k, const Factors *factors, const int64_t *point);

// Runs steps in order; false, with the reason, where an index is out of its buffer.
bool run_kernels(Call *call, const Kernel *kernels, size_t n);

#endif
