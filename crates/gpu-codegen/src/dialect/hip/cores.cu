// Matrix cores, one instruction each, and how their fragments lie: MFMA of waves of 64 (CDNA), WMMA of waves of 32 (RDNA 3 and 4).
// By AMD's matrix instruction calculator and instruction set manuals. All functions are called by every lane of the wave together.
//
// D[M,M] += A[M,K] B[K,M], of a wave whose lanes are in groups of M. `Core<T, M>` holds of each factor HELD numbers a lane, of row
// (of A) or column (of B) `lane % M`, and of D the PARTS numbers of column `lane % M` in rows `row(lane, e)`. Which inner point
// a held number belongs to does not matter as long as both factors agree: here group g holds the numbers from `g * HELD` on,
// which is one read of 16 bytes, and an instruction takes a part of them. RDNA 3 wants all of a row in both groups.
//
// The numbers of D that a lane has are all of one column: rounded, they are the right factor of the next product, whose inner points
// are the rows of D. `made` gives that factor, `turned` reads the left one in the same order.

using Short4 = short __attribute__((vector_size(8)));
using Short8 = short __attribute__((vector_size(16)));
using Short16 = short __attribute__((vector_size(32)));
using Half4 = _Float16 __attribute__((vector_size(8)));
using Half8 = _Float16 __attribute__((vector_size(16)));
using Half16 = _Float16 __attribute__((vector_size(32)));
using Float2 = float __attribute__((vector_size(8)));
using Float4 = float __attribute__((vector_size(16)));
using Float8 = float __attribute__((vector_size(32)));
using Float16 = float __attribute__((vector_size(64)));

// Keeps the compiler from loading the factors of later steps ahead of their turn, for which waves of 32 lack registers.
#if defined(WMMA)
#define step_end() __builtin_amdgcn_sched_barrier(0)
#else
#define step_end() ((void)0)
#endif

// float32 that instructions round to 10 bits of mantissa.
struct Xf32 { float x; };

// N vectors that lie as one.
template <class V, int N> struct Several { V v[N]; };

template <int N> struct SumsOf;
template <> struct SumsOf<4> { typedef Float4 type; };
template <> struct SumsOf<8> { typedef Float8 type; };
template <> struct SumsOf<16> { typedef Float16 type; };

#if defined(MFMA)
template <class T, int M> struct Mfma;
template <> struct Mfma<bf16, 32> {
    typedef Several<Short4, 2> Parts;
    DEV Float16 run(Parts a, Parts b, Float16 d) {
        d = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a.v[0], b.v[0], d, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a.v[1], b.v[1], d, 0, 0, 0);
    }
};
template <> struct Mfma<bf16, 16> {
    typedef Several<Short4, 2> Parts;
    DEV Float4 run(Parts a, Parts b, Float4 d) {
        d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a.v[0], b.v[0], d, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a.v[1], b.v[1], d, 0, 0, 0);
    }
};
template <> struct Mfma<f16, 32> {
    typedef Several<Half4, 2> Parts;
    DEV Float16 run(Parts a, Parts b, Float16 d) {
        d = __builtin_amdgcn_mfma_f32_32x32x8f16(a.v[0], b.v[0], d, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_32x32x8f16(a.v[1], b.v[1], d, 0, 0, 0);
    }
};
template <> struct Mfma<f16, 16> {
    typedef Several<Half4, 2> Parts;
    DEV Float4 run(Parts a, Parts b, Float4 d) {
        d = __builtin_amdgcn_mfma_f32_16x16x16f16(a.v[0], b.v[0], d, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_16x16x16f16(a.v[1], b.v[1], d, 0, 0, 0);
    }
};
template <> struct Mfma<float, 32> {
    typedef Several<float, 4> Parts;
    DEV Float16 run(Parts a, Parts b, Float16 d) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) d = __builtin_amdgcn_mfma_f32_32x32x2f32(a.v[i], b.v[i], d, 0, 0, 0);
        return d;
    }
};
template <> struct Mfma<float, 16> {
    typedef Several<float, 4> Parts;
    DEV Float4 run(Parts a, Parts b, Float4 d) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) d = __builtin_amdgcn_mfma_f32_16x16x4f32(a.v[i], b.v[i], d, 0, 0, 0);
        return d;
    }
};
#endif

#if defined(XF32)
template <> struct Mfma<Xf32, 32> {
    typedef Several<Float2, 2> Parts;
    DEV Float16 run(Parts a, Parts b, Float16 d) {
        d = __builtin_amdgcn_mfma_f32_32x32x4_xf32(a.v[0], b.v[0], d, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_32x32x4_xf32(a.v[1], b.v[1], d, 0, 0, 0);
    }
};
template <> struct Mfma<Xf32, 16> {
    typedef Several<Float2, 2> Parts;
    DEV Float4 run(Parts a, Parts b, Float4 d) {
        d = __builtin_amdgcn_mfma_f32_16x16x8_xf32(a.v[0], b.v[0], d, 0, 0, 0);
        return __builtin_amdgcn_mfma_f32_16x16x8_xf32(a.v[1], b.v[1], d, 0, 0, 0);
    }
};
#endif

#if defined(WMMA)
template <class T, int M> struct Wmma;
#if defined(WMMA_HALVES)
template <> struct Wmma<bf16, 16> {
    DEV Float8 run(Short8 a, Short8 b, Float8 d) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, d); }
    typedef Short8 Parts;
};
template <> struct Wmma<f16, 16> {
    DEV Float8 run(Half8 a, Half8 b, Float8 d) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, d); }
    typedef Half8 Parts;
};
#else
template <> struct Wmma<bf16, 16> {
    DEV Float8 run(Short16 a, Short16 b, Float8 d) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, d); }
    typedef Short16 Parts;
};
template <> struct Wmma<f16, 16> {
    DEV Float8 run(Half16 a, Half16 b, Float8 d) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, d); }
    typedef Half16 Parts;
};
#endif
#endif

template <class T> struct StoredAs { typedef T type; };
template <> struct StoredAs<Xf32> { typedef float type; };

// Where inner point `k` of a line is in a tile of COUNT inner points a line. The eights of a line change places by the line's eight, so
// that threads which store eight lines each are in different banks.
template <int COUNT> DEV int turned_place(int line, int k) {
    return line * (COUNT + 8) + (k ^ (line >> 3 & (COUNT / 8 - 1)) << 3);
}

// Two floats rounded to 16 bits each, the first in the low half. What is not a number stays none: its payload is in the high half.
DEV u32 rounded_pair(Tag<bf16>, float low, float high) {
    const u32 a = as_bits(low), b = as_bits(high);
    return (a + 0x7fffu + (a >> 16 & 1u)) >> 16 | ((b + 0x7fffu + (b >> 16 & 1u)) & 0xffff0000u);
}
DEV u32 rounded_pair(Tag<f16>, float low, float high) {
    return (u32)to_f16(low).bits | (u32)to_f16(high).bits << 16;
}

template <class T, int M_> struct Core {
    typedef typename StoredAs<T>::type E;
    static constexpr int M = M_, PARTS = M * M / WAVE;
    // Numbers of D side by side in neighbouring rows, as many as are stored at once.
#if defined(WMMA) && !defined(WMMA_HALVES)
    static constexpr int RUN = 1;
#else
    static constexpr int RUN = 4;
#endif
#if defined(WMMA) && !defined(WMMA_HALVES)
    static constexpr int HELD = 16, K = 16;
#else
    static constexpr int HELD = 16 / (int)sizeof(E), K = HELD * WAVE / M;
#endif
    typedef Vec<E, HELD> Held;
    typedef typename SumsOf<PARTS>::type Sums;
    // The inner point of a lane's first number.
    DEV int from(int lane) { return K == HELD ? 0 : lane / M * HELD; }
    // A lane's number of a line of inner points, which is that of row or column `lane % M`.
    DEV Held row_at(const E *line, int lane) { return *(const Held *)(line + from(lane)); }
    DEV void run(Sums &d, const Held &a, const Held &b) {
#if defined(MFMA)
        d = Mfma<T, M>::run(__builtin_bit_cast(typename Mfma<T, M>::Parts, a), __builtin_bit_cast(typename Mfma<T, M>::Parts, b), d);
#else
        d = Wmma<T, M>::run(__builtin_bit_cast(typename Wmma<T, M>::Parts, a), __builtin_bit_cast(typename Wmma<T, M>::Parts, b), d);
#endif
    }
    // The row of D that a lane's number `e` belongs to.
    DEV int row(int lane, int e) {
#if defined(MFMA)
        return e / 4 * (4 * WAVE / M) + lane / M * 4 + e % 4;
#elif defined(WMMA_HALVES)
        return lane / M * 8 + e;
#else
        return 2 * e + lane / M;
#endif
    }
    // How many fragments of D make one factor, and how many factors one fragment.
    static constexpr int SPAN = K > M ? K / M : 1, EACH = M > K ? M / K : 1;
    // Factor number `s` of the rows of D: K of them.
    DEV Held made(const Sums *d, int s, int lane) {
        Held x;
#if defined(WMMA) && !defined(WMMA_HALVES)
        // Even rows are in one group of lanes, odd ones in the other: they give each other theirs.
        #pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const u32 mine = rounded_pair(Tag<E>(), d[s][i], d[s][i + 1]), other = wave_xor(mine, 16);
            const u32 even = lane < 16 ? mine : other, odd = lane < 16 ? other : mine;
            x.v[2 * i] = bits_as<E>((u16)even);
            x.v[2 * i + 1] = bits_as<E>((u16)odd);
            x.v[2 * i + 2] = bits_as<E>((u16)(even >> 16));
            x.v[2 * i + 3] = bits_as<E>((u16)(odd >> 16));
        }
#else
        Several<u32, HELD / 2> pairs;
        #pragma unroll
        for (int i = 0; i < HELD; i += 2) {
            // Of fragments of 16 rows one factor spans two, of those of 32 a fragment makes two.
            const int n = SPAN > 1 ? s * SPAN + i / PARTS : s / EACH, e = SPAN > 1 ? i % PARTS : s % EACH * HELD + i;
            pairs.v[i / 2] = rounded_pair(Tag<E>(), d[n][e], d[n][e + 1]);
        }
        x = __builtin_bit_cast(Held, pairs);
#endif
        return x;
    }
    // A lane's numbers of line `line` of a turned tile of COUNT inner points, K of them from `k` on, in the order of `made`.
    template <int COUNT> DEV Held turned(const E *tile, int line, int k, int lane) {
#if defined(MFMA)
        typedef Vec<E, 4> Four;
        Several<Four, 2> x;
        x.v[0] = *(const Four *)(tile + turned_place<COUNT>(line, k + lane / M * 4));
        x.v[1] = *(const Four *)(tile + turned_place<COUNT>(line, k + lane / M * 4 + K / 2));
#else
        typedef Vec<E, 8> Eight;
        Several<Eight, HELD / 8> x;
        #pragma unroll
        for (int i = 0; i < HELD / 8; ++i) x.v[i] = *(const Eight *)(tile + turned_place<COUNT>(line, k + from(lane) + 8 * i));
#endif
        return __builtin_bit_cast(Held, x);
    }
    // A lane's numbers of a line in global memory from inner point `k` on: `at(k)` is where eight of them are, null where they are 0.
    template <class At> DEV Held gather(At at, int k, int lane) {
        Several<Vec<E, 8>, HELD / 8> x;
        #pragma unroll
        for (int i = 0; i < HELD / 8; ++i) {
            const E *p = at(k + from(lane) + 8 * i);
            x.v[i] = {};
            if (p) x.v[i] = *(const Vec<E, 8> *)p;
        }
        return __builtin_bit_cast(Held, x);
    }
};
