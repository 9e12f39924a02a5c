// Whether everything that a program refers to is there, so that running needs to check indices alone; and what of it is
// well formed but not taken.
#include "ops.h"

#include <stdlib.h>

// Whether an expression uses only names of these counts.
static bool names_below(const Expr *e, size_t symbols, size_t loops, size_t values) {
  return e->words != NULL && expr_largest(e, SYMBOL) < (int64_t)symbols && expr_largest(e, LOOP) < (int64_t)loops &&
         expr_largest(e, VALUE) < (int64_t)values;
}

static bool shape_below(const Shape *s, size_t symbols, size_t loops, size_t values) {
  for (size_t i = 0; i < s->n; i++)
    if (!names_below(&s->dims[i], symbols, loops, values)) return false;
  return true;
}

static bool below(int64_t n, size_t count) { return n >= 0 && (uint64_t)n < count; }

static bool check_buffer(Program *p, const Buffer *b) {
  size_t n = p->n_symbols;
  if (!shape_below(&b->sizes, n, 0, 0) || !shape_below(&b->strides, n, 0, 0) || !names_below(&b->offset, n, 0, 0))
    return false;
  if (b->storage == INPUT && !below(b->of, p->n_inputs)) return false;
  if (b->storage == CONSTANT && !below(b->of, p->n_constants)) return false;
  if (b->storage == VIEW && (!below(b->of, p->n_buffers) || p->buffers[b->of].storage == VIEW)) return false;
  if (b->dtype != OTHER) return true;
  return program_refuse(p, b->name, "tensors of this dtype are not taken, only f32, i64 and bool", b->dtype_name);
}

// A view of a buffer, as outputs and operands of products are.
static bool check_view(const Program *p, const Port *view) {
  size_t n = p->n_symbols;
  return below(view->buf, p->n_buffers) && view->sizes.n == view->strides.n && names_below(&view->offset, n, 0, 0) &&
         shape_below(&view->sizes, n, 0, 0) && shape_below(&view->strides, n, 0, 0);
}

static bool check_ports(Program *p) {
  Text none = {"", 0};
  for (size_t i = 0; i < p->n_inputs; i++) {
    if (!below(p->inputs[i].buf, p->n_buffers)) return false;
    const Buffer *b = &p->buffers[p->inputs[i].buf];
    if (b->storage != INPUT || b->of != (int64_t)i) return false;
    if (p->inputs[i].written && !program_refuse(p, p->inputs[i].name, "inputs are not written in place", none)) return false;
  }
  for (size_t i = 0; i < p->n_constants; i++) {
    if (!below(p->constants[i].buf, p->n_buffers)) return false;
    const Buffer *b = &p->buffers[p->constants[i].buf];
    if (b->storage != CONSTANT || b->of != (int64_t)i) return false;
  }
  for (size_t i = 0; i < p->n_outputs; i++) {
    const Port *o = &p->outputs[i];
    if (!check_view(p, o)) return false;
  }
  return true;
}

// A size has to be read off an input: sizes that only follow from others are refused.
static bool check_symbols(Program *p) {
  for (size_t s = 0; s < p->n_symbols; s++) {
    bool found = false;
    for (size_t i = 0; i < p->n_inputs; i++) {
      const Shape *sizes = &p->buffers[p->inputs[i].buf].sizes;
      for (size_t d = 0; d < sizes->n; d++) found = found || expr_symbol(&sizes->dims[d]) == (int64_t)s;
    }
    Text none = {"", 0}, name = p->symbols[s].name;
    if (!found && !program_refuse(p, name, "a size that is no input's size is not taken", none)) return false;
  }
  return true;
}

typedef struct Where {
  Program *p;
  const Kernel *kernel;
  const Stage *stage;
  size_t at;     // number of the instruction
  size_t loops;  // loop variables in scope
} Where;

static bool is_value(const Where *w, int64_t n, DType dtype) {
  return below(n, w->at) && w->stage->insts[n].dtype == dtype && w->stage->insts[n].kind != STORE &&
         w->stage->insts[n].kind != REDUCE;
}

static bool check_index(const Where *w, const Shape *index) {
  for (size_t d = 0; d < index->n; d++) {
    const Expr *e = &index->dims[d];
    if (!names_below(e, w->p->n_symbols, w->loops, w->at)) return false;
    for (size_t i = 0; i < e->n_words; i++)
      if (e->words[i].code == VALUE && !is_value(w, e->words[i].n, I64)) return false;
  }
  return true;
}

static bool check_access(const Where *w, const Inst *inst) {
  if (!below(inst->buf, w->p->n_buffers)) return false;
  const Buffer *b = &w->p->buffers[inst->buf];
  const Buffer *root = b->storage == VIEW ? &w->p->buffers[b->of] : b;
  if (inst->index.n != b->sizes.n || inst->dtype != b->dtype || !check_index(w, &inst->index)) return false;
  if (inst->mask >= 0 && !is_value(w, inst->mask, BOOLEANS)) return false;
  if (inst->kind == LOAD) return true;
  return is_value(w, inst->value, inst->dtype) && root->storage != INPUT && root->storage != CONSTANT;
}

static bool check_op(const Where *w, const Inst *inst) {
  DType args[3] = {OTHER, OTHER, OTHER};
  for (size_t i = 0; i < inst->n_args; i++) {
    if (!below(inst->args[i], w->at)) return false;
    args[i] = w->stage->insts[inst->args[i]].dtype;
  }
  Text none = {"", 0};
  return op_takes(inst->op, args, inst->n_args, inst->dtype) ||
         program_refuse(w->p, w->kernel->name, "an operator is applied to dtypes that this backend has it not for", none);
}

static bool check_index_check(const Where *w, const Inst *inst) {
  return inst->dtype == I64 && is_value(w, inst->value, I64) && below(inst->buf, w->p->n_sites) &&
         (inst->mask < 0 || is_value(w, inst->mask, BOOLEANS)) &&
         names_below(&inst->expr, w->p->n_symbols, w->loops, w->at);
}

static bool check_inst(const Where *w, const Inst *inst) {
  Shape lone = {(Expr *)&inst->expr, 1};
  switch (inst->kind) {
    case CONST_VALUE: return true;
    case INDEX: return inst->dtype == I64 && check_index(w, &lone);
    case LOAD:
    case STORE: return check_access(w, inst);
    case CHECK: return check_index_check(w, inst);
    case OP: return check_op(w, inst);
    case CAST: return below(inst->value, w->at);
    case REDUCE: return below(inst->buf, w->kernel->n_accs) && is_value(w, inst->value, F32);
    case ACC: return below(inst->buf, w->kernel->n_accs) && inst->dtype == F32;
    case TEMPLATE: return w->kernel->kind != LOOPS && inst->dtype == F32;
  }
  return false;
}

// Whether a product's parts have the dimensions that belong together; their sizes are known at a call only.
static bool check_product(Program *p, const Kernel *k) {
  const Port *factors[2] = {&k->a, &k->b};
  size_t rank = k->outer.n;
  for (size_t i = 0; i < 2; i++) {
    if (!check_view(p, factors[i]) || factors[i]->sizes.n != rank) return false;
    const Buffer *b = &p->buffers[factors[i]->buf];
    if (b->dtype != F32 && !program_refuse(p, k->name, "factors of this dtype are not taken, only f32", b->dtype_name))
      return false;
  }
  if (k->n_stages != 1 || rank < 2) return false;
  if (k->kind == MATMUL) return true;
  return rank > 2 && k->groups > 0 && k->n_strides == rank - 2 && k->n_paddings == rank - 2 && k->n_dilations == rank - 2;
}

static bool check_kernel(Program *p, const Kernel *k) {
  if (k->kind != LOOPS && !check_product(p, k)) return false;
  if (!shape_below(&k->outer, p->n_symbols, 0, 0)) return false;
  for (size_t s = 0; s < k->n_stages; s++) {
    const Stage *stage = &k->stages[s];
    Where w = {p, k, stage, 0, k->outer.n + stage->inner.n};
    if (!shape_below(&stage->inner, p->n_symbols, 0, 0) || w.loops > MAX_LOOPS) return false;
    for (; w.at < stage->n_insts; w.at++)
      if (!check_inst(&w, &stage->insts[w.at])) return false;
  }
  return true;
}

bool program_check(Program *p) {
  if (!check_ports(p)) return false;
  size_t before = p->n_refused;
  for (size_t i = 0; i < p->n_buffers; i++)
    if (!check_buffer(p, &p->buffers[i])) return false;
  if (!check_symbols(p)) return false;
  // A body with refused parts was not kept whole, so there is nothing to check in it.
  if (before > 0) return true;
  for (size_t i = 0; i < p->n_init; i++)
    if (!check_kernel(p, &p->init[i])) return false;
  for (size_t i = 0; i < p->n_steps; i++)
    if (!check_kernel(p, &p->steps[i])) return false;
  return true;
}
