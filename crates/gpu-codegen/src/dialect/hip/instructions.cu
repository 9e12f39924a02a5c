// What needs no instruction of AMD's own, or has none: shared memory, memory past the caches, the order of launches.
// Kernels that name anything else are not made for targets without its feature.

// Declares `u8 *name`, the block's dynamic shared memory.
#define DYNAMIC_SHARED(name) \
    HIP_DYNAMIC_SHARED(Quad, ffx_dynamic_memory) \
    u8 *name = (u8 *)ffx_dynamic_memory

// ---- 16 bytes that are used once: first to leave the caches
DEV Quad load_streaming(const void *p) {
    const u32 *from = (const u32 *)p;
    return {__builtin_nontemporal_load(from), __builtin_nontemporal_load(from + 1), __builtin_nontemporal_load(from + 2),
        __builtin_nontemporal_load(from + 3)};
}

DEV void store_streaming(void *p, Quad x) {
    u32 *to = (u32 *)p;
    __builtin_nontemporal_store(x.x, to);
    __builtin_nontemporal_store(x.y, to + 1);
    __builtin_nontemporal_store(x.z, to + 2);
    __builtin_nontemporal_store(x.w, to + 3);
}

// 2 to the power x, numbers below the smallest normal one as 0.
DEV float exp2_flushed(float x) { return __builtin_amdgcn_exp2f(x); }

// 1 / x. The instruction for it flushes subnormal results, which reciprocals of large sums of exponentials are.
DEV float reciprocal(float x) { return 1.0f / x; }

// The same by that instruction.
DEV float reciprocal_flushed(float x) { return __builtin_amdgcn_rcpf(x); }

// ---- the order of launches: one begins when the one before has ended
__device__ __forceinline__ void launch_next() {}

__device__ __forceinline__ void launch_wait() {}

// There are no clusters: this is declared for helpers that mention it.
template <int W, int PARTS, int FLOATS> DEV Vec<float, W> cluster_load(const float *, const float *, int);

// Adds to adjacent numbers, each atomically.
template <class T, int N> DEV void add_vector(T *p, const Vec<T, N> &x) {
    #pragma unroll
    for (int u = 0; u < N; ++u) atomic<SUM, T>(p + u, x.v[u]);
}
