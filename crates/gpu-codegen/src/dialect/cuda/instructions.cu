// One PTX instruction each, with PTX's name: matrix fragments of a warp, asynchronous copies, barriers of a part of a
// block, streaming accesses, clusters. The layout of fragments is described in `common/matrix.cu`.

// A shared-memory address in the form of the instructions.
DEV u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Declares `u8 *name`, the block's dynamic shared memory, aligned to 128 bytes.
#define DYNAMIC_SHARED(name) \
    extern __shared__ __align__(128) u8 ffx_dynamic_shared[]; \
    u8 *name = ffx_dynamic_shared

// ---- products (warp)
DEV void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEV void mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEV void mma_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two floats rounded to 16 bits each, the first in the low half.
DEV u32 pack_bf16(float low, float high) { u32 y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y; }

DEV u32 pack_f16(float low, float high) { u32 y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y; }

// The low halves of two words, and the high ones, the first word's in the low half.
DEV u32 low_halves(u32 a, u32 b) { u32 y; asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(y) : "r"(a), "r"(b)); return y; }

DEV u32 high_halves(u32 a, u32 b) { u32 y; asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(y) : "r"(a), "r"(b)); return y; }

// Makes the compiler keep a number that it could compute again, slowly, wherever it is used.
#define KEPT(x) asm volatile("" : "+r"(x))

// 2 to the power x, with subnormal results flushed to 0.
DEV float exp2_flushed(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// 1 / x, off by one unit in the last place at most.
DEV float reciprocal(float x) { float y; asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// The same, 0 where it is below the smallest normal number.
DEV float reciprocal_flushed(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// A float rounded to the nearest tf32 (ties away from zero), as bits.
DEV u32 to_tf32(float x) { u32 y; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y; }

// ---- fragments from shared memory (warp)
#define MAKE_LDMATRIX(NAME, KIND, N, REGISTERS, ROW, ...) \
    DEV void NAME(u32 (&r)[N], const void *row) { \
        asm volatile("ldmatrix.sync.aligned.m8n8." KIND ".shared.b16 {" REGISTERS "}, [" ROW "];" \
            : __VA_ARGS__ : "r"(shared_address(row)) : "memory"); \
    }
#define MAKE_LDMATRIX_2(NAME, KIND) MAKE_LDMATRIX(NAME, KIND, 2, "%0,%1", "%2", "=r"(r[0]), "=r"(r[1]))
#define MAKE_LDMATRIX_4(NAME, KIND) \
    MAKE_LDMATRIX(NAME, KIND, 4, "%0,%1,%2,%3", "%4", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]))
MAKE_LDMATRIX(ldmatrix_x1, "x1", 1, "%0", "%1", "=r"(r[0])) MAKE_LDMATRIX(ldmatrix_x1_trans, "x1.trans", 1, "%0", "%1", "=r"(r[0]))
MAKE_LDMATRIX_2(ldmatrix_x2, "x2") MAKE_LDMATRIX_2(ldmatrix_x2_trans, "x2.trans")
MAKE_LDMATRIX_4(ldmatrix_x4, "x4") MAKE_LDMATRIX_4(ldmatrix_x4_trans, "x4.trans")

// ---- asynchronous copies from global to shared memory; each thread waits for its own
// 16 bytes, both addresses aligned to 16; `bytes` (0 to 16) are read, the rest is filled with zeros. Bypasses the
// first-level cache.
DEV void cp_async_16(void *shared, const void *global, int bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

// 8 and 4 bytes, aligned to their size.
DEV void cp_async_8(void *shared, const void *global, int bytes = 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
        :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

DEV void cp_async_4(void *shared, const void *global, int bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
        :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

// Commits the thread's copies since the last call as a group.
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of the thread's latest groups are in flight; other threads see the copies after a barrier.
template <int PENDING> DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

// ---- barriers of a part of a block: numbers 1 to 15, `threads` (a multiple of 32) participate
DEV void barrier_sync(int number, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory"); }

// Arrives at such a barrier without waiting.
DEV void barrier_arrive(int number, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(threads) : "memory"); }

// ---- 16 bytes that are used once and evicted first
DEV Quad load_streaming(const void *p) {
    Quad x;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
    return x;
}

DEV void store_streaming(void *p, Quad x) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// ---- the order of launches
// Where launches may overlap, the blocks of the next launch are scheduled once all blocks of this one have called this and
// there is room for them; otherwise this does nothing.
__device__ __forceinline__ void launch_next() {
#ifdef EARLY_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until earlier launches have ended: everything that they write is visible, and everything that they read has been
// read. Every thread calls this before it uses anything but its arguments and what no launch of a call writes (constants).
// Since a launch ends after it has waited, waiting for the previous one is waiting for all.
__device__ __forceinline__ void launch_wait() {
#ifdef EARLY_LAUNCH
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- clusters: blocks along y, each with its partial sums in its own shared memory; each finishes an equal share of the
// rows
DEV void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Waits until all partial sums are available; returns false where other blocks finish the tile.
template <int PARTS, int FLOATS> DEV bool cluster_share(const float *) { cluster_sync(); return true; }

// A block's shared memory must live until all have read it.
DEV void cluster_end() { cluster_sync(); }

DEV int cluster_row(int high) { return (int)blockIdx.y * high; }

DEV int cluster_rows(int high, int) { return high; }

// The vector (of one or four elements) at the same place in the shared memory of block `rank` of the cluster.
template <int W, int PARTS, int FLOATS> DEV Vec<float, W> cluster_load(const float *, const float *p, int rank) {
    Vec<float, W> x = {};
    u32 at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
    if constexpr (W == 1) asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x.v[0]) : "r"(at) : "memory");
    else
        asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
            : "=f"(x.v[0]), "=f"(x.v[1]), "=f"(x.v[2]), "=f"(x.v[3]) : "r"(at) : "memory");
    return x;
}

// Adds to adjacent numbers of global memory, each atomically; the first one's address is a multiple of the vector's bytes.
#if __CUDA_ARCH__ >= 900
DEV void add_vector(float *p, const Vec<float, 4> &x) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(__cvta_generic_to_global(p)), "f"(x.v[0]), "f"(x.v[1]), "f"(x.v[2]), "f"(x.v[3]) : "memory");
}
DEV void add_vector(float *p, const Vec<float, 2> &x) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" :: "l"(__cvta_generic_to_global(p)), "f"(x.v[0]), "f"(x.v[1]) : "memory");
}
#define ADD_HALVES(T, PAIR) \
    DEV void add_vector(T *p, const Vec<T, 8> &x) { \
        const u32 *w = (const u32 *)x.v; \
        asm volatile("red.global.add.noftz.v4." PAIR " [%0], {%1, %2, %3, %4};" :: "l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory"); \
    } \
    DEV void add_vector(T *p, const Vec<T, 4> &x) { \
        const u32 *w = (const u32 *)x.v; \
        asm volatile("red.global.add.noftz.v2." PAIR " [%0], {%1, %2};" :: "l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]) : "memory"); \
    } \
    DEV void add_vector(T *p, const Vec<T, 2> &x) { \
        asm volatile("red.global.add.noftz." PAIR " [%0], %1;" :: "l"(__cvta_generic_to_global(p)), "r"(*(const u32 *)x.v) : "memory"); \
    }
ADD_HALVES(bf16, "bf16x2")
ADD_HALVES(f16, "f16x2")
#else
template <class T, int N> DEV void add_vector(T *p, const Vec<T, N> &x) {
    #pragma unroll
    for (int u = 0; u < N; ++u) atomic<SUM, T>(p + u, x.v[u]);
}
#endif

// One number of 16 bits; the instruction rounds as a sum of the widened numbers is rounded.
#if __CUDA_ARCH__ >= 900
template <> __device__ __forceinline__ void atomic<SUM, bf16>(bf16 *p, bf16 x) { asm volatile("red.add.noftz.bf16 [%0], %1;" :: "l"(p), "h"(bits_as<u16>(x)) : "memory"); }
template <> __device__ __forceinline__ void atomic<SUM, f16>(f16 *p, f16 x) { asm volatile("red.add.noftz.f16 [%0], %1;" :: "l"(p), "h"(bits_as<u16>(x)) : "memory"); }
#endif
