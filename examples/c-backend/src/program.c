// See program.h. docs/program-bytes.md is the page that this file follows.
#include "program.h"

#include <stdlib.h>
#include <string.h>

#include "ops.h"

typedef struct Build {
  Reader r;
  Program *p;
  Text step;     // name of the step that is being read
  bool refused;  // whether something of it was refused
} Build;

// A zeroed array; too little memory is a failure like any other.
static void *make(Build *b, size_t n, size_t size) {
  void *made = b->r.failed ? NULL : calloc(n > 0 ? n : 1, size);
  if (made == NULL) b->r.failed = true;
  return made;
}

bool program_refuse(Program *p, Text node, const char *reason, Text detail) {
  Refused *list = realloc(p->refused, (p->n_refused + 1) * sizeof *list);
  if (list == NULL) return false;
  Refused one = {node, detail, reason};
  list[p->n_refused++] = one;
  p->refused = list;
  return true;
}

// Refuses the step that is being read; one reason a step is enough.
static void refuse_step(Build *b, const char *reason, Text detail) {
  if (!b->refused && !program_refuse(b->p, b->step, reason, detail)) b->r.failed = true;
  b->refused = true;
}

static Shape read_shape(Build *b, size_t most) {
  Shape shape = {NULL, 0};
  size_t n = read_array(&b->r);
  if (n > most) b->r.failed = true;
  shape.dims = make(b, n, sizeof *shape.dims);
  for (size_t i = 0; i < n && !b->r.failed; i++, shape.n++) shape.dims[i] = expr_read(&b->r);
  return shape;
}

static DType dtype_of(Text name) {
  return text_is(name, "f32") ? F32 : text_is(name, "i64") ? I64 : text_is(name, "bool") ? BOOLEANS : OTHER;
}

static void read_symbol(Build *b, Symbol *s) {
  s->max = INT64_MAX;
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "name")) {
      s->name = read_text(&b->r);
    } else if (text_is(key, "min")) {
      s->min = read_integer(&b->r);
    } else if (text_is(key, "max")) {
      Item max = read_item(&b->r);
      if (max.kind == INTEGER) s->max = max.integer;
    } else {
      skip_value(&b->r);
    }
  }
}

// `"Arena"`, or a map of one pair: `{"View": 3}`.
static void read_storage(Build *b, Buffer *buffer) {
  bool plain = next_is_text(&b->r);
  if (!plain && read_map(&b->r) != 1) b->r.failed = true;
  Text name = read_text(&b->r);
  buffer->of = plain ? 0 : read_optional(&b->r);
  if (!plain && text_is(name, "Input")) buffer->storage = INPUT;
  else if (!plain && text_is(name, "Constant")) buffer->storage = CONSTANT;
  else if (!plain && text_is(name, "View")) buffer->storage = VIEW;
  else if (plain && text_is(name, "Persistent")) buffer->storage = PERSISTENT;
  else if (plain && text_is(name, "Arena")) buffer->storage = ARENA;
  else if (plain && text_is(name, "Output")) buffer->storage = OUTPUT;
  else b->r.failed = true;
}

static void read_buffer(Build *b, Buffer *buffer) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "name")) buffer->name = read_text(&b->r);
    else if (text_is(key, "dtype")) buffer->dtype_name = read_text(&b->r);
    else if (text_is(key, "sizes") && buffer->sizes.dims == NULL) buffer->sizes = read_shape(b, MAX_RANK);
    else if (text_is(key, "strides") && buffer->strides.dims == NULL) buffer->strides = read_shape(b, MAX_RANK);
    else if (text_is(key, "offset") && buffer->offset.words == NULL) buffer->offset = expr_read(&b->r);
    else if (text_is(key, "storage")) read_storage(b, buffer);
    else skip_value(&b->r);
  }
  buffer->dtype = dtype_of(buffer->dtype_name);
  if (buffer->sizes.n != buffer->strides.n || buffer->offset.words == NULL) b->r.failed = true;
}

static void read_port(Build *b, Port *port) {
  port->buf = -1;
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "name")) port->name = read_text(&b->r);
    else if (text_is(key, "buf")) port->buf = read_optional(&b->r);
    else if (text_is(key, "written")) port->written = read_item(&b->r).integer != 0;
    else if (text_is(key, "sizes") && port->sizes.dims == NULL) port->sizes = read_shape(b, MAX_RANK);
    else if (text_is(key, "strides") && port->strides.dims == NULL) port->strides = read_shape(b, MAX_RANK);
    else if (text_is(key, "offset") && port->offset.words == NULL) port->offset = expr_read(&b->r);
    else skip_value(&b->r);
  }
}

static void read_number(Build *b, Inst *inst) {
  if (read_map(&b->r) != 1) b->r.failed = true;
  Text kind = read_text(&b->r);
  Item item = {NIL, 0, 0, {NULL, 0}};
  if (text_is(kind, "Complex")) skip_value(&b->r);
  else item = read_item(&b->r);
  inst->number = item.kind == FLOATING ? item.floating : (double)item.integer;
  inst->whole = item.integer;
}

static void read_op(Build *b, Inst *inst) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "op")) {
      Text name = read_text(&b->r);
      inst->op = op_find(name);
      if (inst->op < 0) refuse_step(b, "the operator is not one of this backend's", name);
    } else if (text_is(key, "args")) {
      inst->n_args = read_array(&b->r);
      if (inst->n_args > 3) b->r.failed = true;
      for (size_t i = 0; i < inst->n_args && !b->r.failed; i++) inst->args[i] = read_optional(&b->r);
    } else {
      skip_value(&b->r);
    }
  }
}

// The fields of `Load`, `Store` and `Reduce`.
static void read_access(Build *b, Inst *inst) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "buf") || text_is(key, "acc")) {
      inst->buf = read_optional(&b->r);
    } else if (text_is(key, "index") && inst->index.dims == NULL) {
      inst->index = read_shape(b, MAX_RANK);
    } else if (text_is(key, "value")) {
      inst->value = read_optional(&b->r);
    } else if (text_is(key, "mask")) {
      inst->mask = read_optional(&b->r);
    } else if (text_is(key, "mode") && next_is_text(&b->r)) {
      Text mode = read_text(&b->r);
      if (!text_is(mode, "Write")) refuse_step(b, "a store combines with what is there", mode);
    } else {
      if (text_is(key, "mode")) refuse_step(b, "a store combines with what is there", key);
      skip_value(&b->r);
    }
  }
}

static void read_index_check(Build *b, Inst *inst) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "value")) inst->value = read_optional(&b->r);
    else if (text_is(key, "size") && inst->expr.words == NULL) inst->expr = expr_read(&b->r);
    else if (text_is(key, "mask")) inst->mask = read_optional(&b->r);
    else if (text_is(key, "site")) inst->buf = read_optional(&b->r);
    else skip_value(&b->r);
  }
}

// `"Template"`, or a map of one pair: `{"Load": {…}}`.
static void read_inst_kind(Build *b, Inst *inst) {
  if (next_is_text(&b->r)) {
    inst->kind = TEMPLATE;
    if (!text_is(read_text(&b->r), "Template")) b->r.failed = true;
    return;
  }
  if (read_map(&b->r) != 1) b->r.failed = true;
  Text kind = read_text(&b->r);
  if (text_is(kind, "Const")) inst->kind = CONST_VALUE, read_number(b, inst);
  else if (text_is(kind, "Index")) inst->kind = INDEX, inst->expr = expr_read(&b->r);
  else if (text_is(kind, "Load")) inst->kind = LOAD, read_access(b, inst);
  else if (text_is(kind, "Store")) inst->kind = STORE, read_access(b, inst);
  else if (text_is(kind, "Check")) inst->kind = CHECK, read_index_check(b, inst);
  else if (text_is(kind, "Reduce")) inst->kind = REDUCE, read_access(b, inst);
  else if (text_is(kind, "Op")) inst->kind = OP, read_op(b, inst);
  else if (text_is(kind, "Cast")) inst->kind = CAST, inst->value = read_optional(&b->r);
  else if (text_is(kind, "Acc")) inst->kind = ACC, inst->buf = read_optional(&b->r);
  else {
    skip_value(&b->r);
    refuse_step(b, "the instruction is not one of this backend's", kind);
  }
}

static void read_inst(Build *b, Inst *inst) {
  inst->mask = -1;
  Text dtype = {NULL, 0};
  bool seen = false;
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "dtype")) dtype = read_text(&b->r);
    else if (text_is(key, "kind") && !seen) seen = true, read_inst_kind(b, inst);
    else skip_value(&b->r);
  }
  inst->dtype = dtype_of(dtype);
  if (!seen) b->r.failed = true;
  if (inst->dtype == OTHER) refuse_step(b, "values of this dtype are not taken, only f32, i64 and bool", dtype);
}

static void read_insts(Build *b, Stage *stage) {
  size_t count = read_array(&b->r);
  stage->insts = make(b, count, sizeof *stage->insts);
  for (size_t i = 0; i < count && !b->r.failed; i++) read_inst(b, &stage->insts[stage->n_insts++]);
}

static void read_stage(Build *b, Stage *stage) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "inner") && stage->inner.dims == NULL) {
      stage->inner = read_shape(b, MAX_LOOPS);
    } else if (text_is(key, "insts") && stage->insts == NULL) {
      read_insts(b, stage);
    } else {
      skip_value(&b->r);
    }
  }
}

static void read_acc(Build *b, ReduceOp *acc) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    bool op = text_is(key, "op");
    if (!op && !text_is(key, "dtype")) {
      skip_value(&b->r);
      continue;
    }
    Text word = read_text(&b->r);
    if (!op && dtype_of(word) != F32) refuse_step(b, "reductions of this dtype are not taken, only f32", word);
    if (!op) continue;
    if (text_is(word, "Sum")) *acc = SUM;
    else if (text_is(word, "Prod")) *acc = PROD;
    else if (text_is(word, "Max")) *acc = LARGEST;
    else if (text_is(word, "Min")) *acc = SMALLEST;
    else refuse_step(b, "the reduction is not one of this backend's", word);
  }
}

static void read_kernel(Build *b, Kernel *k) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "name")) {
      b->step = k->name = read_text(&b->r);
    } else if (text_is(key, "outer") && k->outer.dims == NULL) {
      k->outer = read_shape(b, MAX_LOOPS);
    } else if (text_is(key, "accs") && k->accs == NULL) {
      size_t count = read_array(&b->r);
      k->accs = make(b, count, sizeof *k->accs);
      for (size_t i = 0; i < count && !b->r.failed; i++) read_acc(b, &k->accs[k->n_accs++]);
    } else if (text_is(key, "stages") && k->stages == NULL) {
      size_t count = read_array(&b->r);
      k->stages = make(b, count, sizeof *k->stages);
      for (size_t i = 0; i < count && !b->r.failed; i++) read_stage(b, &k->stages[k->n_stages++]);
    } else {
      skip_value(&b->r);
    }
  }
}

static void read_epilogue(Build *b, Kernel *k) {
  k->stages = make(b, 1, sizeof *k->stages);
  if (k->stages != NULL) k->n_stages = 1;
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "ranges") && k->outer.dims == NULL) k->outer = read_shape(b, MAX_RANK);
    else if (text_is(key, "insts") && k->stages->insts == NULL) read_insts(b, k->stages);
    else skip_value(&b->r);
  }
}

// One number a spatial dimension, or of `padding` a pair, of which the second follows from the size of the result. What
// no tensor has is a failure, so that places can be computed without overflow.
static size_t read_windows(Build *b, Kernel *k, size_t field, bool pairs) {
  size_t count = read_array(&b->r);
  if (count > MAX_SPATIAL) b->r.failed = true;
  for (size_t i = 0; i < count && !b->r.failed; i++) {
    if (pairs && read_array(&b->r) != 2) b->r.failed = true;
    int64_t value = read_integer(&b->r), most = 1 << 20;
    if (pairs) read_integer(&b->r);
    if (value > most || value < (pairs ? -most : 1)) b->r.failed = true;
    *(int64_t *)((char *)&k->windows[i] + field) = value;
  }
  return count;
}

static void read_product(Build *b, Kernel *k) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "name")) b->step = k->name = read_text(&b->r);
    else if (text_is(key, "a") || text_is(key, "input")) read_port(b, &k->a);
    else if (text_is(key, "b") || text_is(key, "weight")) read_port(b, &k->b);
    else if (text_is(key, "stride")) k->n_strides = read_windows(b, k, offsetof(Window, stride), false);
    else if (text_is(key, "padding")) k->n_paddings = read_windows(b, k, offsetof(Window, before), true);
    else if (text_is(key, "dilation")) k->n_dilations = read_windows(b, k, offsetof(Window, dilation), false);
    else if (text_is(key, "groups")) k->groups = read_integer(&b->r);
    else if (text_is(key, "transposed")) k->transposed = read_item(&b->r).integer != 0;
    else if (text_is(key, "epilogue") && k->stages == NULL) read_epilogue(b, k);
    else if (text_is(key, "acc")) {
      Text acc = read_text(&b->r);
      if (dtype_of(acc) != F32) refuse_step(b, "products of this dtype are not taken, only f32", acc);
    } else skip_value(&b->r);
  }
}

// The name of a step of another kind: everything else of it is passed over.
static void read_other_step(Build *b, Text kind) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "name")) b->step = read_text(&b->r);
    else skip_value(&b->r);
  }
  refuse_step(b, "only loops, matrix products and convolutions are taken", kind);
}

// A list of steps that grows: the members of a `Together`, which may run in any order, stand in it one by one.
typedef struct Steps {
  Kernel *list;
  size_t n, room;
} Steps;

static Kernel *next_step(Build *b, Steps *steps, StepKind kind) {
  if (steps->n == steps->room) {
    size_t room = 2 * steps->room + 4;
    Kernel *list = realloc(steps->list, room * sizeof *list);
    if (list == NULL) {
      b->r.failed = true;
      return NULL;
    }
    steps->list = list;
    steps->room = room;
  }
  Kernel *k = &steps->list[steps->n++];
  memset(k, 0, sizeof *k);
  k->kind = kind;
  return k;
}

static void read_step(Build *b, Steps *steps, bool nested);

static void read_members(Build *b, Steps *steps) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    if (!text_is(read_text(&b->r), "steps")) {
      skip_value(&b->r);
      continue;
    }
    for (size_t count = read_array(&b->r); count > 0 && !b->r.failed; count--) read_step(b, steps, true);
  }
}

// `nested` in a `Together`, which holds no other one.
static void read_step(Build *b, Steps *steps, bool nested) {
  if (read_map(&b->r) != 1) b->r.failed = true;
  Text kind = read_text(&b->r), none = {"", 0};
  bool loop = text_is(kind, "Loop"), matmul = text_is(kind, "Matmul"), conv = text_is(kind, "Conv");
  b->refused = false;
  b->step = none;
  if (b->r.failed) return;
  if (loop || matmul || conv) {
    Kernel *k = next_step(b, steps, loop ? LOOPS : matmul ? MATMUL : CONV);
    if (k != NULL && loop) read_kernel(b, k);
    else if (k != NULL) read_product(b, k);
  } else if (text_is(kind, "Together") && !nested) {
    read_members(b, steps);
  } else {
    read_other_step(b, kind);
  }
}

static Kernel *read_steps(Build *b, size_t *n) {
  Steps steps = {NULL, 0, 0};
  for (size_t count = read_array(&b->r); count > 0 && !b->r.failed; count--) read_step(b, &steps, false);
  *n = steps.n;
  // No steps are a list too.
  return steps.list != NULL ? steps.list : make(b, 1, sizeof *steps.list);
}

static void read_site(Build *b, Site *site) {
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "operator")) site->operator_name = read_text(&b->r);
    else if (text_is(key, "origin")) site->origin = read_text(&b->r);
    else if (text_is(key, "dim")) site->dim = read_integer(&b->r);
    else if (text_is(key, "wraps")) site->wraps = read_item(&b->r).integer != 0;
    else skip_value(&b->r);
  }
}

static Port *read_ports(Build *b, size_t *n) {
  size_t count = read_array(&b->r);
  Port *ports = make(b, count, sizeof *ports);
  for (size_t i = 0; i < count && !b->r.failed; i++) read_port(b, &ports[(*n)++]);
  return ports;
}

static void read_fields(Build *b) {
  Program *p = b->p;
  for (size_t n = read_map(&b->r); n > 0 && !b->r.failed; n--) {
    Text key = read_text(&b->r);
    if (text_is(key, "symbols") && p->symbols == NULL) {
      size_t count = read_array(&b->r);
      p->symbols = make(b, count, sizeof *p->symbols);
      for (size_t i = 0; i < count && !b->r.failed; i++) read_symbol(b, &p->symbols[p->n_symbols++]);
    } else if (text_is(key, "buffers") && p->buffers == NULL) {
      size_t count = read_array(&b->r);
      p->buffers = make(b, count, sizeof *p->buffers);
      for (size_t i = 0; i < count && !b->r.failed; i++) read_buffer(b, &p->buffers[p->n_buffers++]);
    } else if (text_is(key, "sites") && p->sites == NULL) {
      size_t count = read_array(&b->r);
      p->sites = make(b, count, sizeof *p->sites);
      for (size_t i = 0; i < count && !b->r.failed; i++) read_site(b, &p->sites[p->n_sites++]);
    } else if (text_is(key, "inputs") && p->inputs == NULL) {
      p->inputs = read_ports(b, &p->n_inputs);
    } else if (text_is(key, "constants") && p->constants == NULL) {
      p->constants = read_ports(b, &p->n_constants);
    } else if (text_is(key, "outputs") && p->outputs == NULL) {
      p->outputs = read_ports(b, &p->n_outputs);
    } else if (text_is(key, "init") && p->init == NULL) {
      p->init = read_steps(b, &p->n_init);
    } else if (text_is(key, "steps") && p->steps == NULL) {
      p->steps = read_steps(b, &p->n_steps);
    } else {
      skip_value(&b->r);
    }
  }
}

static void free_shape(Shape *s) {
  for (size_t i = 0; i < s->n; i++) expr_free(&s->dims[i]);
  free(s->dims);
}

static void free_port(Port *port) {
  free_shape(&port->sizes);
  free_shape(&port->strides);
  expr_free(&port->offset);
}

static void free_ports(Port *ports, size_t n) {
  for (size_t i = 0; i < n; i++) free_port(&ports[i]);
  free(ports);
}

static void free_kernels(Kernel *kernels, size_t n) {
  for (size_t k = 0; k < n; k++) {
    for (size_t s = 0; s < kernels[k].n_stages; s++) {
      Stage *stage = &kernels[k].stages[s];
      for (size_t i = 0; i < stage->n_insts; i++) {
        expr_free(&stage->insts[i].expr);
        free_shape(&stage->insts[i].index);
      }
      free_shape(&stage->inner);
      free(stage->insts);
    }
    free_port(&kernels[k].a);
    free_port(&kernels[k].b);
    free_shape(&kernels[k].outer);
    free(kernels[k].stages);
    free(kernels[k].accs);
  }
  free(kernels);
}

void program_free(Program *p) {
  if (p == NULL) return;
  for (size_t i = 0; i < p->n_buffers; i++) {
    free_shape(&p->buffers[i].sizes);
    free_shape(&p->buffers[i].strides);
    expr_free(&p->buffers[i].offset);
  }
  free_ports(p->inputs, p->n_inputs);
  free_ports(p->constants, p->n_constants);
  free_ports(p->outputs, p->n_outputs);
  free_kernels(p->init, p->n_init);
  free_kernels(p->steps, p->n_steps);
  free(p->sites);
  free(p->symbols);
  free(p->buffers);
  free(p->refused);
  free(p->bytes);
  free(p);
}

Program *program_read(const uint8_t *bytes, size_t n_bytes, const char **problem) {
  static const uint8_t magic[4] = {'F', 'F', 'X', 'K'};
  *problem = "the bytes are no kernel-ir program: they do not begin with FFXK";
  if (n_bytes < 8 || memcmp(bytes, magic, 4) != 0) return NULL;
  *problem = "the program is of a version of kernel-ir that this backend does not read";
  if ((bytes[4] | bytes[5] << 8) != READS_MAJOR || (bytes[6] | bytes[7] << 8) > READS_MINOR) return NULL;
  *problem = "memory is short";
  Program *p = calloc(1, sizeof *p);
  if (p == NULL || (p->bytes = malloc(n_bytes)) == NULL) {
    free(p);
    return NULL;
  }
  memcpy(p->bytes, bytes, n_bytes);
  Build b = {{p->bytes + 8, p->bytes + n_bytes, false}, p, {"", 0}, false};
  read_fields(&b);
  if (!b.r.failed && b.r.at != b.r.end) b.r.failed = true;
  if (!b.r.failed && program_check(p)) return p;
  *problem = "the program is damaged, or uses more than this backend reads";
  program_free(p);
  return NULL;
}
