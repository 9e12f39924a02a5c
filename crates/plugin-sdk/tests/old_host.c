// A host of plugin ABI 1.0, built against that minor's header: loads the plugin library given, and runs its program
// `scale 3 bias`. What the plugin's table has beyond this host's is not seen. Prints what it did; any surprise ends it.
#include <ferroflux.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char PROGRAM[] = "scale 3 bias";
static int logged, devices;

static void fail(const char *what, const FfxError *error) {
  fprintf(stderr, "%s: %d %s\n", what, error->code, (const char *)error->message);
  exit(1);
}

static void take_log(void *ctx, uint32_t level, FfxStr target, FfxStr message) {
  (void)ctx;
  if (level == FFX_LOG_INFO && target.len > 0 && message.len > 0) logged++;
}

static void take_device(void *user, const FfxDeviceInfo *device) {
  DLDevice *usable = user;
  devices++;
  if (device->unavailable_because.len == 0) *usable = device->device;
}

static DLTensor tensor(float *data, int32_t ndim, int64_t *sizes, int64_t *strides) {
  DLTensor t = {data, {FFX_DL_CPU, 0}, ndim, {FFX_DL_FLOAT, 32, 1}, sizes, strides, 0};
  return t;
}

static void run(const FfxPlugin *plugin, FfxExecutable *exe, FfxError *error) {
  static float values[2] = {1, 2}, bias[1] = {0.5f};
  int64_t sizes[1] = {2}, strides[1] = {1};
  DLTensor x = tensor(values, 1, sizes, strides), b = tensor(bias, 0, sizes, strides);
  const DLTensor *inputs[1] = {&x}, *constants[1] = {&b};
  FfxStr name = {(const uint8_t *)"bias", 4};
  DLManagedTensorVersioned *output = NULL;
  FfxExecutableInfo info = {FFX_HEAD(FfxExecutableInfo), 0, 0, 0};
  if (plugin->executable_info(plugin->ctx, exe, &info, error) != FFX_OK) fail("executable_info", error);
  if (info.n_inputs != 1 || info.n_outputs != 1 || info.n_constants != 1) fail("counts", error);
  if (plugin->bind_constants(plugin->ctx, exe, &name, constants, 1, error) != FFX_OK) fail("bind", error);
  if (plugin->execute(plugin->ctx, exe, inputs, 1, &output, 1, NULL, error) != FFX_OK) fail("execute", error);
  const float *out = (const float *)((const char *)output->dl_tensor.data + output->dl_tensor.byte_offset);
  printf("outputs %g %g\n", out[0], out[1]);
  output->deleter(output);
  if (plugin->execute(plugin->ctx, exe, inputs, 0, &output, 1, NULL, error) != FFX_ERR_INVALID_ARGUMENT)
    fail("a call without inputs", error);
  printf("error %d %.20s\n", error->code, (const char *)error->message);
}

int main(int argc, char **argv) {
  FfxHost host = {.head = FFX_HEAD(FfxHost), .version = {(const uint8_t *)"old", 3}, .log = take_log};
  FfxError error = {FFX_HEAD(FfxError), 0, 0, {0}, {0}};
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (library == NULL) return 2;
  FfxEntry entry;
  // ISO C has no cast from a pointer to data to one to a function.
  void *symbol = dlsym(library, FFX_ENTRY_SYMBOL);
  memcpy(&entry, &symbol, sizeof entry);
  const FfxPlugin *plugin = entry(&host, &error);
  if (plugin == NULL) fail("entry", &error);
  printf("table %d.%d larger %d\n", plugin->head.major, plugin->head.minor > FFX_ABI_MINOR,
         plugin->head.struct_size > sizeof *plugin);
  const FfxDescription *description = NULL;
  if (plugin->describe(plugin->ctx, &description, &error) != FFX_OK) fail("describe", &error);
  DLDevice usable = {0, 0};
  if (plugin->enumerate_devices(plugin->ctx, take_device, &usable, &error) != FFX_OK) fail("devices", &error);
  printf("name %.*s devices %d logged %d\n", (int)description->name.len, (const char *)description->name.data, devices,
         logged);
  FfxProgram program = {FFX_HEAD(FfxProgram), {FFX_LEVEL_FX_IR, 1, 0}, (const uint8_t *)PROGRAM, sizeof PROGRAM - 1};
  FfxCompileRequest request = {FFX_HEAD(FfxCompileRequest), &program, usable, {NULL, 0}, NULL, 0};
  FfxExecutable *exe = NULL;
  if (plugin->compile(plugin->ctx, &request, &exe, &error) != FFX_OK) fail("compile", &error);
  run(plugin, exe, &error);
  plugin->executable_destroy(plugin->ctx, exe);
  return 0;
}
