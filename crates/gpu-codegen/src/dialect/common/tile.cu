// Tiles of matrix products: how a block copies parts of two operands to shared memory and multiplies them. The generated
// kernel provides the addresses of elements (lambdas `row`, `inner`, `inside`), so that a convolution is the same product
// with other addresses. Included after the instructions.
//
// An operand's tile has ROWS rows (of A: m; of B: n) and DEPTH inner points (k). In shared memory a line contains what is
// contiguous in global memory where WIDTH elements are copied at once. Lines are padded by 16 bytes, which avoids bank
// conflicts of ldmatrix and of 16-byte reads of several lines.

enum { ALONG_INNER, ALONG_ROWS, SINGLE_INNER, SINGLE_ROWS };

// What a row or an inner point adds to an address, and to the spatial coordinates that must be within the input.
template <class I, int SPATIAL> struct Spot { I at; bool in; i32 x[SPATIAL ? SPATIAL : 1]; };

// MODE: vectors of WIDTH elements along the inner dimension or along rows, by cp.async; or single elements, with the
// block's threads along either. Single elements are stored as in ALONG_INNER.
template <class T, int ROWS, int DEPTH, int WIDTH, int MODE, int THREADS> struct Tile {
    static constexpr bool SINGLE = MODE == SINGLE_INNER || MODE == SINGLE_ROWS;
    static constexpr bool LINES_ARE_INNER = MODE == ALONG_ROWS;
    static constexpr int LINE = LINES_ARE_INNER ? ROWS : DEPTH, LINES = LINES_ARE_INNER ? DEPTH : ROWS;
    static constexpr int PITCH = LINE + 16 / (int)sizeof(T);
    static constexpr int BYTES = LINES * PITCH * (int)sizeof(T);
    static constexpr int CHUNKS = LINE / WIDTH;
    // Lines that the block copies at once, and the number of repetitions. A block may have more threads than a tile has
    // vectors.
    static constexpr int STEP = THREADS / CHUNKS, TURNS = (LINES + STEP - 1) / STEP;
    static_assert(SINGLE ? THREADS % ROWS == 0 && THREADS % DEPTH == 0 : THREADS % CHUNKS == 0, "threads do not divide into lines");

    DEV void copy_or_zero(T *to, const T *from, bool in) {
        if constexpr (WIDTH * sizeof(T) == 16) cp_async_16(to, from, in ? 16 : 0);
        else if constexpr (WIDTH * sizeof(T) == 8) cp_async_8(to, from, in ? 8 : 0);
        else cp_async_4(to, from, in ? 4 : 0);
    }
};

// The copies of one thread. `rows` are kept for the whole product; `inner` is evaluated for each tile.
template <class Shape, class T, class S, int ROWS, int DEPTH, int WIDTH, int MODE, int THREADS> struct Filler {
    static constexpr int KEPT = MODE == ALONG_INNER ? Shape::TURNS : 1;
    S kept[KEPT];
    template <class Row> MEMBER void begin(i64 row0, Row row) {
        const int tid = threadIdx.x;
        if constexpr (MODE == ALONG_INNER) {
            #pragma unroll
            for (int i = 0; i < Shape::TURNS; ++i) kept[i] = row(row0 + tid / Shape::CHUNKS + i * Shape::STEP);
        } else if constexpr (MODE == ALONG_ROWS) kept[0] = row(row0 + tid % Shape::CHUNKS * WIDTH);
        else if constexpr (MODE == SINGLE_ROWS) kept[0] = row(row0 + tid % ROWS);
    }
    // Copies inner points from `k0` on to `to`.
    template <class Row, class Inner, class Inside>
    MEMBER void fill(T *to, const T *base, i64 row0, i64 k0, Row row, Inner inner, Inside inside) const {
        const int tid = threadIdx.x;
        if constexpr (MODE == ALONG_INNER) {
            const int chunk = tid % Shape::CHUNKS * WIDTH, line = tid / Shape::CHUNKS;
            const S k = inner(k0 + chunk);
            #pragma unroll
            for (int i = 0; i < Shape::TURNS; ++i) {
                if (Shape::LINES % Shape::STEP != 0 && line + i * Shape::STEP >= Shape::LINES) break;
                const bool in = inside(kept[i], k);
                Shape::copy_or_zero(to + (line + i * Shape::STEP) * Shape::PITCH + chunk, in ? base + kept[i].at + k.at : base, in);
            }
        } else if constexpr (MODE == ALONG_ROWS) {
            const int chunk = tid % Shape::CHUNKS * WIDTH, line = tid / Shape::CHUNKS;
            #pragma unroll
            for (int i = 0; i < Shape::TURNS; ++i) {
                if (Shape::LINES % Shape::STEP != 0 && line + i * Shape::STEP >= Shape::LINES) break;
                const S k = inner(k0 + line + i * Shape::STEP);
                const bool in = inside(kept[0], k);
                Shape::copy_or_zero(to + (line + i * Shape::STEP) * Shape::PITCH + chunk, in ? base + kept[0].at + k.at : base, in);
            }
        } else if constexpr (MODE == SINGLE_INNER) {
            const S k = inner(k0 + tid % DEPTH);
            #pragma unroll 8
            for (int r = tid / DEPTH; r < ROWS; r += THREADS / DEPTH) {
                const S m = row(row0 + r);
                single(to + r * Shape::PITCH + tid % DEPTH, base, m, k, inside(m, k));
            }
        } else {
            #pragma unroll 8
            for (int q = tid / ROWS; q < DEPTH; q += THREADS / ROWS) {
                const S k = inner(k0 + q);
                single(to + tid % ROWS * Shape::PITCH + q, base, kept[0], k, inside(kept[0], k));
            }
        }
    }
    DEV void single(T *to, const T *base, S m, S k, bool in) {
        T x = {};
        if (in) x = base[m.at + k.at];
        *to = x;
    }
};

// float32 by fused multiply-adds of 16 x 16 threads, each of which has BM / 16 rows and BN / 16 columns. A warp is 4 rows
// of 8 threads, so that it reads few distinct words of shared memory at once.
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
    // The index of a thread's row (or column) `i`: groups of four adjacent ones where the tile's lines run along rows.
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

// ---- the sum of a product whose inner dimension several blocks split

// N adjacent sums (one, or a multiple of four) at `p` of the tile `sums`, added in the order of the blocks.
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
