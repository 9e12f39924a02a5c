// What tensor-core kernels stand on: matrix fragments of a warp, copies that run beside the computation, barriers of a
// part of a block, vector loads past the caches. Each is one PTX instruction, named as PTX names it; included after the
// prelude. Where FFX_EMULATED is defined (gpu-emulator), the same names are ordinary C++ over the emulator's collectives.
//
// All functions marked *warp* are called by all 32 lanes together, without any of them having left.
// Lane numbers: lane = threadIdx.x & 31, group = lane / 4 (0..7), pair = lane % 4 (0..3).
//
// mma.m16n8k16, f16 and bf16, D[16,8] += A[16,16] B[16,8]; two 16-bit elements a register, the lower index in the low half:
//   a[0] = A[group    ][2 pair + {0,1}]        b[0] = B[2 pair + {0,1}    ][group]
//   a[1] = A[group + 8][2 pair + {0,1}]        b[1] = B[2 pair + {0,1} + 8][group]
//   a[2] = A[group    ][2 pair + {0,1} + 8]    d[0], d[1] = D[group    ][2 pair + {0,1}]
//   a[3] = A[group + 8][2 pair + {0,1} + 8]    d[2], d[3] = D[group + 8][2 pair + {0,1}]
// mma.m16n8k8, tf32, D[16,8] += A[16,8] B[8,8]; a register holds the bits of a float, the low 13 of which are not looked at:
//   a[0] = A[group][pair]      a[1] = A[group + 8][pair]        b[0] = B[pair    ][group]
//   a[2] = A[group][pair + 4]  a[3] = A[group + 8][pair + 4]    b[1] = B[pair + 4][group]       d as above
// ldmatrix.x{1,2,4}: matrices of 8 rows of 16 bytes. Lane 8 i + r gives the address of row r of matrix i (16-byte aligned,
// shared memory; lanes beyond the matrices give any valid address); register i is
//   plain: matrix i [group][2 pair + {0,1}]     trans: matrix i [2 pair + {0,1}][group]
// so that `ldmatrix_x4` of the four 8 x 8 quarters (rows 0-7, rows 8-15, then the same of columns 8-15) of a row-major A is
// `a`, and `ldmatrix_x2_trans` of the two 8 x 8 halves (k 0-7, k 8-15) of a row-major B is `b`.

#ifndef FFX_EMULATED

// An address of shared memory as the instructions take it.
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
// 2 to the power x, numbers below the smallest normal one as 0.
DEV float exp2_flushed(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// A float rounded to the nearest tf32 (ties away from zero), as bits.
DEV u32 to_tf32(float x) { u32 y; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y; }

// ---- fragments from shared memory (warp)
#define FFX_LDMATRIX(NAME, KIND) \
    DEV void ldmatrix_x1##NAME(u32 (&r)[1], const void *row) { \
        asm volatile("ldmatrix.sync.aligned.m8n8.x1" KIND ".shared.b16 {%0}, [%1];" \
            : "=r"(r[0]) : "r"(shared_address(row)) : "memory"); \
    } \
    DEV void ldmatrix_x2##NAME(u32 (&r)[2], const void *row) { \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" KIND ".shared.b16 {%0,%1}, [%2];" \
            : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory"); \
    } \
    DEV void ldmatrix_x4##NAME(u32 (&r)[4], const void *row) { \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" KIND ".shared.b16 {%0,%1,%2,%3}, [%4];" \
            : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory"); \
    }
FFX_LDMATRIX(, "") FFX_LDMATRIX(_trans, ".trans")

// ---- copies from global to shared memory that run beside the computation; each thread waits for its own
// 16 bytes, both addresses aligned to 16; `bytes` (0 to 16) are read, the rest is zeros. Past the first-level cache.
DEV void cp_async_16(void *shared, const void *global, int bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
// 8 and 4 bytes, aligned to as many.
DEV void cp_async_8(void *shared, const void *global, int bytes = 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
        :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
DEV void cp_async_4(void *shared, const void *global, int bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
        :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
// The thread's copies so far, since the last call, are a group.
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of the thread's latest groups are under way; others see the copies after a barrier.
template <int PENDING> DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

// ---- additions to global memory without a result
DEV void red_add(float *p, float x) { asm volatile("red.global.add.f32 [%0], %1;" :: "l"(p), "f"(x) : "memory"); }
// Two neighbours at once (4-byte aligned), the lower one in the low half.
DEV void red_add_f16x2(void *p, u32 x) { asm volatile("red.global.add.noftz.f16x2 [%0], %1;" :: "l"(p), "r"(x) : "memory"); }
DEV void red_add_bf16x2(void *p, u32 x) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" :: "l"(p), "r"(x) : "memory");
#else
    atomic<SUM, bf16>((bf16 *)p, bits_as<bf16>((u16)x));
    atomic<SUM, bf16>((bf16 *)p + 1, bits_as<bf16>((u16)(x >> 16)));
#endif
}

// ---- barriers of a part of a block: numbers 1 to 15, `threads` (a multiple of 32) of those that come
DEV void barrier_sync(int number, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory"); }
// Counts as there without waiting.
DEV void barrier_arrive(int number, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(threads) : "memory"); }

// ---- chains of launches: nothing before sm_90, nothing where the launch does not ask for it
DEV void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEV void grid_dependency_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- 16 bytes that are used once: first to leave the caches
DEV uint4 load_streaming(const void *p) {
    uint4 x;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
    return x;
}
DEV void store_streaming(void *p, uint4 x) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
// What other blocks wrote during this launch: past the first-level cache.
DEV u32 load_volatile(const u32 *p) { return *(volatile const u32 *)p; }

#else // FFX_EMULATED

DEV u32 shared_address(const void *p) { return (u32)(u64)p; }
#define DYNAMIC_SHARED(name) u8 *name = (u8 *)ffx_dynamic_shared()

struct FfxMma { float *d; const u32 *a, *b; };
// The value of element `half` of a register of 16-bit floats.
template <class T> DEV float ffx_half(u32 reg, int half) { return widen(bits_as<T>((u16)(reg >> (16 * half)))); }
// Gathers the fragments, multiplies exactly, adds in double precision and rounds once.
template <class T> static void ffx_mma_16(void **lanes, u32) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const FfxMma &m = *(const FfxMma *)lanes[lane];
        int group = lane / 4, pair = lane % 4;
        for (int r = 0; r < 4; ++r)
            for (int h = 0; h < 2; ++h) a[group + 8 * (r & 1)][2 * pair + h + 8 * (r >> 1)] = ffx_half<T>(m.a[r], h);
        for (int r = 0; r < 2; ++r)
            for (int h = 0; h < 2; ++h) b[2 * pair + h + 8 * r][group] = ffx_half<T>(m.b[r], h);
    }
    for (int lane = 0; lane < 32; ++lane) {
        float *d = ((const FfxMma *)lanes[lane])->d;
        for (int r = 0; r < 4; ++r) {
            double sum = d[r];
            for (int k = 0; k < 16; ++k) sum += (double)a[lane / 4 + 8 * (r >> 1)][k] * b[k][2 * (lane % 4) + (r & 1)];
            d[r] = (float)sum;
        }
    }
}
DEV float ffx_tf32(u32 bits) { return __uint_as_float(bits & ~0x1fffu); }
static void ffx_mma_8(void **lanes, u32) {
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
        const FfxMma &m = *(const FfxMma *)lanes[lane];
        int group = lane / 4, pair = lane % 4;
        for (int r = 0; r < 4; ++r) a[group + 8 * (r & 1)][pair + 4 * (r >> 1)] = ffx_tf32(m.a[r]);
        for (int r = 0; r < 2; ++r) b[pair + 4 * r][group] = ffx_tf32(m.b[r]);
    }
    for (int lane = 0; lane < 32; ++lane) {
        float *d = ((const FfxMma *)lanes[lane])->d;
        for (int r = 0; r < 4; ++r) {
            double sum = d[r];
            for (int k = 0; k < 8; ++k) sum += (double)a[lane / 4 + 8 * (r >> 1)][k] * b[k][2 * (lane % 4) + (r & 1)];
            d[r] = (float)sum;
        }
    }
}
DEV void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    FfxMma m = {d, a, b};
    ffx_collective(0xffffffffu, &m, ffx_mma_16<bf16>);
}
DEV void mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    FfxMma m = {d, a, b};
    ffx_collective(0xffffffffu, &m, ffx_mma_16<f16>);
}
DEV void mma_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    FfxMma m = {d, a, b};
    ffx_collective(0xffffffffu, &m, ffx_mma_8);
}
DEV u32 to_tf32(float x) {
    u32 b = __float_as_uint(x);
    if ((b & 0x7f800000u) == 0x7f800000u) return b & ~0x1fffu | (x != x ? 0x00400000u : 0u);
    return (b + 0x1000u) & ~0x1fffu;
}

struct FfxLdmatrix { u32 *r; const u8 *row; };
template <int MATRICES, bool TRANS> static void ffx_ldmatrix(void **lanes, u32) {
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < MATRICES; ++i) {
            u32 both = 0;
            for (int h = 0; h < 2; ++h) {
                int row = TRANS ? 2 * (lane % 4) + h : lane / 4, column = TRANS ? lane / 4 : 2 * (lane % 4) + h;
                const u8 *from = ((const FfxLdmatrix *)lanes[8 * i + row])->row;
                both |= (u32)((const u16 *)from)[column] << (16 * h);
            }
            ((const FfxLdmatrix *)lanes[lane])->r[i] = both;
        }
}
#define FFX_LDMATRIX(NAME, TRANS, N) \
    DEV void NAME(u32 (&r)[N], const void *row) { \
        ffx_aligned(row, 16); \
        FfxLdmatrix m = {r, (const u8 *)row}; \
        ffx_collective(0xffffffffu, &m, ffx_ldmatrix<N, TRANS>); \
    }
FFX_LDMATRIX(ldmatrix_x1, false, 1) FFX_LDMATRIX(ldmatrix_x2, false, 2) FFX_LDMATRIX(ldmatrix_x4, false, 4)
FFX_LDMATRIX(ldmatrix_x1_trans, true, 1) FFX_LDMATRIX(ldmatrix_x2_trans, true, 2) FFX_LDMATRIX(ldmatrix_x4_trans, true, 4)

// Copies happen when they are waited for; until then the shared memory holds a pattern that is not a number.
DEV void cp_async_16(void *shared, const void *global, int bytes = 16) { ffx_copy_later(shared, global, 16, bytes); }
DEV void cp_async_8(void *shared, const void *global, int bytes = 8) { ffx_copy_later(shared, global, 8, bytes); }
DEV void cp_async_4(void *shared, const void *global, int bytes = 4) { ffx_copy_later(shared, global, 4, bytes); }
DEV void cp_async_commit() { ffx_copy_commit(); }
template <int PENDING> DEV void cp_async_wait() { ffx_copy_wait(PENDING); }

DEV u32 pack_bf16(float low, float high) { return (u32)to_bf16(low).bits | (u32)to_bf16(high).bits << 16; }
DEV u32 pack_f16(float low, float high) { return (u32)to_f16(low).bits | (u32)to_f16(high).bits << 16; }
DEV float exp2_flushed(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
DEV void red_add(float *p, float x) { *p += x; }
DEV void red_add_f16x2(void *p, u32 x) {
    ffx_aligned(p, 4);
    atomic<SUM, f16>((f16 *)p, bits_as<f16>((u16)x));
    atomic<SUM, f16>((f16 *)p + 1, bits_as<f16>((u16)(x >> 16)));
}
DEV void red_add_bf16x2(void *p, u32 x) {
    ffx_aligned(p, 4);
    atomic<SUM, bf16>((bf16 *)p, bits_as<bf16>((u16)x));
    atomic<SUM, bf16>((bf16 *)p + 1, bits_as<bf16>((u16)(x >> 16)));
}
DEV void barrier_sync(int number, int threads) { ffx_barrier(number, threads, true); }
DEV void barrier_arrive(int number, int threads) { ffx_barrier(number, threads, false); }
DEV void grid_dependency_wait() {}
DEV void grid_dependency_launch() {}
DEV uint4 load_streaming(const void *p) { ffx_aligned(p, 16); return *(const uint4 *)p; }
DEV void store_streaming(void *p, uint4 x) { ffx_aligned(p, 16); *(uint4 *)p = x; }
DEV u32 load_volatile(const u32 *p) { return *(volatile const u32 *)p; }

#endif
