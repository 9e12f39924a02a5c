// How a block brings the tiles of two factors into shared memory: by copies that run beside the computation, in a pipeline of stages.
//
// In shared memory a line is what lies together in global memory where WIDTH elements are copied at once, and a line is 16 bytes longer
// than what is in it, which is how ldmatrix and 16-byte reads of several lines stay clear of each other's banks.

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
