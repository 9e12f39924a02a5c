// Helpers of products by warpgroups, above the instructions: a ring buffer of stages, tiles, the registers of the result.

DEV int warpgroup() { return shuffle((int)(threadIdx.x >> 7), 0); }

// The barriers of a ring: a stage is full when its bytes have arrived, and empty when every warp of the consumer
// warpgroups of all blocks that share it has released it. Behind those of the stages is one for what
// a block copies for its epilogue.
template <int STAGES, int CONSUMERS, int SHARE>
DEV void bulk_begin(u64 *full, u64 *empty, const TensorMap &a, const TensorMap &b) {
    if (threadIdx.x == 0) {
        tma_prefetch(a);
        tma_prefetch(b);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full + stage, 1);
            mbarrier_init(empty + stage, CONSUMERS * 4 * SHARE);
        }
        mbarrier_init(empty + STAGES, 1);
        mbarrier_publish();
    }
    block_sync();
    if constexpr (SHARE > 1) cluster_sync();
}

// Shared memory must live until no other block copies to it.
template <int SHARE> DEV void bulk_end() {
    if constexpr (SHARE > 1) {
        wave_sync();
        cluster_sync();
    }
}

// The position of one role in the ring.
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

// ---- an operand's tile of ROWS rows, one stage of the pipeline: 128 bytes of inner points
template <class T, int ROWS, int MAJOR> struct BulkTile {
    static constexpr int LAYOUT = MAJOR;
    static constexpr int DEPTH = 128 / (int)sizeof(T), BYTES = ROWS * 128;
    // The distances between blocks of 64 rows, between rows, and between inner points within a block.
    static constexpr int BLOCK = DEPTH * 128, ROW = 128;
    static_assert(MAJOR == K_MAJOR ? ROWS % 8 == 0 : ROWS % 64 == 0, "a tile is of whole blocks");
    DEV int place(int row, int k) { return MAJOR == K_MAJOR ? row * 128 + k * (int)sizeof(T) : row / 64 * BLOCK + k * 128; }
    // Copies the tile of rows from `row` and inner points from `k` by `load(to, bar, row, k)`, a box each. SHARE blocks of
    // the cluster copy a part each, for all of them.
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

// N neighbouring elements of a tensor's tile that was copied for the epilogue, in strips of 128 bytes of all ROWS rows.
template <class T, int ROWS, int N> DEV Vec<T, N> fetched(const u8 *tile, int row, int col) {
    constexpr int LINE = 128 / (int)sizeof(T), BYTES = N * (int)sizeof(T), PIECE = BYTES < 16 ? BYTES : 16, WIDTH = PIECE / (int)sizeof(T);
    const u8 *line = tile + col / LINE * (ROWS * 128) + row * 128;
    const int at = col % LINE * (int)sizeof(T);
    Vec<T, N> x;
    #pragma unroll
    for (int i = 0; i < BYTES; i += PIECE) {
        const Vec<T, WIDTH> piece = *(const Vec<T, WIDTH> *)(line + ((at + i) ^ (row & 7) * 16));
        #pragma unroll
        for (int w = 0; w < WIDTH; ++w) x.v[i / (int)sizeof(T) + w] = piece.v[w];
    }
    return x;
}

// The product of a warpgroup: PM rows of A's tile by all BN rows of B's. The rows begin at PM times the warpgroup's number.
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
    // Starts the products of a stage; with `more` they are accumulated.
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
    // The position of a column within a row of a slab of 64 columns, in groups of 8: adjacent rows use different banks.
    DEV int slab(int row, int col) { return row * 64 + (col ^ (row & 7) * 8); }
    // Stores columns 64 * part to 64 * part + 63 of the warp's 16 rows of block `i` to a slab. Both are compared with
    // constants, since registers have no addresses.
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
    // Stores everything to the block's tile.
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
