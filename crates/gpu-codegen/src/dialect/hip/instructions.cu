// Functions that need no instruction of AMD's, or for which there is none: copies to shared memory, streaming accesses,
// the order of launches. Kernels that use anything else are not generated for targets without its feature.

// Declares `u8 *name`, the block's dynamic shared memory.
#define DYNAMIC_SHARED(name) \
    HIP_DYNAMIC_SHARED(Quad, ffx_dynamic_memory) \
    u8 *name = (u8 *)ffx_dynamic_memory

// ---- copies from global to shared memory: by the thread itself, so that nothing is in flight afterwards
// `bytes` (0 to N) are read, the rest is filled with zeros.
template <int N> DEV void copied(void *shared, const void *global, int bytes) {
    #pragma unroll
    for (int i = 0; i < N / 4; ++i) ((u32 *)shared)[i] = 4 * i < bytes ? ((const u32 *)global)[i] : 0u;
}

DEV void cp_async_16(void *shared, const void *global, int bytes = 16) { copied<16>(shared, global, bytes); }

DEV void cp_async_8(void *shared, const void *global, int bytes = 8) { copied<8>(shared, global, bytes); }

DEV void cp_async_4(void *shared, const void *global, int bytes = 4) { copied<4>(shared, global, bytes); }

DEV void cp_async_commit() {}

template <int PENDING> DEV void cp_async_wait() {}

// ---- 16 bytes that are used once and evicted first
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

// ---- the order of launches: one begins when the previous one has ended
__device__ __forceinline__ void launch_next() {}

__device__ __forceinline__ void launch_wait() {}

// There are no clusters: this is declared for helpers that mention it.
template <int W, int PARTS, int FLOATS> DEV Vec<float, W> cluster_load(const float *, const float *, int);
