// Products of tiles by matrix cores.

// The product of a wave: PM x PN of the block's tile, in fragments as large as they divide into. What is computed leaves through a
// tile of sums that holds one fragment of every wave, SLABS times.
template <class T, class A, class B, int PM, int PN, int WARPS_M, int WARPS_N, int DEPTH> struct CoreProduct {
#if defined(MFMA)
    static constexpr int M = PM % 32 == 0 && PN % 32 == 0 ? 32 : 16;
#else
    static constexpr int M = 16;
#endif
    typedef Core<T, M> C;
    typedef typename C::E E;
    static constexpr int MI = PM / M, NI = PN / M, SLABS = MI * NI, HIGH = WARPS_M * M, BROAD = WARPS_N * M;
    static_assert(DEPTH % C::K == 0, "a tile is of whole fragments");
    typename C::Sums d[MI][NI];
    MEMBER void clear() {
        #pragma unroll
        for (int i = 0; i < MI; ++i)
            #pragma unroll
            for (int j = 0; j < NI; ++j) d[i][j] = typename C::Sums{};
    }
    DEV int warp() { return (int)threadIdx.x / WAVE; }
    DEV int lane() { return (int)threadIdx.x % WAVE; }
    template <class S, int N> DEV void load(typename C::Held (&x)[N], const E *tile, int row, int k) {
        #pragma unroll
        for (int i = 0; i < N; ++i) x[i] = C::row_at(tile + (row + i * M + lane() % M) * S::PITCH + k, lane());
    }
    // Fragments of the next inner points are on their way while the present ones are multiplied. Results are turned: a lane
    // then has neighbouring columns of a row, which it stores at once.
    MEMBER void step(const E *sa, const E *sb) {
        const int row = warp() / WARPS_N * PM, column = warp() % WARPS_N * PN;
        typename C::Held a[2][MI], b[2][NI];
        load<A>(a[0], sa, row, 0);
        load<B>(b[0], sb, column, 0);
        #pragma unroll
        for (int s = 0; s < DEPTH / C::K; ++s) {
            if (s + 1 < DEPTH / C::K) {
                load<A>(a[(s + 1) & 1], sa, row, (s + 1) * C::K);
                load<B>(b[(s + 1) & 1], sb, column, (s + 1) * C::K);
            }
            #pragma unroll
            for (int i = 0; i < MI; ++i)
                #pragma unroll
                for (int j = 0; j < NI; ++j) C::run(d[i][j], b[s & 1][j], a[s & 1][i]);
        }
    }
    // Where a row and a column of slab `n` are in the block's tile.
    DEV int slab_row(int n, int r) { return r / M * PM + n / NI * M + r % M; }
    DEV int slab_column(int n, int c) { return c / M * PN + n % NI * M + c % M; }
    template <int PITCH> MEMBER void store_slab(float *out, int n) const {
        float *at = out + (warp() / WARPS_N * M + lane() % M) * PITCH + warp() % WARPS_N * M;
        #pragma unroll
        for (int i = 0; i < MI; ++i)
            #pragma unroll
            for (int j = 0; j < NI; ++j) {
                if (i * NI + j != n) continue;
                #pragma unroll
                for (int e = 0; e < C::PARTS; e += C::RUN) {
                    Vec<float, C::RUN> x;
                    #pragma unroll
                    for (int u = 0; u < C::RUN; ++u) x.v[u] = d[i][j][e + u];
                    *(Vec<float, C::RUN> *)(at + C::row(lane(), e)) = x;
                }
            }
    }
};
