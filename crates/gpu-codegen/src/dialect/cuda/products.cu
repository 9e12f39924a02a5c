// Products of tiles by fragments of a warp of 32 lanes (`mma`).

// ---- products of tiles. A warp's part is PM x PN of the block's BM x BN; `out` is a row-major float32 tile.
template <class T> struct MmaOf;
template <> struct MmaOf<bf16> { DEV void run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_bf16(d, a, b); } };
template <> struct MmaOf<f16> { DEV void run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_f16(d, a, b); } };

// The accumulator fragments, which both tensor-core products share.
template <int PM, int PN, int WARPS_N> struct Fragments {
    static constexpr int MI = PM / 16, NI = PN / 8;
    float d[MI][NI][4];
    MEMBER void clear() {
        #pragma unroll
        for (int i = 0; i < MI; ++i)
            #pragma unroll
            for (int j = 0; j < NI; ++j)
                #pragma unroll
                for (int r = 0; r < 4; ++r) d[i][j][r] = 0.0f;
    }
    DEV int row0() { return (int)(threadIdx.x >> 5) / WARPS_N * PM; }
    DEV int col0() { return (int)(threadIdx.x >> 5) % WARPS_N * PN; }
    template <int PITCH> MEMBER void store(float *out) const {
        const int lane = threadIdx.x & 31;
        float *at = out + (row0() + lane / 4) * PITCH + col0() + lane % 4 * 2;
        #pragma unroll
        for (int i = 0; i < MI; ++i)
            #pragma unroll
            for (int j = 0; j < NI; ++j) {
                *(Vec<float, 2> *)(at + i * 16 * PITCH + j * 8) = {{d[i][j][0], d[i][j][1]}};
                *(Vec<float, 2> *)(at + (i * 16 + 8) * PITCH + j * 8) = {{d[i][j][2], d[i][j][3]}};
            }
    }
};

// 16-bit floats on tensor cores.
template <class T, class A, class B, int PM, int PN, int WARPS_N, int DEPTH> struct TensorProduct : Fragments<PM, PN, WARPS_N> {
    typedef Fragments<PM, PN, WARPS_N> Base;
    static constexpr int MI = Base::MI, NI = Base::NI;
    static_assert(NI % 2 == 0 && PM % 16 == 0 && DEPTH % 16 == 0, "a warp's part is of whole fragments");
    DEV void load(u32 (&a)[MI][4], u32 (&b)[NI / 2][4], const T *sa, const T *sb, int k) {
        const int lane = threadIdx.x & 31;
        #pragma unroll
        for (int i = 0; i < MI; ++i) {
            const int m = Base::row0() + i * 16;
            if constexpr (A::LINES_ARE_INNER)
                ldmatrix_x4_trans(a[i], sa + (k + (lane & 7) + (lane >> 4) * 8) * A::PITCH + m + ((lane >> 3) & 1) * 8);
            else ldmatrix_x4(a[i], sa + (m + (lane & 15)) * A::PITCH + k + (lane >> 4) * 8);
        }
        #pragma unroll
        for (int j = 0; j < NI / 2; ++j) {
            const int n = Base::col0() + j * 16;
            if constexpr (B::LINES_ARE_INNER)
                ldmatrix_x4_trans(b[j], sb + (k + (lane & 15)) * B::PITCH + n + (lane >> 4) * 8);
            else ldmatrix_x4(b[j], sb + (n + (lane & 7) + (lane >> 4) * 8) * B::PITCH + k + ((lane >> 3) & 1) * 8);
        }
    }
    // Fragments of the next 16 inner points are loaded while the present ones are multiplied.
    MEMBER void step(const T *sa, const T *sb) {
        u32 a[2][MI][4], b[2][NI / 2][4];
        load(a[0], b[0], sa, sb, 0);
        #pragma unroll
        for (int k = 0; k < DEPTH / 16; ++k) {
            if (k + 1 < DEPTH / 16) load(a[(k + 1) & 1], b[(k + 1) & 1], sa, sb, (k + 1) * 16);
            #pragma unroll
            for (int i = 0; i < MI; ++i)
                #pragma unroll
                for (int j = 0; j < NI; ++j) {
                    const u32 both[2] = {b[k & 1][j / 2][j % 2 * 2], b[k & 1][j / 2][j % 2 * 2 + 1]};
                    MmaOf<T>::run(this->d[i][j], a[k & 1][i], both);
                }
        }
    }
};

// float32 on tensor cores, operands rounded to tf32.
template <class A, class B, int PM, int PN, int WARPS_N, int DEPTH> struct Tf32Product : Fragments<PM, PN, WARPS_N> {
    typedef Fragments<PM, PN, WARPS_N> Base;
    static constexpr int MI = Base::MI, NI = Base::NI;
    template <class S> DEV u32 at(const float *tile, int row, int k) {
        return to_tf32(tile[S::LINES_ARE_INNER ? k * S::PITCH + row : row * S::PITCH + k]);
    }
    MEMBER void step(const float *sa, const float *sb) {
        const int lane = threadIdx.x & 31, group = lane / 4, pair = lane % 4;
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            u32 a[MI][4], b[NI][2];
            #pragma unroll
            for (int i = 0; i < MI; ++i) {
                const int m = Base::row0() + i * 16 + group;
                a[i][0] = at<A>(sa, m, k + pair);
                a[i][1] = at<A>(sa, m + 8, k + pair);
                a[i][2] = at<A>(sa, m, k + pair + 4);
                a[i][3] = at<A>(sa, m + 8, k + pair + 4);
            }
            #pragma unroll
            for (int j = 0; j < NI; ++j) {
                const int n = Base::col0() + j * 8 + group;
                b[j][0] = at<B>(sb, n, k + pair);
                b[j][1] = at<B>(sb, n, k + pair + 4);
            }
            #pragma unroll
            for (int i = 0; i < MI; ++i)
                #pragma unroll
                for (int j = 0; j < NI; ++j) mma_tf32(this->d[i][j], a[i], b[j]);
        }
    }
};
