// AMD's instructions of matrix cores over the emulator's collectives, with the layouts of their fragments by AMD's matrix instruction
// calculator (version 1.3). Products are exact, sums are in double precision and rounded once.

struct FfxCores { const void *a, *b; float *d; };

struct FfxBf16Number { typedef unsigned short type; static float of(type x) { return __uint_as_float((ffx_u32)x << 16); } };
struct FfxF16Number { typedef unsigned short type; static float of(type x) { return ffx_from_f16(x); } };
struct FfxF32Number { typedef float type; static float of(type x) { return x; } };
// Rounded to 10 bits of mantissa, ties to even.
struct FfxXf32Number {
    typedef float type;
    static float of(type x) {
        const ffx_u32 bits = __float_as_uint(x);
        return x != x ? x : __uint_as_float((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
    }
};

// v_mfma_f32_{M}x{M}x{K}, waves of 64: lane groups of M, each with neighbouring inner points.
template <int M_, int K_> struct FfxMfmaLayout {
    static constexpr int M = M_, K = K_, WAVE_ = 64, HELD = K * M / 64, PARTS = M * M / 64;
    static int line(int lane) { return lane % M; }
    static int inner(int lane, int h) { return lane / M * HELD + h; }
    static int row(int lane, int e) { return e / 4 * (256 / M) + lane / M * 4 + e % 4; }
};
// v_wmma_f32_16x16x16 of RDNA 3, waves of 32: both halves have the same rows, whole.
struct FfxWmmaLayout {
    static constexpr int M = 16, K = 16, WAVE_ = 32, HELD = 16, PARTS = 8;
    static int line(int lane) { return lane % 16; }
    static int inner(int, int h) { return h; }
    static int row(int lane, int e) { return 2 * e + lane / 16; }
};
// The same of RDNA 4: each half has half of the inner points.
struct FfxWmmaHalvesLayout {
    static constexpr int M = 16, K = 16, WAVE_ = 32, HELD = 8, PARTS = 8;
    static int line(int lane) { return lane % 16; }
    static int inner(int lane, int h) { return h / 4 * 8 + lane / 16 * 4 + h % 4; }
    static int row(int lane, int e) { return lane / 16 * 8 + e; }
};

// What lanes hold of the same element must be the same.
template <class L> static void ffx_held_again(float (&x)[L::M][L::K], bool (&seen)[L::M][L::K], int line, int k, float value) {
    if (seen[line][k] && ffx_bits<ffx_u32>(x[line][k]) != ffx_bits<ffx_u32>(value))
        ffx_fail(FFX_BAD_CALL, "lanes hold different numbers of row %d, inner point %d", line, k);
    x[line][k] = value;
    seen[line][k] = true;
}
template <class N, class L> static void ffx_cores(void **lanes, ffx_u64) {
    static float a[L::M][L::K], b[L::M][L::K];
    static bool seen[2][L::M][L::K];
    memset(seen, 0, sizeof seen);
    for (int lane = 0; lane < L::WAVE_; ++lane) {
        const FfxCores &c = *(const FfxCores *)lanes[lane];
        for (int h = 0; h < L::HELD; ++h) {
            const int line = L::line(lane), k = L::inner(lane, h);
            ffx_held_again<L>(a, seen[0], line, k, N::of(((const typename N::type *)c.a)[h]));
            ffx_held_again<L>(b, seen[1], line, k, N::of(((const typename N::type *)c.b)[h]));
        }
    }
    for (int lane = 0; lane < L::WAVE_; ++lane) {
        float *d = ((const FfxCores *)lanes[lane])->d;
        for (int e = 0; e < L::PARTS; ++e) {
            double sum = d[e];
            for (int k = 0; k < L::K; ++k) sum += (double)a[L::row(lane, e)][k] * b[lane % L::M][k];
            d[e] = (float)sum;
        }
    }
}
template <class N, class L, class V, class D> static inline D ffx_cores_of(V a, V b, D d) {
    static_assert(sizeof(V) == L::HELD * sizeof(typename N::type) && sizeof(D) == L::PARTS * 4, "fragments of this instruction");
    FfxCores c = {&a, &b, (float *)&d};
    ffx_collective(FFX_ALL, &c, ffx_cores<N, L>);
    return d;
}
#define FFX_MFMA(NAME, NUMBER, M, K) \
    template <class V, class D> static inline D __builtin_amdgcn_mfma_f32_##NAME(V a, V b, D d, int, int, int) { \
        return ffx_cores_of<NUMBER, FfxMfmaLayout<M, K>>(a, b, d); \
    }
FFX_MFMA(32x32x8bf16_1k, FfxBf16Number, 32, 8) FFX_MFMA(16x16x16bf16_1k, FfxBf16Number, 16, 16)
FFX_MFMA(32x32x8f16, FfxF16Number, 32, 8) FFX_MFMA(16x16x16f16, FfxF16Number, 16, 16)
FFX_MFMA(32x32x2f32, FfxF32Number, 32, 2) FFX_MFMA(16x16x4f32, FfxF32Number, 16, 4)
FFX_MFMA(32x32x4_xf32, FfxXf32Number, 32, 4) FFX_MFMA(16x16x8_xf32, FfxXf32Number, 16, 8)
#define FFX_WMMA(NAME, NUMBER, LAYOUT) \
    template <class V, class D> static inline D __builtin_amdgcn_wmma_f32_16x16x16_##NAME(V a, V b, D d) { \
        return ffx_cores_of<NUMBER, LAYOUT>(a, b, d); \
    }
FFX_WMMA(bf16_w32, FfxBf16Number, FfxWmmaLayout) FFX_WMMA(f16_w32, FfxF16Number, FfxWmmaLayout)
FFX_WMMA(bf16_w32_gfx12, FfxBf16Number, FfxWmmaHalvesLayout) FFX_WMMA(f16_w32_gfx12, FfxF16Number, FfxWmmaHalvesLayout)

// Results below the smallest normal number are 0.
static inline float __builtin_amdgcn_exp2f(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
static inline float __builtin_amdgcn_rcpf(float x) {
    const float y = 1.0f / x;
    return fabsf(y) < 0x1p-126f ? 0.0f : y;
}
#define __builtin_amdgcn_sched_barrier(what) ((void)0)
