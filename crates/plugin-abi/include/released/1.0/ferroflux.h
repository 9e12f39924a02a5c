// ferroflux.h of plugin ABI 1.0, as that minor was released. Kept so that the tests build plugins and hosts of that minor
// against this one; new plugins use the header two folders up. Not generated any more, and never changed.
//
// Rules of the boundary
// ---------------------
//
// 1. **Entry.** A library exports `FfxEntry` under the name `FFX_ENTRY_SYMBOL`. A new major has a new symbol.
// 2. **Tables** begin with `{u32 struct_size, u16 major, u16 minor}` and grow only at the end. A field is used only
//    where `struct_size` covers it whole and it is not null; sizes are never compared for equality. Structs that stand
//    in arrays are passed as arrays of pointers, so that they may grow too. The exceptions are *frozen* pairs
//    (`FfxStr`, `FfxNameValue`, `FfxIrVersion`), which never change within a major.
// 3. **Ownership.** Who allocates frees, through its own function. Strings and arrays passed to a call are borrowed for
//    that call. What `describe` returns lives as long as the process. Errors are a struct of the caller. Outputs of
//    `execute` belong to the caller, who calls the DLPack deleter exactly once, on any thread. Constants given to
//    `bind_constants` stay valid until the executable is destroyed or the next `bind_constants` on it returns.
// 4. **Status.** Every call returns `FFX_OK` or one of the `FFX_ERR_*` codes and fills the error struct (which may be
//    null) with the same code. No call unwinds or aborts. After an error no out-parameter holds anything to free.
// 5. **Threads.** All slots may be called from many threads at once, also on one executable. The one exception:
//    the host does not call `executable_destroy` while another call on that executable runs.
// 6. **Life.** A plugin is never unloaded; the `FfxHost` table outlives every plugin.

#ifndef FERROFLUX_H
#define FERROFLUX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Major version of DLPack that this crate lays out.
#define FFX_DLPACK_MAJOR 1

// Minor version that this crate writes.
#define FFX_DLPACK_MINOR 1

// Device type: host memory.
#define FFX_DL_CPU 1

// Device type: CUDA device memory.
#define FFX_DL_CUDA 2

// Device type: page-locked host memory of CUDA.
#define FFX_DL_CUDA_HOST 3

// Device type: ROCm device memory.
#define FFX_DL_ROCM 10

// Device type: an extension device of a third party's plugin.
#define FFX_DL_EXT_DEV 12

// Flag of a managed tensor: its memory must not be written.
#define FFX_DL_FLAG_READ_ONLY 1

// Flag of a managed tensor: its memory was copied for this exchange.
#define FFX_DL_FLAG_IS_COPIED 2

// Type code: signed integer.
#define FFX_DL_INT 0

// Type code: unsigned integer.
#define FFX_DL_UINT 1

// Type code: IEEE floating point.
#define FFX_DL_FLOAT 2

// Type code: bfloat16.
#define FFX_DL_BFLOAT 4

// Type code: complex number of two floats; `bits` counts both.
#define FFX_DL_COMPLEX 5

// Type code: boolean, one byte.
#define FFX_DL_BOOL 6

// Success.
#define FFX_OK 0

// The caller passed something that this call does not accept.
#define FFX_ERR_INVALID_ARGUMENT 1

// The program, dtype, mode or option is valid but this backend does not do it.
#define FFX_ERR_UNSUPPORTED 2

// Program bytes or a table of another version.
#define FFX_ERR_INCOMPATIBLE 3

// The device or its driver is not usable here.
#define FFX_ERR_UNAVAILABLE 4

// An allocation on host or device failed.
#define FFX_ERR_OUT_OF_MEMORY 5

// The plugin panicked; the call had no other effect.
#define FFX_ERR_PANIC 6

// A bug of the plugin or of a library below it.
#define FFX_ERR_INTERNAL 7

// Bytes of `FfxError.message`, the closing NUL included.
#define FFX_MESSAGE_BYTES 2048

// Bytes of `FfxError.node`, the closing NUL included.
#define FFX_NODE_BYTES 256

// Log level: an error that the user should see.
#define FFX_LOG_ERROR 1

// Log level: something suspicious that was handled.
#define FFX_LOG_WARN 2

// Log level: a notable event.
#define FFX_LOG_INFO 3

// Log level: detail for the plugin's author.
#define FFX_LOG_DEBUG 4

// Log level: everything.
#define FFX_LOG_TRACE 5

// Major version of this ABI. Tables with another major are not read beyond their head.
#define FFX_ABI_MAJOR 1

// Minor version of this ABI: counts the appended fields of all tables together.
#define FFX_ABI_MINOR 0

// Program level: a whole fx graph (as a custom Dynamo backend takes it).
#define FFX_LEVEL_FX_IR 1

// Program level: fused loop kernels and their execution plan.
#define FFX_LEVEL_KERNEL_IR 2

// Option kind: `true` or `false`.
#define FFX_OPTION_BOOL 1

// Option kind: a signed 64-bit integer in decimal.
#define FFX_OPTION_INT 2

// Option kind: a decimal floating-point number.
#define FFX_OPTION_FLOAT 3

// Option kind: any text.
#define FFX_OPTION_TEXT 4

// Option kind: one of the option's `choices`.
#define FFX_OPTION_CHOICE 5

// Name of the symbol that a plugin library exports.
#define FFX_ENTRY_SYMBOL "ffx_plugin_entry_v1"

// Extension: tensors that stay on a device.
#define FFX_DEVICE_MEMORY "ferroflux.device-memory.v1"

// DLPack's structs, where the program has them not from DLPack's own header (include that one first).
#ifndef DLPACK_MAJOR_VERSION

// Version stamp of a managed tensor.
typedef struct DLPackVersion {
  // A reader refuses another major, but may still call the deleter.
  uint32_t major;
  // Informative.
  uint32_t minor;
} DLPackVersion;

// Where memory lies.
typedef struct DLDevice {
  // One of the `FFX_DL_*` device types.
  int32_t device_type;
  // Ordinal of the device among those of its type.
  int32_t device_id;
} DLDevice;

// Element type.
typedef struct DLDataType {
  // Type code (`FFX_DL_INT` and so on).
  uint8_t code;
  // Bits of one lane.
  uint8_t bits;
  // Vector lanes; always 1 across this boundary.
  uint16_t lanes;
} DLDataType;

// A borrowed strided tensor. Sizes and strides count elements.
//
// Across this boundary the host always passes `strides`; a plugin may leave them null for a row-major output.
typedef struct DLTensor {
  // Start of the allocation; an opaque handle on devices whose memory the host cannot address.
  void *data;
  // Where `data` lies.
  struct DLDevice device;
  // Number of dimensions; 0 for a scalar.
  int32_t ndim;
  // Element type.
  struct DLDataType dtype;
  // `ndim` sizes.
  int64_t *shape;
  // `ndim` strides, or null for row-major.
  int64_t *strides;
  // Bytes from `data` to the first element.
  uint64_t byte_offset;
} DLTensor;

// A tensor with an owner: the receiver calls `deleter` exactly once.
typedef struct DLManagedTensorVersioned {
  // Version of the layout that follows.
  struct DLPackVersion version;
  // Belongs to the producer.
  void *manager_ctx;
  // Frees the tensor and this struct; null where nothing is to be freed.
  void (*deleter)(struct DLManagedTensorVersioned*);
  // `FFX_DL_FLAG_*` bits.
  uint64_t flags;
  // The tensor.
  struct DLTensor dl_tensor;
} DLManagedTensorVersioned;

#endif

// A compiled program; only its plugin knows what is inside.
typedef struct FfxExecutable FfxExecutable;

// First eight bytes of every table.
typedef struct FfxHead {
  // Bytes of the whole table as its builder knows it.
  uint32_t struct_size;
  // ABI major of the builder.
  uint16_t major;
  // ABI minor of the builder.
  uint16_t minor;
} FfxHead;

// UTF-8 text without a closing NUL. Frozen. A null `data` with `len` 0 is the empty text.
typedef struct FfxStr {
  // First byte.
  const uint8_t *data;
  // Bytes.
  size_t len;
} FfxStr;

// One program form that a plugin reads: all minors of `major` from 0 to `minor`. Frozen.
typedef struct FfxIrVersion {
  // `FFX_LEVEL_*`.
  uint32_t level;
  // Major version of the IR.
  uint16_t major;
  // Newest minor that is read; for a program the minor that it is written in.
  uint16_t minor;
} FfxIrVersion;

// An option that `compile` takes.
typedef struct FfxOptionSpec {
  // Size and version.
  struct FfxHead head;
  // `FFX_OPTION_*`.
  uint32_t kind;
  // Zero.
  uint32_t reserved;
  // Name, unique within the plugin.
  struct FfxStr name;
  // One line for the user.
  struct FfxStr help;
  // What holds where the option is not given.
  struct FfxStr default_value;
  // Choices of `FFX_OPTION_CHOICE`.
  const struct FfxStr *choices;
  // Length of `choices`.
  size_t n_choices;
} FfxOptionSpec;

// What a plugin is: constant for the life of the process.
typedef struct FfxDescription {
  // Size and version.
  struct FfxHead head;
  // Name by which a user picks the backend.
  struct FfxStr name;
  // Version of the plugin itself.
  struct FfxStr version;
  // One line for listings.
  struct FfxStr summary;
  // Program forms that are read.
  const struct FfxIrVersion *irs;
  // Length of `irs`.
  size_t n_irs;
  // Compile modes beyond `default`, which every plugin takes.
  const struct FfxStr *modes;
  // Length of `modes`.
  size_t n_modes;
  // Options that `compile` takes.
  const struct FfxOptionSpec *const *options;
  // Length of `options`.
  size_t n_options;
} FfxDescription;

// What went wrong in one call. The caller fills `head` with its own size; the callee writes only fields that this size
// covers. Texts are UTF-8, end with NUL and are cut to fit at a character.
typedef struct FfxError {
  // Size and version, written by the caller.
  struct FfxHead head;
  // One of the `FFX_*` codes.
  int32_t code;
  // Zero; keeps what follows at a multiple of eight.
  uint32_t reserved;
  // Name of the graph node, kernel or constant concerned; empty where there is none.
  uint8_t node[FFX_NODE_BYTES];
  // What happened and what to do.
  uint8_t message[FFX_MESSAGE_BYTES];
} FfxError;

// `describe(ctx, out, err)`.
typedef int32_t (*FfxDescribe)(void*, const struct FfxDescription**, struct FfxError*);

// A named text: an option given to `compile`, an attribute of a device. Frozen.
typedef struct FfxNameValue {
  // Name.
  struct FfxStr name;
  // Value as text; see the `FFX_OPTION_*` kinds for its form.
  struct FfxStr value;
} FfxNameValue;

// One device, borrowed for one call of an `FfxDeviceSink`.
typedef struct FfxDeviceInfo {
  // Size and version.
  struct FfxHead head;
  // DLPack type and ordinal.
  DLDevice device;
  // Model name for the user.
  struct FfxStr name;
  // Empty where the device is usable, else why it is not and what to do.
  struct FfxStr unavailable_because;
  // Memory in bytes; 0 where unknown.
  uint64_t memory_bytes;
  // Capabilities by name (`cores`, `vector_bits`, `shared_memory_bytes`, `templates`, …).
  const struct FfxNameValue *attributes;
  // Length of `attributes`.
  size_t n_attributes;
} FfxDeviceInfo;

// Receives one device: `(user, device)`.
typedef void (*FfxDeviceSink)(void*, const struct FfxDeviceInfo*);

// `enumerate_devices(ctx, sink, user, err)`.
typedef int32_t (*FfxEnumerateDevices)(void*, FfxDeviceSink, void*, struct FfxError*);

// A program as bytes. The bytes are borrowed for the call.
typedef struct FfxProgram {
  // Size and version.
  struct FfxHead head;
  // Form of the bytes: level and IR version.
  struct FfxIrVersion ir;
  // First byte.
  const uint8_t *bytes;
  // Number of bytes.
  size_t n_bytes;
} FfxProgram;

// What to compile and how.
typedef struct FfxCompileRequest {
  // Size and version.
  struct FfxHead head;
  // The program.
  const struct FfxProgram *program;
  // Device to compile for.
  DLDevice device;
  // Mode; empty means `default`.
  struct FfxStr mode;
  // Options by name; those not given have their defaults.
  const struct FfxNameValue *options;
  // Length of `options`.
  size_t n_options;
} FfxCompileRequest;

// `compile(ctx, request, out, err)`.
typedef int32_t (*FfxCompile)(void*, const struct FfxCompileRequest*, FfxExecutable**, struct FfxError*);

// Filled by `executable_info`; the caller owns it and writes `head`.
typedef struct FfxExecutableInfo {
  // Size and version, written by the caller.
  struct FfxHead head;
  // Tensors that `execute` takes.
  size_t n_inputs;
  // Tensors that `execute` returns.
  size_t n_outputs;
  // Constants that must be bound before the first `execute`.
  size_t n_constants;
} FfxExecutableInfo;

// `executable_info(ctx, exe, out, err)`.
typedef int32_t (*FfxExecutableInfoFn)(void*,
                                       const FfxExecutable*,
                                       struct FfxExecutableInfo*,
                                       struct FfxError*);

// `execute(ctx, exe, inputs, n_inputs, outputs, n_outputs, stream, err)`.
typedef int32_t (*FfxExecute)(void*,
                              const FfxExecutable*,
                              const DLTensor*const *,
                              size_t,
                              DLManagedTensorVersioned**,
                              size_t,
                              void*,
                              struct FfxError*);

// `executable_destroy(ctx, exe)`.
typedef void (*FfxExecutableDestroy)(void*, FfxExecutable*);

// `bind_constants(ctx, exe, names, tensors, n, err)`.
typedef int32_t (*FfxBindConstants)(void*,
                                    FfxExecutable*,
                                    const struct FfxStr*,
                                    const DLTensor*const *,
                                    size_t,
                                    struct FfxError*);

// A part of a program that a plugin does not take, borrowed for one call of an `FfxRefusalSink`.
typedef struct FfxRefusal {
  // Size and version.
  struct FfxHead head;
  // Name of the node or kernel.
  struct FfxStr node;
  // Why, and what to do.
  struct FfxStr reason;
} FfxRefusal;

// Receives one refusal: `(user, refusal)`.
typedef void (*FfxRefusalSink)(void*, const struct FfxRefusal*);

// `query_support(ctx, request, sink, user, err)`.
typedef int32_t (*FfxQuerySupport)(void*,
                                   const struct FfxCompileRequest*,
                                   FfxRefusalSink,
                                   void*,
                                   struct FfxError*);

// Filled by `memory_estimate`; the caller owns it and writes `head`. All figures are bytes on the device.
typedef struct FfxMemoryEstimate {
  // Size and version, written by the caller.
  struct FfxHead head;
  // Constants as they are kept after packing, beyond the borrowed originals.
  uint64_t constant_bytes;
  // Peak of temporaries and outputs of one `execute`.
  uint64_t peak_bytes;
  // Machine code and tables.
  uint64_t code_bytes;
} FfxMemoryEstimate;

// `memory_estimate(ctx, request, out, err)`.
typedef int32_t (*FfxMemoryEstimateFn)(void*,
                                       const struct FfxCompileRequest*,
                                       struct FfxMemoryEstimate*,
                                       struct FfxError*);

// `get_extension(ctx, name)`.
typedef const void *(*FfxGetExtension)(void*, struct FfxStr);

// The plugin's table; valid for the life of the process. Slots said to be *required* must not be null.
typedef struct FfxPlugin {
  // Size and version.
  struct FfxHead head;
  // First argument of every slot.
  void *ctx;
  // Required. Sets `*out` to a description that lives as long as the process.
  FfxDescribe describe;
  // Required. Calls the sink once per device, unusable ones included, in order of preference.
  FfxEnumerateDevices enumerate_devices;
  // Required. Sets `*out` to an executable of the caller.
  FfxCompile compile;
  // Required. Numbers of inputs, outputs and constants.
  FfxExecutableInfoFn executable_info;
  // Required. Runs the program on borrowed inputs. Fills all `n_outputs` pointers with tensors that the plugin
  // allocated and the caller owns, or none of them where it fails. `stream` is the device's native stream handle; null
  // is the default stream, on which the call returns only after the outputs are readable.
  FfxExecute execute;
  // Required. Frees an executable of `compile`.
  FfxExecutableDestroy executable_destroy;
  // Optional: null means that programs with constants are not taken. Names and pointers to tensors are borrowed for
  // the call, the memory that the tensors point to until the executable is destroyed or bound again. Replaces every
  // earlier binding; after an error nothing is bound.
  FfxBindConstants bind_constants;
  // Optional: null means that `compile` is the only judge. Calls the sink once per node refused.
  FfxQuerySupport query_support;
  // Optional: null means unknown.
  FfxMemoryEstimateFn memory_estimate;
  // Optional: a table of an extension by name, or null; valid for the life of the process.
  FfxGetExtension get_extension;
} FfxPlugin;

// The host's table; valid for the whole life of the process.
typedef struct FfxHost {
  // Size and version.
  struct FfxHead head;
  // First argument of every slot.
  void *ctx;
  // Name and version of the host program's library, for messages.
  struct FfxStr version;
  // `log(ctx, level, target, message)`: one event. `target` names the part of the plugin. Any thread. Optional.
  void (*log)(void*, uint32_t, struct FfxStr, struct FfxStr);
} FfxHost;

// Type of the symbol `FFX_ENTRY_SYMBOL`: hands out the plugin's table, or null with the error filled.
// May be called more than once, also from several threads; every call yields the same plugin.
typedef const struct FfxPlugin *(*FfxEntry)(const struct FfxHost*, struct FfxError*);

// `to_device(ctx, host, device, out, err)`: sets `*out` to a tensor of the caller on the device, with the elements of a
// host tensor. The host memory may be reused when the call returns.
typedef int32_t (*FfxToDevice)(void*, const DLTensor*, DLDevice, DLManagedTensorVersioned**, struct FfxError*);

// `to_host(ctx, tensor, out, err)`: sets `*out` to a host tensor of the caller with the elements of a tensor on one of the
// plugin's devices, after all work that was started on it.
typedef int32_t (*FfxToHost)(void*, const DLTensor*, DLManagedTensorVersioned**, struct FfxError*);

// The table of `FFX_DEVICE_MEMORY`; valid for the life of the process.
typedef struct FfxDeviceMemory {
  // Size and version.
  struct FfxHead head;
  // Required.
  FfxToDevice to_device;
  // Required.
  FfxToHost to_host;
} FfxDeviceMemory;

// First member of a table of type `T`, as an initializer.
#define FFX_HEAD(T) { (uint32_t)sizeof(T), FFX_ABI_MAJOR, FFX_ABI_MINOR }

// Whether a table that the other side built covers `field` (of type `T`) whole: only then may it be looked at.
#define FFX_COVERS(T, table, field) \
    ((table)->head.struct_size >= offsetof(T, field) + sizeof(((const T *)0)->field))

#if defined(_WIN32)
#define FFX_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define FFX_EXPORT __attribute__((visibility("default")))
#else
#define FFX_EXPORT
#endif

// What a plugin library defines; of type `FfxEntry`.
FFX_EXPORT const FfxPlugin *ffx_plugin_entry_v1(const FfxHost *host, FfxError *error);

#ifdef __cplusplus
}
#endif

#endif // FERROFLUX_H
