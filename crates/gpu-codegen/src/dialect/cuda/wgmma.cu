// The tensor memory accelerator and products of warpgroups, one PTX instruction each (compute capability 9.0 only, machine
// code for `sm_90a`). The layout of operands is described in `common/matrix.cu`.

// A tensor map, the descriptor of a tensor for TMA; the driver encodes it.
struct alignas(64) TensorMap { u64 words[16]; };
#define TENSOR_MAP(name) const __grid_constant__ TensorMap name

// Declares `u8 *name`, the block's dynamic shared memory, aligned to 1024 bytes.
#define DYNAMIC_TILES(name) \
    extern __shared__ __align__(1024) u8 ffx_dynamic_tiles[]; \
    u8 *name = ffx_dynamic_tiles

// ---- barriers in shared memory that count arrivals and bytes of copies, phase by phase
DEV void mbarrier_init(u64 *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(bar)), "r"(count) : "memory");
}

// Makes initialized barriers visible to TMA and to the cluster, before a barrier of the block or the cluster.
DEV void mbarrier_publish() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory"); }

// Arrives, and states how many bytes of copies the phase waits for.
DEV void mbarrier_expect(u64 *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(bar)), "r"(bytes) : "memory");
}

// Arrives at the same barrier of each of the SHARE blocks of the cluster, one lane each. Only products have read what it
// releases, so no other writes of the thread must become visible: a release for the cluster would wait for all of its
// stores.
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

// ---- copies of boxes by TMA, one thread each: coordinates innermost first, zeros beyond the tensor's ends
// SHARE > 1: to the same place in that many blocks of the cluster, counted by the barrier of each.
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

// Which of BOXES boxes a block of SHARE copies: `own_boxes` from `first_box`.
__device__ constexpr int own_boxes(int boxes, int share) { return boxes / share; }
template <int BOXES, int SHARE> DEV int first_box() {
    int rank = 0;
    if constexpr (SHARE > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank * (BOXES / SHARE);
}

// ---- registers of a warpgroup, which releases or acquires some for the rest of the kernel
template <int N> DEV void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> DEV void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }

// ---- products (warpgroup)
// Required before the first product, and after registers of a product were accessed otherwise.
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING of the latest groups are in flight.
template <int PENDING> DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }

// The descriptor of an operand that begins at `p`: bytes between blocks of 64 rows (`lead`, for an MN_MAJOR tile), and
// bytes between groups of 8 lines.
template <int LEAD> DEV u64 wgmma_operand(const u8 *p) {
    return (u64)((shared_address(p) & 0x3ffffu) >> 4) | (u64)(LEAD >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ULL << 62;
}

// The same operand, `bytes` further.
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

// The same with the left operand in registers: a warp's 16 rows in the layout of `mma.m16n8k16` (`matrix.cu`). They belong
// to the product until it is waited for.
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

// A compiler barrier: results of asynchronous products in registers are read after this, not before.
template <int N> DEV void wgmma_settle(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
