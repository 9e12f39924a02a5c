// Feeds the plugin damaged programs, as the host would: every cut of each file given, and every byte changed in several
// ways. Nothing may crash; run with sanitizers, which find what only looks right. Prints how many programs still compiled,
// all of which are run on inputs of the sizes that fit.
#include <ferroflux.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/program.h"

static const FfxPlugin *plugin;
static long compiled, refused;

static void count(void *user, const FfxRefusal *refusal) {
  (void)user;
  if (refusal->reason.len > 0) refused++;
}

// Inputs of size 2 in every dimension, and constants of the sizes that they have.
static void run(const FfxExecutable *exe, const Program *p) {
  static double memory[1 << 16];
  static int64_t sizes[64][MAX_RANK], strides[64][MAX_RANK];
  static DLTensor tensors[64];
  static const DLTensor *pointers[64];
  static DLManagedTensorVersioned *outputs[64];
  FfxError error = {FFX_HEAD(FfxError), 0, 0, {0}, {0}};
  if (p->n_inputs > 64 || p->n_outputs > 64) return;
  for (size_t i = 0; i < p->n_inputs; i++) {
    const Buffer *b = &p->buffers[p->inputs[i].buf];
    int64_t stride = 1;
    for (size_t d = b->sizes.n; d-- > 0;) {
      Names names = {NULL, NULL, NULL, 0, 0, 0};
      if (!expr_eval(&b->sizes.dims[d], &names, &sizes[i][d])) sizes[i][d] = 2;
      strides[i][d] = stride;
      stride *= sizes[i][d];
      if (stride < 0 || stride > (1 << 16)) return;
    }
    DLDataType dtype = {FFX_DL_FLOAT, 32, 1}, whole = {FFX_DL_INT, 64, 1}, truth = {FFX_DL_BOOL, 8, 1};
    if (b->dtype != F32) dtype = b->dtype == I64 ? whole : truth;
    DLTensor t = {memory, {FFX_DL_CPU, 0}, (int32_t)b->sizes.n, dtype, sizes[i], strides[i], 0};
    tensors[i] = t;
    pointers[i] = &tensors[i];
  }
  if (plugin->execute(plugin->ctx, exe, pointers, p->n_inputs, outputs, p->n_outputs, NULL, &error) != FFX_OK) return;
  for (size_t i = 0; i < p->n_outputs; i++) outputs[i]->deleter(outputs[i]);
}

static void try_bytes(const uint8_t *bytes, size_t n) {
  FfxProgram program = {FFX_HEAD(FfxProgram), {FFX_LEVEL_KERNEL_IR, READS_MAJOR, READS_MINOR}, bytes, n};
  FfxCompileRequest request = {FFX_HEAD(FfxCompileRequest), &program, {FFX_DL_CPU, 0}, {NULL, 0}, NULL, 0};
  FfxError error = {FFX_HEAD(FfxError), 0, 0, {0}, {0}};
  FfxExecutable *exe = NULL;
  const char *problem;
  plugin->query_support(plugin->ctx, &request, count, NULL, &error);
  if (plugin->compile(plugin->ctx, &request, &exe, &error) != FFX_OK) return;
  compiled++;
  Program *p = program_read(bytes, n, &problem);
  if (p != NULL) run(exe, p);
  program_free(p);
  plugin->executable_destroy(plugin->ctx, exe);
}

static void damage(const char *path) {
  static uint8_t whole[1 << 16];
  FILE *file = fopen(path, "rb");
  if (file == NULL) exit(2);
  size_t n = fread(whole, 1, sizeof whole, file);
  fclose(file);
  // A copy of its own size each time, so that a read beyond the end is seen.
  for (size_t end = 0; end <= n; end++) {
    uint8_t *cut = malloc(end > 0 ? end : 1);
    if (cut == NULL) exit(2);
    memcpy(cut, whole, end);
    try_bytes(cut, end);
    free(cut);
  }
  for (size_t at = 8; at < n; at++) {
    static const uint8_t others[] = {0x00, 0x01, 0x7f, 0x90, 0xc0, 0xcf, 0xdb, 0xdd, 0xdf, 0xff};
    for (size_t o = 0; o < sizeof others; o++) {
      uint8_t was = whole[at];
      whole[at] = others[o];
      try_bytes(whole, n);
      whole[at] = was;
    }
  }
}

int main(int argc, char **argv) {
  plugin = ffx_plugin_entry_v1(NULL, NULL);
  for (int i = 1; i < argc; i++) damage(argv[i]);
  printf("%ld compiled, %ld refusals\n", compiled, refused);
  return 0;
}
