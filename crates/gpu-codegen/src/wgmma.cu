// What products by `wgmma` stand on (compute capability 9.0 alone, machine code for `sm_90a`): copies of whole tiles by the
// copy engine, the barriers that count their bytes, products of a warpgroup from shared memory; included behind the tiles.
// Where FFX_EMULATED is defined, the same names are ordinary C++: a tensor map is a plain struct, a copy happens when its
// barrier is waited for, a product when it is waited for, both with the checks that the hardware makes.
//
// A warpgroup is 4 warps, the first a multiple of 4. Functions marked *warpgroup* are called by all its 128 threads.
// wgmma.m64nNk: D[64,N] += A[64,K] B[K,N], K = 16 of 16-bit floats, 8 of tf32. Warp w of the group has rows 16 w to 16 w + 15:
//   d[4 j], d[4 j + 1] = D[16 w + group][8 j + 2 pair + {0,1}]      d[4 j + 2], d[4 j + 3] = the same of row 16 w + group + 8
// Both operands lie in shared memory as the copy engine leaves them with its 128-byte swizzle: lines of 128 bytes, the
// 16-byte pieces of line r at place (piece ^ r % 8); a tile begins at a multiple of 1024.

// How a factor's tile lies: lines along the inner dimension (a line a row), or along the rows (a line an inner point, 64
// rows a line, one block of lines after another).
enum { K_MAJOR, MN_MAJOR };

#ifndef FFX_EMULATED

// What the copy engine knows of a tensor: made by the driver.
struct alignas(64) TensorMap { u64 words[16]; };
#define TENSOR_MAP(name) const __grid_constant__ TensorMap name

// Declares `u8 *name`, the block's dynamic shared memory, aligned to 1024 bytes.
#define DYNAMIC_TILES(name) \
    extern __shared__ __align__(1024) u8 ffx_dynamic_tiles[]; \
    u8 *name = ffx_dynamic_tiles

#if __CUDA_ARCH_FEAT_SM90_ALL

// ---- barriers in shared memory that count arrivals and bytes of copies, phase by phase
DEV void mbarrier_init(u64 *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(bar)), "r"(count) : "memory");
}
// Makes initialized barriers known to the copy engine and to the cluster, before a barrier of the block or the cluster.
DEV void mbarrier_publish() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory"); }
// Arrives and says how many bytes of copies the phase waits for.
DEV void mbarrier_expect(u64 *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(bar)), "r"(bytes) : "memory");
}
// Arrives at the same barrier of each of the SHARE blocks of the cluster: one lane each. What it gives back was read by
// products alone, so nothing of the thread's own is to be seen by others: a release for the cluster would wait for all of
// its stores.
template <int SHARE> DEV void mbarrier_arrive(u64 *bar) {
    const int lane = threadIdx.x & 31;
    if constexpr (SHARE == 1) {
        if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(bar)) : "memory");
    } else if (lane < SHARE) {
        asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [at];\n}"
            :: "r"(shared_address(bar)), "r"(lane) : "memory");
    }
}
// Waits until the phase of this parity has ended.
DEV void mbarrier_wait(u64 *bar, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra.uni over;\nbra.uni again;\nover:\n}"
        :: "r"(shared_address(bar)), "r"(parity) : "memory");
}

// ---- copies of boxes by the copy engine, one thread each: coordinates innermost first, zeros beyond the tensor's ends
// SHARE > 1: to the same place of that many blocks of the cluster, counted by the barrier of each.
DEV void tma_prefetch(const TensorMap &map) { asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory"); }
template <int SHARE, int RANK> DEV void tma_load(u8 *to, const TensorMap &map, u64 *bar, const int (&at)[RANK]) {
    const u32 shared = shared_address(to), full = shared_address(bar);
#define FFX_TMA(N, COORDS, ...) \
    if constexpr (RANK == N && SHARE == 1) \
        asm volatile("cp.async.bulk.tensor." #N "d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" COORDS "}], [%2];" \
            :: "r"(shared), "l"(&map), "r"(full), __VA_ARGS__ : "memory"); \
    else if constexpr (RANK == N) \
        asm volatile("cp.async.bulk.tensor." #N "d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {" COORDS "}], [%2], %" FFX_MASK_##N ";" \
            :: "r"(shared), "l"(&map), "r"(full), __VA_ARGS__, "h"((u16)((1 << SHARE) - 1)) : "memory");
#define FFX_MASK_2 "5"
#define FFX_MASK_3 "6"
#define FFX_MASK_4 "7"
#define FFX_MASK_5 "8"
    FFX_TMA(2, "%3,%4", "r"(at[0]), "r"(at[1]))
    FFX_TMA(3, "%3,%4,%5", "r"(at[0]), "r"(at[1]), "r"(at[2]))
    FFX_TMA(4, "%3,%4,%5,%6", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]))
    FFX_TMA(5, "%3,%4,%5,%6,%7", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))
}
// Which of BOXES boxes a block of SHARE brings: `own_boxes` from `first_box`.
__device__ constexpr int own_boxes(int boxes, int share) { return boxes / share; }
template <int BOXES, int SHARE> DEV int first_box() {
    int rank = 0;
    if constexpr (SHARE > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank * (BOXES / SHARE);
}

// ---- registers of a warpgroup, which give up or take some for the rest of the kernel
template <int N> DEV void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> DEV void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }

// ---- products (warpgroup)
// Before the first product, and after registers of a product were touched otherwise.
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING of the latest groups are under way.
template <int PENDING> DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }
// The descriptor of an operand that begins at `p`: bytes from one block of 64 rows to the next (`lead`, of a tile by
// MN_MAJOR), bytes from 8 lines to the next 8.
template <int LEAD> DEV u64 wgmma_operand(const u8 *p) {
    return (u64)((shared_address(p) & 0x3ffffu) >> 4) | (u64)(LEAD >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ULL << 62;
}
// The same `bytes` further on.
DEV u64 wgmma_advance(u64 operand, int bytes) { return operand + (u64)(bytes >> 4); }
template <class T, int N> struct Wgmma;
#define FFX_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FFX_D32(i) FFX_D8(i), FFX_D8(i + 8), FFX_D8(i + 16), FFX_D8(i + 24)
#define FFX_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define FFX_R32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define FFX_R64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define FFX_R96 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define FFX_R128 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define FFX_WGMMA(T, TY, N, K, D, REGS, A, B, MORE, TRANS, TA, TB) \
    template <> struct Wgmma<T, N> { \
        template <int MA, int MB> DEV void run(float (&d)[N / 2], u64 a, u64 b, bool more) { \
            asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %" MORE ", 0;\n" \
                "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TY "." TY " {" REGS "}, %" A ", %" B ", more, 1, 1" TRANS ";\n}" \
                : D : "l"(a), "l"(b), "r"((int)more) FFX_MAJORS##TA##TB); \
        } \
    };
#define FFX_MAJORS
#define FFX_MAJORSMAMB , "n"(MA), "n"(MB)
#define FFX_WGMMA_16(T, TY) \
    FFX_WGMMA(T, TY, 32, 16, FFX_S16, FFX_R16, "16", "17", "18", ", %19, %20", MA, MB) \
    FFX_WGMMA(T, TY, 64, 16, FFX_D32(0), FFX_R16 FFX_R32, "32", "33", "34", ", %35, %36", MA, MB) \
    FFX_WGMMA(T, TY, 128, 16, FFX_S64, FFX_R16 FFX_R32 FFX_R64, "64", "65", "66", ", %67, %68", MA, MB) \
    FFX_WGMMA(T, TY, 256, 16, FFX_S128, FFX_R16 FFX_R32 FFX_R64 FFX_R96 FFX_R128, "128", "129", "130", ", %131, %132", MA, MB)
// The same with the left factor in registers: of a warp's 16 rows as `mma.m16n8k16` has it (`tensor_core.cu`). They belong to
// the product until it is waited for.
template <class T, int N> struct WgmmaHeld;
#define FFX_WGMMA_HELD(T, TY, N, D, REGS, A0, A1, A2, A3, B, MORE, TB) \
    template <> struct WgmmaHeld<T, N> { \
        template <int MB> DEV void run(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool more) { \
            asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %" MORE ", 0;\n" \
                "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TY "." TY " {" REGS "}, {%" A0 ",%" A1 ",%" A2 ",%" A3 "}, %" B ", more, 1, 1, %" TB ";\n}" \
                : D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)more), "n"(MB)); \
        } \
    };
#define FFX_WGMMA_HELD_16(T, TY) \
    FFX_WGMMA_HELD(T, TY, 64, FFX_D32(0), FFX_R16 FFX_R32, "32", "33", "34", "35", "36", "37", "38") \
    FFX_WGMMA_HELD(T, TY, 128, FFX_S64, FFX_R16 FFX_R32 FFX_R64, "64", "65", "66", "67", "68", "69", "70") \
    FFX_WGMMA_HELD(T, TY, 256, FFX_S128, FFX_R16 FFX_R32 FFX_R64 FFX_R96 FFX_R128, "128", "129", "130", "131", "132", "133", "134")
#define FFX_S16 FFX_D8(0), FFX_D8(8)
#define FFX_S64 FFX_D32(0), FFX_D32(32)
#define FFX_S128 FFX_S64, FFX_D32(64), FFX_D32(96)
FFX_WGMMA_16(bf16, "bf16")
FFX_WGMMA_16(f16, "f16")
FFX_WGMMA(float, "tf32", 32, 8, FFX_S16, FFX_R16, "16", "17", "18", "",,)
FFX_WGMMA(float, "tf32", 64, 8, FFX_D32(0), FFX_R16 FFX_R32, "32", "33", "34", "",,)
FFX_WGMMA(float, "tf32", 128, 8, FFX_S64, FFX_R16 FFX_R32 FFX_R64, "64", "65", "66", "",,)
FFX_WGMMA(float, "tf32", 256, 8, FFX_S128, FFX_R16 FFX_R32 FFX_R64 FFX_R96 FFX_R128, "128", "129", "130", "",,)
FFX_WGMMA_HELD_16(bf16, "bf16")
FFX_WGMMA_HELD_16(f16, "f16")
// What products have left in registers is read behind this, not before: the compiler does not know that they ran on.
template <int N> DEV void wgmma_settle(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}

#endif // __CUDA_ARCH_FEAT_SM90_ALL

#else // FFX_EMULATED
// The same as the emulator has it.
struct TensorMap : FfxTensor { TensorMap(u64 from) : FfxTensor(*(const FfxTensor *)from) {} };
#define TENSOR_MAP(name) const TensorMap name
#define DYNAMIC_TILES(name) u8 *name = (u8 *)ffx_dynamic_shared()

DEV void mbarrier_init(u64 *bar, int count) { ffx_phase_init(bar, count); }
DEV void mbarrier_publish() {}
DEV void mbarrier_expect(u64 *bar, int bytes) { ffx_phase_arrive(bar, bytes); }
// Every emulated block of a cluster arrives for all of them: they run one after another, and none misses the others.
template <int SHARE> DEV void mbarrier_arrive(u64 *bar) {
    if ((threadIdx.x & 31) < SHARE) ffx_phase_arrive(bar, 0);
}
DEV void mbarrier_wait(u64 *bar, u32 parity) { ffx_phase_wait(bar, parity); }

DEV void tma_prefetch(const TensorMap &) {}
template <int SHARE, int RANK> DEV void tma_load(u8 *to, const TensorMap &map, u64 *bar, const int (&at)[RANK]) {
    ffx_box_later(to, map, bar, at, RANK);
}
// A block brings the boxes of the others too.
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
template <class T> DEV float ffx_element(FfxOperand operand, int major, int row, int k) {
    constexpr int LINE = 128 / (int)sizeof(T);
    u64 at = (u64)operand.at;
    if (major == K_MAJOR) at += (u64)(row * 128 + k * (int)sizeof(T));
    else at += (u64)(row / LINE * operand.lead + k * 128 + row % LINE * (int)sizeof(T));
    return ffx_factor(*(const T *)ffx_swizzled(at));
}
// A thread's share of the product with the left factor's elements of its two rows: exact products, added in double
// precision and rounded once.
template <class T, int N, int MB, class Left> static void ffx_wgmma_rows(FfxProduct p, FfxOperand b, Left left) {
    constexpr int K = 32 / (int)sizeof(T);
    const int lane = threadIdx.x & 31;
    float row[2][K];
    for (int h = 0; h < 2; ++h)
        for (int k = 0; k < K; ++k) row[h][k] = left(h, k);
    for (int c = 0; c < N / 4; ++c) {
        double sum[2] = {};
        for (int k = 0; k < K; ++k) {
            const float x = ffx_element<T>(b, MB, c / 2 * 8 + lane % 4 * 2 + c % 2, k);
            for (int h = 0; h < 2; ++h) sum[h] += (double)row[h][k] * x;
        }
        for (int h = 0; h < 2; ++h) {
            float *d = p.d + c / 2 * 4 + 2 * h + c % 2;
            *d = (float)(p.more ? *d + sum[h] : sum[h]);
        }
    }
}
template <class T, int N, int MA, int MB> static void ffx_wgmma(FfxProduct p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    const FfxOperand a = {(const u8 *)p.a, p.lead_a}, b = {(const u8 *)p.b, p.lead_b};
    ffx_wgmma_rows<T, N, MB>(p, b, [&](int h, int k) { return ffx_element<T>(a, MA, 16 * warp + lane / 4 + 8 * h, k); });
}
// The lanes of 4 that hold two rows give each other their parts of them.
struct FfxHeld { const u32 *a; u32 *rows; };
static void ffx_held_rows(void **lanes, u32) {
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
    ffx_wgmma_rows<T, N, MB>(p, b, [&](int h, int k) { return ffx_half<T>(p.rows[h * 8 + k / 2], k % 2); });
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
        static_assert(sizeof(T) == 2 || (MA == K_MAJOR && MB == K_MAJOR), "the rows of 32-bit factors do not lie together");
        ffx_product_later({d, a.at, b.at, a.lead, b.lead, more, 0, ffx_wgmma<T, N, MA, MB>, {}});
    }
};
#endif

#if defined(FFX_EMULATED) || __CUDA_ARCH_FEAT_SM90_ALL

DEV int warpgroup() { return __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 7), 0); }

// The barriers of a ring: a stage is full when its bytes are there, empty when every warp that multiplies, of all blocks
// that share, has given it back.
template <int STAGES, int CONSUMERS, int SHARE>
DEV void bulk_begin(u64 *full, u64 *empty, const TensorMap &a, const TensorMap &b) {
    if (threadIdx.x == 0) {
        tma_prefetch(a);
        tma_prefetch(b);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full + stage, 1);
            mbarrier_init(empty + stage, CONSUMERS * 4 * SHARE);
        }
        mbarrier_publish();
    }
    __syncthreads();
    if constexpr (SHARE > 1) cluster_sync();
}
// Shared memory lives until no other block brings anything there.
template <int SHARE> DEV void bulk_end() {
    if constexpr (SHARE > 1) {
        __syncwarp();
        cluster_sync();
    }
}

// Where one role stands in the ring.
template <int STAGES> struct Ring {
    int stage = 0;
    u32 phase = 0;
    MEMBER void next() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// ---- a factor's tile of ROWS rows, one stage of the pipeline: 128 bytes of inner points
template <class T, int ROWS, int MAJOR> struct BulkTile {
    static constexpr int LAYOUT = MAJOR;
    static constexpr int DEPTH = 128 / (int)sizeof(T), BYTES = ROWS * 128;
    // From one block of 64 rows to the next; from one row, and from one inner point to the next within a block.
    static constexpr int BLOCK = DEPTH * 128, ROW = 128;
    static_assert(MAJOR == K_MAJOR ? ROWS % 8 == 0 : ROWS % 64 == 0, "a tile is of whole blocks");
    DEV int place(int row, int k) { return MAJOR == K_MAJOR ? row * 128 + k * (int)sizeof(T) : row / 64 * BLOCK + k * 128; }
    // Brings the tile of rows from `row`, inner points from `k`: by `load(to, bar, row, k)`, a box each. SHARE blocks of
    // the cluster bring a part each, for all of them.
    template <int SHARE, class Load> DEV void fill(u8 *to, u64 *bar, i64 row, i64 k, Load load) {
        constexpr int BOX = MAJOR == K_MAJOR ? ROWS / SHARE : 64, BOXES = ROWS / BOX;
        static_assert(BOXES * BOX == ROWS && BOXES % SHARE == 0 && BOX <= 256, "the blocks' parts are of whole boxes");
        #pragma unroll
        for (int i = 0; i < own_boxes(BOXES, SHARE); ++i) {
            const int from = (first_box<BOXES, SHARE>() + i) * BOX;
            load(to + from * 128, bar, row + from, k);
        }
    }
};

// The product of a warpgroup: PM rows of A's tile from PM times its number, all BN rows of B's.
template <class T, class A, class B, int PM, int BN> struct WgmmaProduct {
    static constexpr int MI = PM / 64, DEPTH = A::DEPTH, K = 32 / (int)sizeof(T);
    float d[MI][BN / 2];
    MEMBER void clear() {
        #pragma unroll
        for (int i = 0; i < MI; ++i)
            #pragma unroll
            for (int r = 0; r < BN / 2; ++r) d[i][r] = 0.0f;
    }
    // The tile's row at which the warp's 16 rows of block `i` begin.
    DEV int row(int i) { return (int)(threadIdx.x >> 7) * PM + i * 64 + (int)(threadIdx.x >> 5 & 3) * 16; }
    // Starts the products of a stage; `more`: adds to what is there.
    MEMBER void step(const u8 *sa, const u8 *sb, bool more) {
        const auto a = wgmma_operand<A::BLOCK>(sa + A::place((int)(threadIdx.x >> 7) * PM, 0));
        const auto b = wgmma_operand<B::BLOCK>(sb);
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < DEPTH; k += K)
            #pragma unroll
            for (int i = 0; i < MI; ++i)
                Wgmma<T, BN>::template run<A::LAYOUT, B::LAYOUT>(d[i], wgmma_advance(a, A::place(i * 64, k)),
                    wgmma_advance(b, B::place(0, k)), more || k > 0);
        wgmma_commit();
    }
    // Where a column of a row of a slab of 64 columns lies in it, in groups of 8: rows side by side have other banks.
    DEV int slab(int row, int col) { return row * 64 + (col ^ (row & 7) * 8); }
    // Stores columns 64 * part to 64 * part + 63 of the warp's 16 rows of block `i` to a slab. Both are compared with
    // constants: registers have no addresses.
    MEMBER void store_slab(float *out, int i, int part) const {
        const int lane = threadIdx.x & 31;
        #pragma unroll
        for (int mi = 0; mi < MI; ++mi)
            #pragma unroll
            for (int p = 0; p < BN / 64; ++p) {
                if (mi != i || p != part) continue;
                #pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const float *v = &d[mi][(p * 8 + j) * 4];
                    float *to = out + slab(lane / 4, j * 8 + lane % 4 * 2);
                    *(Vec<float, 2> *)to = {{v[0], v[1]}};
                    *(Vec<float, 2> *)(to + 8 * 64) = {{v[2], v[3]}};
                }
            }
    }
    // Stores all to the block's tile.
    template <int PITCH> MEMBER void store(float *out) const {
        const int lane = threadIdx.x & 31;
        #pragma unroll
        for (int i = 0; i < MI; ++i) {
            float *at = out + (row(i) + lane / 4) * PITCH + lane % 4 * 2;
            #pragma unroll
            for (int j = 0; j < BN / 8; ++j) {
                const float *v = &d[i][j * 4];
                *(Vec<float, 2> *)(at + j * 8) = {{v[0], v[1]}};
                *(Vec<float, 2> *)(at + 8 * PITCH + j * 8) = {{v[2], v[3]}};
            }
        }
    }
};

#endif
