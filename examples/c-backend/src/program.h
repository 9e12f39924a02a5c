// A kernel-ir program as this backend keeps it: buffers, steps, and what is refused. Fused loops, matrix products and
// convolutions are taken, over tensors of float32, int64 and bool; the rest is read as far as it takes to name what is
// refused, and why.
#ifndef PROGRAM_H
#define PROGRAM_H

#include "expr.h"

enum { MAX_RANK = 16, MAX_LOOPS = 32, MAX_SPATIAL = 3 };

typedef enum DType { F32, I64, BOOLEANS, OTHER } DType;
typedef enum Storage { INPUT, CONSTANT, PERSISTENT, ARENA, OUTPUT, VIEW } Storage;

typedef struct Shape {
  Expr *dims;
  size_t n;
} Shape;

typedef struct Buffer {
  Text name, dtype_name;
  DType dtype;
  Shape sizes, strides;
  Expr offset;
  Storage storage;
  int64_t of;  // number of the input or constant, or the buffer that a view is part of
} Buffer;

// An input or constant, a view of a buffer that a call returns, or one that a product reads.
typedef struct Port {
  Text name;
  int64_t buf;
  bool written;          // of inputs alone
  Shape sizes, strides;  // of outputs and operands alone, as the next
  Expr offset;
} Port;

// Who asks for checks of an index from data.
typedef struct Site {
  Text operator_name, origin;
  int64_t dim;
  bool wraps;
} Site;

typedef enum InstKind { CONST_VALUE, INDEX, LOAD, STORE, CHECK, OP, CAST, REDUCE, ACC, TEMPLATE } InstKind;

typedef struct Inst {
  InstKind kind;
  DType dtype;
  double number;  // CONST_VALUE
  int64_t whole;  // the same of an integer or truth value
  Expr expr;      // INDEX; the size of CHECK
  Shape index;    // LOAD, STORE
  int64_t buf;    // LOAD, STORE; which accumulator of REDUCE and ACC; which site of CHECK
  int64_t mask;   // a value, or -1
  int64_t value;  // STORE, CHECK, CAST, REDUCE
  int op;         // OP: number in the table of operators
  int64_t args[3];
  size_t n_args;
} Inst;

typedef struct Stage {
  Shape inner;
  Inst *insts;
  size_t n_insts;
} Stage;

typedef enum ReduceOp { SUM, PROD, LARGEST, SMALLEST } ReduceOp;

// One spatial dimension of a convolution.
typedef struct Window {
  int64_t stride, before, dilation;
} Window;

typedef enum StepKind { LOOPS, MATMUL, CONV } StepKind;

// A step. A product has its epilogue as the one stage, over the outer domain, which is the product's result.
typedef struct Kernel {
  StepKind kind;
  Port a, b;  // the factors of MATMUL; input and weight of CONV
  Window windows[MAX_SPATIAL];
  size_t n_strides, n_paddings, n_dilations;  // how many of the windows have been told
  int64_t groups;
  bool transposed;
  Text name;
  Shape outer;
  ReduceOp *accs;
  size_t n_accs;
  Stage *stages;
  size_t n_stages;
} Kernel;

typedef struct Symbol {
  Text name;
  int64_t min, max;
} Symbol;

// What is not taken, and why; `reason` is static text, `detail` what it is about.
typedef struct Refused {
  Text node, detail;
  const char *reason;
} Refused;

typedef struct Program {
  uint8_t *bytes;  // a copy: texts point into it
  Symbol *symbols;
  Buffer *buffers;
  Port *inputs, *constants, *outputs;
  Site *sites;
  Kernel *init, *steps;
  Refused *refused;
  size_t n_symbols, n_buffers, n_inputs, n_constants, n_outputs, n_sites, n_init, n_steps, n_refused;
} Program;

// Newest minor of kernel-ir that this backend reads. The host writes older forms for older readers.
enum { READS_MAJOR = 1, READS_MINOR = 6 };

// Reads a program; NULL with `*problem` set where the bytes are none (or memory is short). A program with refusals is
// returned: it must not run.
Program *program_read(const uint8_t *bytes, size_t n_bytes, const char **problem);
// Checks what the steps refer to: false where it is not there. Adds refusals of its own. Part of reading (check.c).
bool program_check(Program *p);
// Notes that a part is not taken; false without memory.
bool program_refuse(Program *p, Text node, const char *reason, Text detail);
void program_free(Program *p);

#endif
