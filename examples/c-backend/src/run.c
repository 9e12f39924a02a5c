// See run.h. One element at a time: this backend shows the boundary, not how to be fast.
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"

// More elements than any memory has, and few enough that sums of two do not overflow.
#define MAX_ELEMENTS ((int64_t)1 << 60)

bool call_open(Call *call, const Program *program) {
  memset(call, 0, sizeof *call);
  call->program = program;
  call->symbols = calloc(program->n_symbols + 1, sizeof *call->symbols);
  call->places = calloc(program->n_buffers + 1, sizeof *call->places);
  call->owned = calloc(program->n_buffers + 1, sizeof *call->owned);
  call->no_memory = call->symbols == NULL || call->places == NULL || call->owned == NULL;
  return !call->no_memory;
}

void call_close(Call *call) {
  for (size_t i = 0; call->owned != NULL && i < call->program->n_buffers; i++) free(call->owned[i]);
  free(call->symbols);
  free(call->places);
  free(call->owned);
}

bool call_fail(Call *call, const char *problem, Text about) {
  call->problem = problem;
  call->about = about;
  return false;
}

static Names names_of(const Call *call) {
  Names names = {call->symbols, NULL, NULL, call->program->n_symbols, 0, 0};
  return names;
}

size_t width_of(DType dtype) { return dtype == F32 ? sizeof(float) : dtype == I64 ? sizeof(int64_t) : 1; }

bool place_evaluate(Call *call, Place *place, const Shape *sizes, const Shape *strides, const Expr *offset, Text name) {
  Names names = names_of(call);
  int64_t last = 0;
  bool empty = false;
  place->rank = sizes->n;
  if (!expr_eval(offset, &names, &place->offset) || place->offset < 0 || place->offset > MAX_ELEMENTS)
    return call_fail(call, "an offset is out of range", name);
  for (size_t d = 0; d < sizes->n; d++) {
    int64_t size, stride;
    if (!expr_eval(&sizes->dims[d], &names, &size) || !expr_eval(&strides->dims[d], &names, &stride) || size < 0 ||
        stride < 0)
      return call_fail(call, "a size or stride is out of range", name);
    place->sizes[d] = size;
    place->strides[d] = stride;
    empty = empty || size == 0;
    if (size > 1 && stride > (MAX_ELEMENTS - last) / (size - 1))
      return call_fail(call, "the sizes are too large", name);
    if (size > 1) last += (size - 1) * stride;
  }
  place->span = empty ? 0 : (size_t)last + 1;
  return true;
}

bool place_owned(Call *call, Storage storage) {
  const Program *p = call->program;
  for (size_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffers[i];
    if (b->storage != storage) continue;
    Place *place = &call->places[i];
    if (!place_evaluate(call, place, &b->sizes, &b->strides, &b->offset, b->name)) return false;
    place->offset = 0;
    place->dtype = b->dtype;
    call->owned[i] = calloc(place->span + 1, width_of(b->dtype));
    call->no_memory = call->owned[i] == NULL;
    if (call->no_memory) return call_fail(call, "there is no memory for a buffer", b->name);
    place->data = call->owned[i];
  }
  return true;
}

bool place_views(Call *call) {
  const Program *p = call->program;
  for (size_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffers[i];
    if (b->storage != VIEW) continue;
    Place *place = &call->places[i];
    const Place *root = &call->places[b->of];
    if (!place_evaluate(call, place, &b->sizes, &b->strides, &b->offset, b->name)) return false;
    if (place->span > 0 && (uint64_t)place->offset + place->span > root->span)
      return call_fail(call, "a view reaches out of its buffer", b->name);
    if (b->dtype != root->dtype) return call_fail(call, "a view has another dtype than its buffer", b->name);
    place->data = root->data;
    place->dtype = root->dtype;
  }
  return true;
}

// Goes to the next index in row-major order; false after the last one.
static bool advance(int64_t *index, const int64_t *sizes, size_t rank) {
  for (size_t d = rank; d-- > 0;) {
    if (++index[d] < sizes[d]) return true;
    index[d] = 0;
  }
  return false;
}

void place_copy(const Place *from, Place *to) {
  int64_t index[MAX_RANK] = {0};
  if (to->span == 0) return;
  do {
    int64_t source = from->offset, target = to->offset;
    for (size_t d = 0; d < to->rank; d++) {
      source += index[d] * from->strides[d];
      target += index[d] * to->strides[d];
    }
    size_t width = width_of(to->dtype);
    memcpy((char *)to->data + (size_t)target * width, (const char *)from->data + (size_t)source * width, width);
  } while (advance(index, to->sizes, to->rank));
}

// What a body works on at one point.
typedef struct Point {
  Call *call;
  const Kernel *kernel;
  int64_t loops[MAX_LOOPS];
  size_t n_loops;
  Value *values;
  int64_t *whole;  // the integer of each value, for indices
  double *accs;
  float product;  // of a product, at this point
} Point;

static Names names_at(const Point *at) {
  // Which values there are was checked when the program was read.
  Names names = {at->call->symbols, at->loops, at->whole, at->call->program->n_symbols, at->n_loops, SIZE_MAX};
  return names;
}

// Sets `*found` to where the element that an index names lies; false where it is outside.
static bool element(Point *at, const Inst *inst, int64_t *found) {
  Names names = names_at(at);
  const Place *place = &at->call->places[inst->buf];
  int64_t address = place->offset;
  for (size_t d = 0; d < inst->index.n; d++) {
    int64_t i;
    if (!expr_eval(&inst->index.dims[d], &names, &i) || i < 0 || i >= place->sizes[d]) return false;
    address += i * place->strides[d];
  }
  *found = address;
  return true;
}

static Value load(const Place *place, int64_t at) {
  Value out = {0, 0};
  if (place->dtype == F32) out.f = ((const float *)place->data)[at];
  else out.i = place->dtype == I64 ? ((const int64_t *)place->data)[at] : ((const uint8_t *)place->data)[at] != 0;
  return out;
}

static void store(const Place *place, int64_t at, Value value) {
  if (place->dtype == F32) ((float *)place->data)[at] = value.f;
  else if (place->dtype == I64) ((int64_t *)place->data)[at] = value.i;
  else ((uint8_t *)place->data)[at] = value.i != 0;
}

// An index that is out of bounds ends the call, with the words that the host's own backends have for it.
static bool out_of_bounds(Call *call, const Site *site, int64_t index, int64_t size) {
  int name = site->operator_name.len > 200 ? 200 : (int)site->operator_name.len;
  int origin = site->origin.len > 200 ? 200 : (int)site->origin.len;
  // A negative index that wraps had the size added.
  if (site->wraps && index < 0) index = (int64_t)((uint64_t)index - (uint64_t)size);
  snprintf(call->message, sizeof call->message, "`%.*s`%s%.*s%s: index %lld is out of bounds for dimension %lld with size %lld",
           name, name > 0 ? site->operator_name.data : "", origin > 0 ? " (" : "", origin,
           origin > 0 ? site->origin.data : "", origin > 0 ? ")" : "", (long long)index, (long long)site->dim,
           (long long)size);
  call->problem = call->message;
  return false;
}

static Value cast(Value from, DType of, DType to) {
  Value out = {0, 0};
  if (to == F32) {
    out.f = of == F32 ? from.f : (float)from.i;
  } else if (of != F32) {
    out.i = to == BOOLEANS ? from.i != 0 : from.i;
  } else if (to == BOOLEANS) {
    out.i = from.f != 0.0f;
  } else {
    // What does not fit is saturated, so that no conversion is undefined.
    bool low = from.f <= -9223372036854775808.0f, high = from.f >= 9223372036854775808.0f;
    out.i = isnan(from.f) ? 0 : low ? INT64_MIN : high ? INT64_MAX : (int64_t)from.f;
  }
  return out;
}

static void reduce(ReduceOp op, double *acc, double value) {
  switch (op) {
    case SUM: *acc += value; break;
    case PROD: *acc *= value; break;
    case LARGEST: *acc = isnan(*acc) || *acc > value ? *acc : value; break;
    case SMALLEST: *acc = isnan(*acc) || *acc < value ? *acc : value; break;
  }
}

static double identity(ReduceOp op) {
  return op == SUM ? 0.0 : op == PROD ? 1.0 : op == LARGEST ? -INFINITY : INFINITY;
}

static bool run_inst(Point *at, const Stage *stage, size_t n) {
  const Inst *inst = &stage->insts[n];
  Value *out = &at->values[n];
  Value args[3];
  Names names = names_at(at);
  const Place *place;
  int64_t found;
  bool live = inst->mask < 0 || at->values[inst->mask].i != 0;
  out->f = 0;
  out->i = 0;
  switch (inst->kind) {
    case CONST_VALUE:
      out->f = (float)inst->number;
      out->i = inst->dtype == BOOLEANS ? inst->whole != 0 : inst->whole;
      break;
    case INDEX:
      if (!expr_eval(&inst->expr, &names, &out->i)) return false;
      break;
    case LOAD:
    case STORE:
      place = &at->call->places[inst->buf];
      if (live && !element(at, inst, &found)) return false;
      if (live && inst->kind == LOAD) *out = load(place, found);
      if (live && inst->kind == STORE) store(place, found, at->values[inst->value]);
      break;
    case CHECK:
      out->i = at->values[inst->value].i;
      if (!expr_eval(&inst->expr, &names, &found)) return false;
      if (live && (out->i < 0 || out->i >= found))
        return out_of_bounds(at->call, &at->call->program->sites[inst->buf], out->i, found);
      break;
    case TEMPLATE: out->f = at->product; break;
    case OP:
      for (size_t i = 0; i < inst->n_args; i++) args[i] = at->values[inst->args[i]];
      *out = op_apply(inst->op, stage->insts[inst->args[0]].dtype, args);
      break;
    case CAST:
      *out = cast(at->values[inst->value], stage->insts[inst->value].dtype, inst->dtype);
      break;
    case REDUCE: reduce(at->kernel->accs[inst->buf], &at->accs[inst->buf], at->values[inst->value].f); break;
    case ACC: out->f = (float)at->accs[inst->buf]; break;
  }
  at->whole[n] = out->i;
  return true;
}

// Extents of loops; false where one is out of range.
static bool extents(Call *call, const Shape *shape, int64_t *sizes, bool *empty) {
  Names names = names_of(call);
  *empty = false;
  for (size_t d = 0; d < shape->n; d++) {
    if (!expr_eval(&shape->dims[d], &names, &sizes[d])) return false;
    *empty = *empty || sizes[d] <= 0;
  }
  return true;
}

static bool run_stage(Point *at, const Stage *stage, size_t n_outer) {
  int64_t sizes[MAX_LOOPS];
  bool empty;
  if (!extents(at->call, &stage->inner, sizes, &empty)) return false;
  if (empty) return true;
  at->n_loops = n_outer + stage->inner.n;
  memset(at->loops + n_outer, 0, stage->inner.n * sizeof *at->loops);
  do {
    for (size_t i = 0; i < stage->n_insts; i++)
      if (!run_inst(at, stage, i)) return false;
  } while (advance(at->loops + n_outer, sizes, stage->inner.n));
  return true;
}

static bool run_points(Point *at, const Kernel *k) {
  int64_t sizes[MAX_LOOPS];
  Factors factors;
  bool empty;
  if (!extents(at->call, &k->outer, sizes, &empty)) return false;
  if (empty) return true;
  if (k->kind != LOOPS && !factors_open(at->call, k, sizes, &factors)) return false;
  do {
    if (k->kind != LOOPS) at->product = product_at(k, &factors, at->loops);
    for (size_t a = 0; a < k->n_accs; a++) at->accs[a] = identity(k->accs[a]);
    for (size_t s = 0; s < k->n_stages; s++)
      if (!run_stage(at, &k->stages[s], k->outer.n)) return false;
  } while (advance(at->loops, sizes, k->outer.n));
  return true;
}

bool run_kernels(Call *call, const Kernel *kernels, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const Kernel *k = &kernels[i];
    size_t longest = 1;
    for (size_t s = 0; s < k->n_stages; s++)
      if (k->stages[s].n_insts > longest) longest = k->stages[s].n_insts;
    Point at = {call, k, {0}, k->outer.n, NULL, NULL, NULL, 0};
    at.values = calloc(longest, sizeof *at.values);
    at.whole = calloc(longest, sizeof *at.whole);
    at.accs = calloc(k->n_accs + 1, sizeof *at.accs);
    call->no_memory = at.values == NULL || at.whole == NULL || at.accs == NULL;
    bool done = !call->no_memory && run_points(&at, k);
    free(at.values);
    free(at.whole);
    free(at.accs);
    if (!done && call->problem != NULL) return false;
    if (!done) return call_fail(call, "an index is outside of its buffer", k->name);
  }
  return true;
}
