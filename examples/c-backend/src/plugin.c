// The plugin: the table that the host calls, over a reader (program.c) and an interpreter (run.c) of kernel-ir. It is
// written against ferroflux.h alone. Everything that the host lends is looked at during the call only; what is handed out
// is freed by functions of this file.
#include <ferroflux.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define NAME "c-loops"

// What the host holds as an executable.
struct FfxExecutable {
  Program *program;
  // From `bind_constants`: where constants and persistent buffers lie, and what of it is ours to free.
  void **bound, **owned;
  bool is_bound;
};

static FfxStr str(const char *text) {
  FfxStr s = {(const uint8_t *)text, strlen(text)};
  return s;
}

static FfxStr str_of(Text text) {
  FfxStr s = {(const uint8_t *)text.data, text.len};
  return s;
}

// ---- errors: a struct of the host's, of which only covered fields are written ----

// Text is cut to fit, at a character: bytes 10xxxxxx continue one.
static void write_text(uint8_t *to, size_t room, Text text) {
  size_t len = text.len < room ? text.len : room - 1;
  while (len > 0 && len < text.len && ((uint8_t)text.data[len] & 0xc0) == 0x80) len--;
  if (len > 0) memcpy(to, text.data, len);
  memset(to + len, 0, room - len);
}

static int32_t fail(FfxError *error, int32_t code, Text node, const char *message) {
  Text text = {message, strlen(message)};
  if (error == NULL) return code;
  if (FFX_COVERS(FfxError, error, code)) error->code = code;
  if (FFX_COVERS(FfxError, error, node)) write_text(error->node, FFX_NODE_BYTES, node);
  if (FFX_COVERS(FfxError, error, message)) write_text(error->message, FFX_MESSAGE_BYTES, text);
  return code;
}

static int32_t invalid(FfxError *error, const char *message) {
  Text none = {"", 0};
  return fail(error, FFX_ERR_INVALID_ARGUMENT, none, message);
}

// The reason of a refusal in one line.
static void reason_of(const Refused *r, char *line, size_t room) {
  int len = r->detail.len > 200 ? 200 : (int)r->detail.len;
  if (len > 0) snprintf(line, room, "%s: `%.*s`", r->reason, len, r->detail.data);
  else snprintf(line, room, "%s", r->reason);
}

// ---- description and devices ----

#define STR(text) { (const uint8_t *)(text), sizeof(text) - 1 }

static int32_t describe(void *ctx, const FfxDescription **out, FfxError *error) {
  static const FfxIrVersion irs[] = {{FFX_LEVEL_KERNEL_IR, READS_MAJOR, READS_MINOR}};
  static const FfxDescription description = {
      FFX_HEAD(FfxDescription), STR(NAME), STR("0.1.0"), STR("fused loops, products and convolutions, one element at a time; an example in C"),
      irs, 1, NULL, 0, NULL, 0,
  };
  (void)ctx;
  if (out == NULL) return invalid(error, "the place for the description is null");
  *out = &description;
  return FFX_OK;
}

static int32_t enumerate_devices(void *ctx, FfxDeviceSink sink, void *user, FfxError *error) {
  static const FfxDeviceInfo info = {
      FFX_HEAD(FfxDeviceInfo), {FFX_DL_CPU, 0}, STR("host"), {NULL, 0}, 0, NULL, 0,
  };
  (void)ctx;
  if (sink == NULL) return invalid(error, "the sink is null");
  sink(user, &info);
  return FFX_OK;
}

// ---- programs ----

// Reads the program of a request; NULL with the error filled.
static Program *program_of(const FfxCompileRequest *request, FfxError *error, int32_t *status) {
  Text none = {"", 0};
  const char *problem;
  *status = FFX_ERR_INVALID_ARGUMENT;
  if (request == NULL || request->head.major != FFX_ABI_MAJOR ||
      !FFX_COVERS(FfxCompileRequest, request, program) || request->program == NULL ||
      !FFX_COVERS(FfxProgram, request->program, n_bytes)) {
    invalid(error, "the request has no program");
    return NULL;
  }
  if (FFX_COVERS(FfxCompileRequest, request, mode) && request->mode.len > 0 &&
      !(request->mode.len == 7 && memcmp(request->mode.data, "default", 7) == 0)) {
    invalid(error, "the only mode is `default`");
    return NULL;
  }
  if (FFX_COVERS(FfxCompileRequest, request, n_options) && request->n_options > 0) {
    invalid(error, "this backend takes no options");
    return NULL;
  }
  const FfxProgram *given = request->program;
  if (given->ir.level != FFX_LEVEL_KERNEL_IR || given->ir.major != READS_MAJOR || given->ir.minor > READS_MINOR) {
    *status = fail(error, FFX_ERR_INCOMPATIBLE, none, "this backend reads kernel-ir 1.6");
    return NULL;
  }
  Program *p = given->bytes == NULL ? NULL : program_read(given->bytes, given->n_bytes, &problem);
  if (p == NULL) invalid(error, given->bytes == NULL ? "the program is null" : problem);
  return p;
}

static int32_t query_support(void *ctx, const FfxCompileRequest *request, FfxRefusalSink sink, void *user,
                             FfxError *error) {
  int32_t status;
  (void)ctx;
  if (sink == NULL) return invalid(error, "the sink is null");
  Program *p = program_of(request, error, &status);
  if (p == NULL) return status;
  for (size_t i = 0; i < p->n_refused; i++) {
    char line[512];
    FfxRefusal refusal = {FFX_HEAD(FfxRefusal), {NULL, 0}, {NULL, 0}};
    reason_of(&p->refused[i], line, sizeof line);
    refusal.node = str_of(p->refused[i].node);
    refusal.reason = str(line);
    sink(user, &refusal);
  }
  program_free(p);
  return FFX_OK;
}

static void unbind(FfxExecutable *exe) {
  for (size_t i = 0; i < exe->program->n_buffers; i++) {
    free(exe->owned[i]);
    exe->owned[i] = exe->bound[i] = NULL;
  }
  exe->is_bound = exe->program->n_constants == 0 && exe->program->n_init == 0;
}

static void executable_destroy(void *ctx, FfxExecutable *exe) {
  (void)ctx;
  if (exe == NULL) return;
  if (exe->bound != NULL && exe->owned != NULL) unbind(exe);
  free(exe->bound);
  free(exe->owned);
  program_free(exe->program);
  free(exe);
}

static int32_t compile(void *ctx, const FfxCompileRequest *request, FfxExecutable **out, FfxError *error) {
  int32_t status;
  Text none = {"", 0};
  if (out == NULL) return invalid(error, "the place for the executable is null");
  Program *p = program_of(request, error, &status);
  if (p == NULL) return status;
  if (p->n_refused > 0) {
    char line[512];
    reason_of(&p->refused[0], line, sizeof line);
    status = fail(error, FFX_ERR_UNSUPPORTED, p->refused[0].node, line);
    program_free(p);
    return status;
  }
  FfxExecutable *exe = calloc(1, sizeof *exe);
  if (exe == NULL) {
    program_free(p);
    return fail(error, FFX_ERR_OUT_OF_MEMORY, none, "there is no memory for the program");
  }
  exe->program = p;
  exe->bound = calloc(p->n_buffers + 1, sizeof *exe->bound);
  exe->owned = calloc(p->n_buffers + 1, sizeof *exe->owned);
  if (exe->bound == NULL || exe->owned == NULL) {
    executable_destroy(ctx, exe);
    return fail(error, FFX_ERR_OUT_OF_MEMORY, none, "there is no memory for the program");
  }
  unbind(exe);
  *out = exe;
  return FFX_OK;
}

static int32_t executable_info(void *ctx, const FfxExecutable *exe, FfxExecutableInfo *out, FfxError *error) {
  (void)ctx;
  if (exe == NULL || out == NULL) return invalid(error, "the executable or the place for the answer is null");
  if (FFX_COVERS(FfxExecutableInfo, out, n_inputs)) out->n_inputs = exe->program->n_inputs;
  if (FFX_COVERS(FfxExecutableInfo, out, n_outputs)) out->n_outputs = exe->program->n_outputs;
  if (FFX_COVERS(FfxExecutableInfo, out, n_constants)) out->n_constants = exe->program->n_constants;
  return FFX_OK;
}

// ---- tensors ----

static DLDataType dl_type(DType dtype) {
  DLDataType real = {FFX_DL_FLOAT, 32, 1}, whole = {FFX_DL_INT, 64, 1}, truth = {FFX_DL_BOOL, 8, 1};
  return dtype == F32 ? real : dtype == I64 ? whole : truth;
}

// Whether a tensor of the host has this rank and dtype and lies in host memory.
static bool check_tensor(Call *call, const DLTensor *t, const Buffer *b) {
  if (t == NULL) return call_fail(call, "the tensor is null", b->name);
  if ((int64_t)t->ndim != (int64_t)b->sizes.n) return call_fail(call, "the tensor has another number of dimensions", b->name);
  DLDataType wanted = dl_type(b->dtype);
  if (t->dtype.code != wanted.code || t->dtype.bits != wanted.bits || t->dtype.lanes != 1)
    return call_fail(call, "the tensor has another dtype than the program says", b->name);
  if (t->device.device_type != FFX_DL_CPU && t->device.device_type != FFX_DL_CUDA_HOST)
    return call_fail(call, "the tensor is not in host memory", b->name);
  if (t->ndim > 0 && (t->shape == NULL || t->strides == NULL))
    return call_fail(call, "the tensor has no sizes or strides", b->name);
  if (((uintptr_t)t->data + t->byte_offset) % width_of(b->dtype) != 0)
    return call_fail(call, "the tensor is not aligned", b->name);
  return true;
}

// Places buffer `id` over a tensor of the host; copies where it lies otherwise than the program says.
static bool place_tensor(Call *call, size_t id, const DLTensor *t) {
  const Buffer *b = &call->program->buffers[id];
  Place *place = &call->places[id], given;
  if (!check_tensor(call, t, b) || !place_evaluate(call, place, &b->sizes, &b->strides, &b->offset, b->name))
    return false;
  bool same = place->offset == 0;
  given.offset = 0;
  given.dtype = place->dtype = b->dtype;
  given.rank = place->rank;
  for (size_t d = 0; d < place->rank; d++) {
    if (t->shape[d] != place->sizes[d]) return call_fail(call, "the tensor has another size than the program says", b->name);
    if (t->strides[d] < 0) return call_fail(call, "the tensor has a negative stride", b->name);
    given.strides[d] = t->strides[d];
    same = same && (t->shape[d] <= 1 || t->strides[d] == place->strides[d]);
  }
  // The memory behind inputs and constants is only read: stores to such buffers were refused.
  given.data = (char *)t->data + t->byte_offset;
  if (place->span > 0 && t->data == NULL) return call_fail(call, "the tensor has no memory", b->name);
  place->offset = 0;
  place->data = given.data;
  if (same) return true;
  call->owned[id] = calloc(place->span + 1, width_of(b->dtype));
  call->no_memory = call->owned[id] == NULL;
  if (call->no_memory) return call_fail(call, "there is no memory for a copy", b->name);
  place->data = call->owned[id];
  place_copy(&given, place);
  return true;
}

// Reads the sizes of the call off its inputs. Whether every input agrees shows when it is placed.
static bool bind_symbols(Call *call, const DLTensor *const *inputs) {
  const Program *p = call->program;
  for (size_t i = 0; i < p->n_inputs; i++) {
    const Buffer *b = &p->buffers[p->inputs[i].buf];
    if (!check_tensor(call, inputs[i], b)) return false;
    for (size_t d = 0; d < b->sizes.n; d++) {
      int64_t s = expr_symbol(&b->sizes.dims[d]);
      if (s >= 0) call->symbols[s] = inputs[i]->shape[d];
    }
  }
  for (size_t s = 0; s < p->n_symbols; s++)
    if (call->symbols[s] < p->symbols[s].min || call->symbols[s] > p->symbols[s].max)
      return call_fail(call, "a size is out of the range that the program was compiled for", p->symbols[s].name);
  return true;
}

static int32_t report(const Call *call, FfxError *error) {
  char line[512];
  int len = call->about.len > 200 ? 200 : (int)call->about.len;
  const char *problem = call->problem != NULL ? call->problem : "there is no memory for the call";
  if (problem == call->message) snprintf(line, sizeof line, "%s", problem);
  else snprintf(line, sizeof line, "%s: `%.*s`", problem, len, call->about.data != NULL ? call->about.data : "");
  return fail(error, call->no_memory ? FFX_ERR_OUT_OF_MEMORY : FFX_ERR_INVALID_ARGUMENT, call->about, line);
}

// ---- constants ----

// The position of a constant among the names given, or -1.
static int64_t find_name(const FfxStr *names, size_t n, Text wanted) {
  for (size_t i = 0; i < n; i++)
    if (names[i].len == wanted.len && (wanted.len == 0 || memcmp(names[i].data, wanted.data, wanted.len) == 0))
      return (int64_t)i;
  return -1;
}

static bool bind_all(Call *call, const FfxStr *names, const DLTensor *const *tensors, size_t n) {
  const Program *p = call->program;
  for (size_t s = 0; s < p->n_symbols; s++) call->symbols[s] = p->symbols[s].min;
  for (size_t i = 0; i < p->n_constants; i++) {
    int64_t at = find_name(names, n, p->constants[i].name);
    if (at < 0) return call_fail(call, "a constant is missing", p->constants[i].name);
    if (!place_tensor(call, (size_t)p->constants[i].buf, tensors[at])) return false;
  }
  if (!place_owned(call, PERSISTENT)) return false;
  // Init steps may have temporaries; views of inputs, which are not there yet, they do not touch.
  if (p->n_init == 0) return true;
  return place_owned(call, ARENA) && place_views(call) && run_kernels(call, p->init, p->n_init);
}

static int32_t bind_constants(void *ctx, FfxExecutable *exe, const FfxStr *names, const DLTensor *const *tensors,
                              size_t n, FfxError *error) {
  Call call;
  int32_t status = FFX_OK;
  (void)ctx;
  if (exe == NULL || (n > 0 && (names == NULL || tensors == NULL))) return invalid(error, "an argument is null");
  unbind(exe);
  if (!call_open(&call, exe->program) || !bind_all(&call, names, tensors, n)) {
    exe->is_bound = false;
    status = report(&call, error);
  } else {
    for (size_t i = 0; i < exe->program->n_buffers; i++) {
      Storage storage = exe->program->buffers[i].storage;
      if (storage != CONSTANT && storage != PERSISTENT) continue;
      exe->bound[i] = call.places[i].data;
      exe->owned[i] = call.owned[i];
      call.owned[i] = NULL;
    }
    exe->is_bound = true;
  }
  call_close(&call);
  return status;
}

// ---- running ----

// An output: DLPack's struct, sizes and strides, and the elements behind them, in one block.
typedef struct Exported {
  DLManagedTensorVersioned managed;
  int64_t sizes[MAX_RANK], strides[MAX_RANK];
  union {
    float f;
    int64_t i;
  } elements[1];
} Exported;

static void delete_output(DLManagedTensorVersioned *managed) {
  if (managed != NULL) free(managed->manager_ctx);
}

static DLManagedTensorVersioned *make_output(Call *call, const Port *port) {
  Place from, to;
  const Place *buffer = &call->places[port->buf];
  if (!place_evaluate(call, &from, &port->sizes, &port->strides, &port->offset, port->name)) return NULL;
  if (from.span > 0 && (uint64_t)from.offset + from.span > buffer->span) {
    call_fail(call, "an output reaches out of its buffer", port->name);
    return NULL;
  }
  from.dtype = buffer->dtype;
  Exported *made = calloc(1, sizeof *made + from.span * width_of(from.dtype));
  call->no_memory = made == NULL;
  if (made == NULL) return NULL;
  to = from;
  to.offset = 0;
  to.data = made->elements;
  from.data = buffer->data;
  place_copy(&from, &to);
  memcpy(made->sizes, from.sizes, sizeof made->sizes);
  memcpy(made->strides, from.strides, sizeof made->strides);
  made->managed.version.major = FFX_DLPACK_MAJOR;
  made->managed.version.minor = FFX_DLPACK_MINOR;
  made->managed.manager_ctx = made;
  made->managed.deleter = delete_output;
  made->managed.dl_tensor.data = made->elements;
  made->managed.dl_tensor.device.device_type = FFX_DL_CPU;
  made->managed.dl_tensor.ndim = (int32_t)from.rank;
  made->managed.dl_tensor.dtype = dl_type(from.dtype);
  made->managed.dl_tensor.shape = made->sizes;
  made->managed.dl_tensor.strides = made->strides;
  return &made->managed;
}

// All memory of a call, and the steps in it.
static bool run(Call *call, const FfxExecutable *exe, const DLTensor *const *inputs) {
  const Program *p = exe->program;
  if (!bind_symbols(call, inputs)) return false;
  for (size_t i = 0; i < p->n_inputs; i++)
    if (!place_tensor(call, (size_t)p->inputs[i].buf, inputs[i])) return false;
  for (size_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffers[i];
    if (b->storage != CONSTANT && b->storage != PERSISTENT) continue;
    if (!place_evaluate(call, &call->places[i], &b->sizes, &b->strides, &b->offset, b->name)) return false;
    call->places[i].offset = 0;
    call->places[i].dtype = b->dtype;
    call->places[i].data = exe->bound[i];
  }
  return place_owned(call, ARENA) && place_owned(call, OUTPUT) && place_views(call) &&
         run_kernels(call, p->steps, p->n_steps);
}

static int32_t execute(void *ctx, const FfxExecutable *exe, const DLTensor *const *inputs, size_t n_inputs,
                       DLManagedTensorVersioned **outputs, size_t n_outputs, void *stream, FfxError *error) {
  Call call;
  (void)ctx;
  (void)stream;
  if (exe == NULL) return invalid(error, "the executable is null");
  const Program *p = exe->program;
  if (n_inputs != p->n_inputs || n_outputs != p->n_outputs)
    return invalid(error, "the program takes another number of inputs, or gives another number of outputs");
  if ((n_inputs > 0 && inputs == NULL) || (n_outputs > 0 && outputs == NULL))
    return invalid(error, "the inputs or the places for outputs are null");
  if (!exe->is_bound) return invalid(error, "call bind_constants before execute");
  bool done = call_open(&call, p) && run(&call, exe, inputs);
  size_t made = 0;
  for (; done && made < n_outputs; made++) {
    outputs[made] = make_output(&call, &p->outputs[made]);
    if (outputs[made] == NULL) break;
  }
  int32_t status = FFX_OK;
  if (!done || made < n_outputs) {
    // All outputs or none.
    for (size_t i = 0; i < made; i++) {
      delete_output(outputs[i]);
      outputs[i] = NULL;
    }
    status = report(&call, error);
  }
  call_close(&call);
  return status;
}

// ---- the entry ----

const FfxPlugin *ffx_plugin_entry_v1(const FfxHost *host, FfxError *error) {
  // By name: slots that a later header adds stay null.
  static const FfxPlugin plugin = {
      .head = FFX_HEAD(FfxPlugin),
      .describe = describe,
      .enumerate_devices = enumerate_devices,
      .compile = compile,
      .executable_info = executable_info,
      .execute = execute,
      .executable_destroy = executable_destroy,
      .bind_constants = bind_constants,
      .query_support = query_support,
  };
  Text none = {"", 0};
  // A host may be older: what its table does not cover is not looked at.
  if (host != NULL && host->head.major != FFX_ABI_MAJOR) {
    fail(error, FFX_ERR_INCOMPATIBLE, none, "this plugin is for hosts of plugin ABI 1");
    return NULL;
  }
  if (host != NULL && FFX_COVERS(FfxHost, host, log) && host->log != NULL)
    host->log(host->ctx, FFX_LOG_INFO, str(NAME), str("opened"));
  return &plugin;
}
