// AMD's definitions of the functions that the helpers and kernels of all vendors use: HIP's built-in functions, without a
// header. A wave has 64 lanes, or 32 where the target says so. Not here: matrix cores.

// ---- bits
DEV float as_float(u32 x) { return __builtin_bit_cast(float, x); }
DEV double as_double(i64 x) { return __builtin_bit_cast(double, x); }

DEV u32 as_bits(float x) { return __builtin_bit_cast(u32, x); }
DEV i64 as_bits(double x) { return __builtin_bit_cast(i64, x); }

// The nearest float of no larger magnitude: one step back where the cast rounded away from zero. The step back from
// infinity gives the largest float.
DEV float toward_zero(double x) {
    float y = (float)x;
    if (fabs((double)y) > fabs(x)) y = as_float(as_bits(y) - 1u);
    return y;
}

// The high half of a product.
DEV u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }

DEV float quick_quotient(float a, float b) { return a / b; }

// ---- waves: all lanes that have not exited call these together
DEV u32 wave_read(u32 x, int lane) { return __shfl(x, lane); }

DEV u32 wave_down(u32 x, int n) { return __shfl_down(x, (u32)n); }

DEV u32 wave_up(u32 x, int n) { return __shfl_up(x, (u32)n); }

DEV u32 wave_xor(u32 x, int mask) { return __shfl_xor(x, mask); }

// The lanes with a true condition, one bit each.
DEV u64 wave_ballot(bool yes) { return __ballot(yes); }
// The number of the lowest bit that is set, of at least one.
DEV int lowest_bit(u64 x) { return __builtin_ctzll(x); }
// How many bits are set.
DEV int count_bits(u64 x) { return __builtin_popcountll(x); }

// Lanes run in lockstep; only the order of their memory accesses must be preserved.
#define wave_sync() (__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"), __builtin_amdgcn_wave_barrier())

// ---- blocks and memory
// 16 bytes that are accessed at once.
struct alignas(16) Quad { u32 x, y, z, w; };

#define block_sync() __syncthreads()

DEV void device_fence() { __threadfence(); }

DEV void system_fence() { __threadfence_system(); }

// Reads what other blocks wrote during this launch, bypassing the first-level cache.
template <class T> DEV T past_first_cache(const T *p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
