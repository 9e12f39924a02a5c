// Tiles of matrix products: how a block brings the parts of two operands into shared memory and multiplies them. The
// generated kernel says how an element's address is found (lambdas `row`, `inner`, `inside`), so that a convolution is
// the same product with another address; included behind the prelude and the tensor cores.
//
// An operand's tile has ROWS rows (of A: m; of B: n) and DEPTH inner points (k). In shared memory a line is what lies
// together in global memory where WIDTH elements are copied at once, and a line is 16 bytes longer than what is in it,
// which is how ldmatrix and 16-byte reads of several lines stay clear of each other's banks.

// A function of an object: `DEV` is static.
#define MEMBER __device__ __forceinline__

enum { ALONG_INNER, ALONG_ROWS, SINGLE_INNER, SINGLE_ROWS };

// What a row or an inner point adds to an address, and to the spatial coordinates that must lie within the input.
template <class I, int SPATIAL> struct Spot { I at; bool in; i32 x[SPATIAL ? SPATIAL : 1]; };

// MODE: chunks of WIDTH elements along the inner dimension or along rows, by cp.async; or single elements, the block's
// threads running along either. Single elements lie as ALONG_INNER does.
template <class T, int ROWS, int DEPTH, int WIDTH, int MODE, int THREADS> struct Tile {
    static constexpr bool SINGLE = MODE == SINGLE_INNER || MODE == SINGLE_ROWS;
    static constexpr bool LINES_ARE_INNER = MODE == ALONG_ROWS;
    static constexpr int LINE = LINES_ARE_INNER ? ROWS : DEPTH, LINES = LINES_ARE_INNER ? DEPTH : ROWS;
    static constexpr int PITCH = LINE + 16 / (int)sizeof(T);
    static constexpr int BYTES = LINES * PITCH * (int)sizeof(T);
    static constexpr int CHUNKS = LINE / WIDTH;
    // Lines that the block copies at once, and how often it does. A block may have more threads than a tile has chunks.
    static constexpr int STEP = THREADS / CHUNKS, TURNS = (LINES + STEP - 1) / STEP;
    static_assert(SINGLE ? THREADS % ROWS == 0 && THREADS % DEPTH == 0 : THREADS % CHUNKS == 0, "threads do not divide into lines");

    DEV void copy_or_zero(T *to, const T *from, bool in) {
        if constexpr (WIDTH * sizeof(T) == 16) cp_async_16(to, from, in ? 16 : 0);
        else if constexpr (WIDTH * sizeof(T) == 8) cp_async_8(to, from, in ? 8 : 0);
        else cp_async_4(to, from, in ? 4 : 0);
    }
};

// The copies of one thread. `rows` are kept for the whole product; `inner` is asked anew for each tile.
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

// ---- products of tiles. A warp's part is PM x PN of the block's BM x BN; `out` is a row-major float32 tile.
template <class T> struct MmaOf;
template <> struct MmaOf<bf16> { DEV void run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_bf16(d, a, b); } };
template <> struct MmaOf<f16> { DEV void run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_f16(d, a, b); } };

// The fragments' accumulators: what both tensor-core products share.
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
    // Fragments of the next 16 inner points are on their way while the present ones are multiplied.
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
// Blocks of a cluster along y, not before sm_90: each has its part in its own shared memory and finishes as many rows.
// Emulated blocks run one after another: the last one finishes all rows from copies of the parts.
#ifndef FFX_EMULATED
DEV void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// All parts are there; false where others finish the tile.
template <int PARTS, int FLOATS> DEV bool cluster_share(const float *) { cluster_sync(); return true; }
// What a block has in shared memory lives until all have read it.
DEV void cluster_end() { cluster_sync(); }
DEV int cluster_row(int high) { return (int)blockIdx.y * high; }
DEV int cluster_rows(int high, int) { return high; }
// The vector (one or four) at the same place of the shared memory of block `rank` of the cluster.
template <int W, int PARTS, int FLOATS> DEV Vec<float, W> cluster_load(const float *, const float *p, int rank) {
    Vec<float, W> x = {};
#if __CUDA_ARCH__ >= 900
    u32 at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
    if constexpr (W == 1) asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x.v[0]) : "r"(at) : "memory");
    else
        asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
            : "=f"(x.v[0]), "=f"(x.v[1]), "=f"(x.v[2]), "=f"(x.v[3]) : "r"(at) : "memory");
#endif
    return x;
}
#else
#define __cluster_dims__(x, y, z)
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
#endif
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
