// NVIDIA's instructions for matrix products, copies and clusters as ordinary C++ over the emulator's collectives. Replaces
// `cuda/instructions.cu` and `cuda/wgmma.cu`. A tensor map is a plain struct; copies and products are executed when they
// are waited for, with the checks that the hardware makes.

DEV u32 shared_address(const void *p) { return (u32)(u64)p; }

#define DYNAMIC_SHARED(name) u8 *name = (u8 *)ffx_dynamic_shared()

struct FfxMma { float *d; const u32 *a, *b; };

// The value of element `half` of a register of 16-bit floats.
template <class T> DEV float ffx_half(u32 reg, int half) { return widen(bits_as<T>((u16)(reg >> (16 * half)))); }

// Gathers the fragments, multiplies exactly, adds in double precision and rounds once.

template <class T> static void ffx_mma_16(void **lanes, u64) {
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

static void ffx_mma_8(void **lanes, u64) {
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
template <int MATRICES, bool TRANS> static void ffx_ldmatrix(void **lanes, u64) {
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
#define MAKE_LDMATRIX(NAME, TRANS, N) \
    DEV void NAME(u32 (&r)[N], const void *row) { \
        ffx_aligned(row, 16); \
        FfxLdmatrix m = {r, (const u8 *)row}; \
        ffx_collective(0xffffffffu, &m, ffx_ldmatrix<N, TRANS>); \
    }
MAKE_LDMATRIX(ldmatrix_x1, false, 1) MAKE_LDMATRIX(ldmatrix_x2, false, 2) MAKE_LDMATRIX(ldmatrix_x4, false, 4)
MAKE_LDMATRIX(ldmatrix_x1_trans, true, 1) MAKE_LDMATRIX(ldmatrix_x2_trans, true, 2) MAKE_LDMATRIX(ldmatrix_x4_trans, true, 4)

// Copies are executed when they are waited for; until then the shared memory holds a NaN pattern.
DEV void cp_async_16(void *shared, const void *global, int bytes = 16) { ffx_copy_later(shared, global, 16, bytes); }
DEV void cp_async_8(void *shared, const void *global, int bytes = 8) { ffx_copy_later(shared, global, 8, bytes); }
DEV void cp_async_4(void *shared, const void *global, int bytes = 4) { ffx_copy_later(shared, global, 4, bytes); }
DEV void cp_async_commit() { ffx_copy_commit(); }
template <int PENDING> DEV void cp_async_wait() { ffx_copy_wait(PENDING); }

DEV u32 pack_bf16(float low, float high) { return (u32)to_bf16(low).bits | (u32)to_bf16(high).bits << 16; }
DEV u32 pack_f16(float low, float high) { return (u32)to_f16(low).bits | (u32)to_f16(high).bits << 16; }

DEV u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
DEV u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }

#define KEPT(x) ((void)0)

template <class T, int N> DEV void add_vector(T *p, const Vec<T, N> &x) {
    ffx_aligned(p, N * (int)sizeof(T));
    for (int u = 0; u < N; ++u) atomic<SUM, T>(p + u, x.v[u]);
}

DEV float exp2_flushed(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

DEV float reciprocal(float x) { return 1.0f / x; }

DEV float reciprocal_flushed(float x) {
    const float y = 1.0f / x;
    return fabsf(y) < 0x1p-126f ? 0.0f : y;
}

DEV void barrier_sync(int number, int threads) { ffx_barrier(number, threads, true); }
DEV void barrier_arrive(int number, int threads) { ffx_barrier(number, threads, false); }

DEV Quad load_streaming(const void *p) { ffx_aligned(p, 16); return *(const Quad *)p; }
DEV void store_streaming(void *p, Quad x) { ffx_aligned(p, 16); *(Quad *)p = x; }

__device__ __forceinline__ void launch_next() {}

__device__ __forceinline__ void launch_wait() {}

// ---- clusters: emulated blocks run one after another, so the last one finishes all rows from copies of the parts
static float *ffx_cluster_memory;
static u64 ffx_cluster_room;
template <int PARTS, int FLOATS> DEV float *ffx_cluster_part(int rank) {
    return ffx_cluster_memory + ((u64)blockIdx.x * PARTS + rank) * FLOATS;
}
template <int PARTS, int FLOATS> DEV bool cluster_share(const float *sums) {
    const u64 wanted = (u64)gridDim.x * PARTS * FLOATS;
    if (wanted > ffx_cluster_room) {
        ffx_cluster_memory = (float *)realloc(ffx_cluster_memory, wanted * sizeof(float));
        ffx_cluster_room = wanted;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < FLOATS; i += blockDim.x) ffx_cluster_part<PARTS, FLOATS>(blockIdx.y)[i] = sums[i];
    __syncthreads();
    return blockIdx.y == PARTS - 1;
}
DEV void cluster_sync() { __syncthreads(); }
DEV void cluster_end() {}
DEV int cluster_row(int) { return 0; }
DEV int cluster_rows(int, int all) { return all; }
template <int W, int PARTS, int FLOATS> DEV Vec<float, W> cluster_load(const float *sums, const float *p, int rank) {
    return *(const Vec<float, W> *)(ffx_cluster_part<PARTS, FLOATS>(rank) + (p - sums));
}

// The emulator's tensor map.
struct TensorMap : FfxTensor { TensorMap(u64 from) : FfxTensor(*(const FfxTensor *)from) {} };

#define TENSOR_MAP(name) const TensorMap name

#define DYNAMIC_TILES(name) u8 *name = (u8 *)ffx_dynamic_shared()

DEV void mbarrier_init(u64 *bar, int count) { ffx_phase_init(bar, count); }
DEV void mbarrier_publish() {}
DEV void mbarrier_expect(u64 *bar, int bytes) { ffx_phase_arrive(bar, bytes); }

// Every emulated block of a cluster arrives for all of them, since blocks run one after another.
template <int SHARE> DEV void mbarrier_arrive(u64 *bar) {
    if ((threadIdx.x & 31) < SHARE) ffx_phase_arrive(bar, 0);
}
DEV void mbarrier_wait(u64 *bar, u32 parity) { ffx_phase_wait(bar, parity); }

DEV void tma_prefetch(const TensorMap &) {}
template <int SHARE, int RANK> DEV void tma_load(u8 *to, const TensorMap &map, u64 *bar, const int (&at)[RANK]) {
    ffx_box_later(to, map, bar, at, RANK);
}

// A block also copies the boxes of the others.
__device__ constexpr int own_boxes(int boxes, int) { return boxes; }
template <int BOXES, int SHARE> DEV int first_box() { return 0; }

template <int N> DEV void registers_down() { __syncwarp(); }
template <int N> DEV void registers_up() { __syncwarp(); }

struct FfxOperand { const u8 *at; int lead; };
template <int LEAD> DEV FfxOperand wgmma_operand(const u8 *p) { return {p, LEAD}; }
DEV FfxOperand wgmma_advance(FfxOperand operand, int bytes) { return {operand.at + bytes, operand.lead}; }
DEV void wgmma_fence() { __syncwarp(); }
DEV void wgmma_commit() { __syncwarp(); ffx_product_commit(); }
template <int PENDING> DEV void wgmma_wait() { ffx_product_wait(PENDING); }

DEV float ffx_factor(bf16 x) { return widen(x); }
DEV float ffx_factor(f16 x) { return widen(x); }
DEV float ffx_factor(float x) { return ffx_tf32(__float_as_uint(x)); }
// A row's elements of a product: two pieces of 16 bytes where they lie side by side.
template <class T, int MAJOR, int K> DEV void ffx_elements(FfxOperand operand, int row, double (&x)[K]) {
    constexpr int LINE = 128 / (int)sizeof(T);
    if (MAJOR == K_MAJOR) {
        const T *pieces[2];
        for (int i = 0; i < 2; ++i) pieces[i] = (const T *)ffx_swizzled((u64)operand.at + (u64)(row * 128 + i * 16));
        for (int k = 0; k < K; ++k) x[k] = ffx_factor(pieces[k / (K / 2)][k % (K / 2)]);
    } else {
        const u64 at = (u64)operand.at + (u64)(row / LINE * operand.lead + row % LINE * (int)sizeof(T));
        for (int k = 0; k < K; ++k) x[k] = ffx_factor(*(const T *)ffx_swizzled(at + (u64)(k * 128)));
    }
}

// A thread's share of the product with the elements of its two rows of the left operand: exact products, added in double
// precision and rounded once.
template <class T, int N, int MB, class Left> static void ffx_wgmma_rows(FfxProduct p, FfxOperand b, Left left) {
    constexpr int K = 32 / (int)sizeof(T);
    const int lane = threadIdx.x & 31;
    double row[2][K], x[K];
    for (int h = 0; h < 2; ++h) left(h, row[h]);
    for (int c = 0; c < N / 4; ++c) {
        double sum[2] = {};
        ffx_elements<T, MB, K>(b, c / 2 * 8 + lane % 4 * 2 + c % 2, x);
        for (int k = 0; k < K; ++k)
            for (int h = 0; h < 2; ++h) sum[h] += row[h][k] * x[k];
        for (int h = 0; h < 2; ++h) {
            float *d = p.d + c / 2 * 4 + 2 * h + c % 2;
            *d = (float)(p.more ? *d + sum[h] : sum[h]);
        }
    }
}
template <class T, int N, int MA, int MB> static void ffx_wgmma(FfxProduct p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    const FfxOperand a = {(const u8 *)p.a, p.lead_a}, b = {(const u8 *)p.b, p.lead_b};
    constexpr int K = 32 / (int)sizeof(T);
    ffx_wgmma_rows<T, N, MB>(p, b, [&](int h, double (&x)[K]) { ffx_elements<T, MA, K>(a, 16 * warp + lane / 4 + 8 * h, x); });
}

// The 4 lanes that hold two rows exchange their parts of them.
struct FfxHeld { const u32 *a; u32 *rows; };
static void ffx_held_rows(void **lanes, u64) {
    for (int lane = 0; lane < 32; ++lane) {
        FfxHeld *to = (FfxHeld *)lanes[lane];
        for (int pair = 0; pair < 4; ++pair) {
            const u32 *a = ((const FfxHeld *)lanes[lane / 4 * 4 + pair])->a;
            for (int r = 0; r < 4; ++r) to->rows[r % 2 * 8 + r / 2 * 4 + pair] = a[r];
        }
    }
}
template <class T, int N, int MB> static void ffx_wgmma_held(FfxProduct p) {
    const FfxOperand b = {(const u8 *)p.b, p.lead_b};
    ffx_wgmma_rows<T, N, MB>(p, b, [&](int h, double (&x)[16]) {
        for (int k = 0; k < 16; ++k) x[k] = ffx_half<T>(p.rows[h * 8 + k / 2], k % 2);
    });
}
template <class T, int N> struct WgmmaHeld {
    template <int MB> DEV void run(float (&d)[N / 2], const u32 (&a)[4], FfxOperand b, bool more) {
        FfxProduct p = {d, b.at, b.at, 0, b.lead, more, 0, ffx_wgmma_held<T, N, MB>, {}};
        FfxHeld held = {a, p.rows};
        ffx_collective(0xffffffffu, &held, ffx_held_rows);
        ffx_product_later(p);
    }
};
template <int N> DEV void wgmma_settle(float (&)[N]) {}
template <class T, int N> struct Wgmma {
    template <int MA, int MB> DEV void run(float (&d)[N / 2], FfxOperand a, FfxOperand b, bool more) {
        static_assert(sizeof(T) == 2 || (MA == K_MAJOR && MB == K_MAJOR), "32-bit operands must be K-major");
        ffx_product_later({d, a.at, b.at, a.lead, b.lead, more, 0, ffx_wgmma<T, N, MA, MB>, {}});
    }
};
