// Products of tiles without matrix cores, and the sums of a tile that several blocks share.

// float32 by fused multiply-adds of 16 x 16 threads, each of which has BM / 16 rows and BN / 16 columns. A warp is 4 rows
// of 8 threads, so that what it reads of shared memory at once is few words, each for many.
template <class A, class B, int BM, int BN, int DEPTH> struct PlainProduct {
    static constexpr int TM = BM / 16, TN = BN / 16;
    float d[TM][TN];
    MEMBER void clear() {
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TN; ++j) d[i][j] = 0.0f;
    }
    DEV int ty() { return (int)(threadIdx.x >> 6) * 4 + (int)(threadIdx.x >> 3 & 3); }
    DEV int tx() { return (int)(threadIdx.x >> 5 & 1) * 8 + (int)(threadIdx.x & 7); }
    // The row (or column) number `i` of a thread: neighbours in fours where the tile's lines run along rows.
    template <class S, int N> DEV int place(int thread, int i) {
        constexpr int Q = N < 4 ? N : 4;
        return S::LINES_ARE_INNER ? i / Q * (16 * Q) + thread * Q + i % Q : thread + 16 * i;
    }
    // x[q][i]: inner points k to k + 3 of a thread's rows.
    template <class S, int N> DEV void load(float (&x)[4][N], const float *tile, int thread, int k) {
        constexpr int Q = N < 4 ? N : 4;
        if constexpr (S::LINES_ARE_INNER) {
            #pragma unroll
            for (int q = 0; q < 4; ++q)
                #pragma unroll
                for (int i = 0; i < N; i += Q) {
                    const Vec<float, Q> v = *(const Vec<float, Q> *)(tile + (k + q) * S::PITCH + place<S, N>(thread, i));
                    #pragma unroll
                    for (int u = 0; u < Q; ++u) x[q][i + u] = v.v[u];
                }
        } else {
            #pragma unroll
            for (int i = 0; i < N; ++i) {
                const Vec<float, 4> v = *(const Vec<float, 4> *)(tile + place<S, N>(thread, i) * S::PITCH + k);
                #pragma unroll
                for (int q = 0; q < 4; ++q) x[q][i] = v.v[q];
            }
        }
    }
    MEMBER void step(const float *sa, const float *sb) {
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 4) {
            float x[4][TM], y[4][TN];
            load<A, TM>(x, sa, ty(), k);
            load<B, TN>(y, sb, tx(), k);
            #pragma unroll
            for (int q = 0; q < 4; ++q)
                #pragma unroll
                for (int i = 0; i < TM; ++i)
                    #pragma unroll
                    for (int j = 0; j < TN; ++j) d[i][j] = fmaf(x[q][i], y[q][j], d[i][j]);
        }
    }
    template <int PITCH> MEMBER void store(float *out) const {
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TN; ++j) out[place<A, TM>(ty(), i) * PITCH + place<B, TN>(tx(), j)] = d[i][j];
    }
};

// ---- the sum of a product that several blocks share

// N neighbouring sums (one, or a multiple of four) at `p` of the tile `sums`, added up in the order of the blocks.
template <int N, int PARTS, int FLOATS> DEV void tile_result(float (&r)[N], const float *sums, const float *p) {
    constexpr int W = N < 4 ? 1 : 4;
    #pragma unroll
    for (int u = 0; u < N; u += W) {
        Vec<float, W> part[PARTS];
        #pragma unroll
        for (int s = 0; s < PARTS; ++s) {
            if constexpr (PARTS == 1) part[s] = *(const Vec<float, W> *)(p + u);
            else part[s] = cluster_load<W, PARTS, FLOATS>(sums, p + u, s);
        }
        #pragma unroll
        for (int w = 0; w < W; ++w) {
            r[u + w] = part[0].v[w];
            #pragma unroll
            for (int s = 1; s < PARTS; ++s) r[u + w] += part[s].v[w];
        }
    }
}
