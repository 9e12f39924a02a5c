// NVIDIA's definitions of the functions that the helpers and kernels of all vendors use: compiler intrinsics, one each.
// Not here: PTX (`numbers.cu`, `instructions.cu`, `wgmma.cu`).

// ---- bits
DEV float as_float(u32 x) { return __uint_as_float(x); }
DEV double as_double(i64 x) { return __longlong_as_double(x); }

DEV u32 as_bits(float x) { return __float_as_uint(x); }
DEV i64 as_bits(double x) { return __double_as_longlong(x); }

// The nearest float of no larger magnitude.
DEV float toward_zero(double x) { return __double2float_rz(x); }

// The high half of a product.
DEV u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }

// A quotient to two units in the last place.
DEV float quick_quotient(float a, float b) { return __fdividef(a, b); }

// ---- waves: all lanes that have not exited call these together
DEV u32 wave_read(u32 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

DEV u32 wave_down(u32 x, int n) { return __shfl_down_sync(0xffffffffu, x, n); }

DEV u32 wave_up(u32 x, int n) { return __shfl_up_sync(0xffffffffu, x, n); }

DEV u32 wave_xor(u32 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

// The lanes with a true condition, one bit each.
DEV u64 wave_ballot(bool yes) { return __ballot_sync(0xffffffffu, yes); }
// The number of the lowest bit that is set, of at least one.
DEV int lowest_bit(u64 x) { return __ffsll((long long)x) - 1; }
// How many bits are set.
DEV int count_bits(u64 x) { return __popcll(x); }

#define wave_sync() __syncwarp()

// ---- blocks and memory
// 16 bytes that are accessed at once.
typedef uint4 Quad;

#define block_sync() __syncthreads()

DEV void device_fence() { __threadfence(); }

DEV void system_fence() { __threadfence_system(); }

// Reads what other blocks wrote during this launch, bypassing the first-level cache.
template <class T> DEV T past_first_cache(const T *p) { return __ldcg(p); }

// The shape of the clusters of a launch; it precedes the bounds of a kernel.
#define CLUSTER(x, y, z) __cluster_dims__(x, y, z)
