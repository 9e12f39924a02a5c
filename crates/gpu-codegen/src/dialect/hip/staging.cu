// How a block brings the tiles of two factors into the local data share: from global memory into registers before a tile is
// multiplied, from there to the tile behind that, so that nothing waits for memory. Every tile lies by its rows, inner points
// together, so that a lane of a matrix core reads 16 bytes at once; where memory lies along the rows it is turned on its way. A
// row is 16 bytes longer than what is in it: eight rows side by side are in different banks (32 of 4 bytes).

// MODE: chunks of WIDTH elements along the inner dimension or along rows, or single elements, the block's threads running along
// either.
template <class T, int ROWS, int DEPTH, int WIDTH, int MODE, int THREADS> struct Tile {
    static constexpr bool SINGLE = MODE == SINGLE_INNER || MODE == SINGLE_ROWS, LINES_ARE_INNER = false;
    static constexpr int PITCH = DEPTH + 16 / (int)sizeof(T), BYTES = ROWS * PITCH * (int)sizeof(T);
    // Inner points of a chunk along rows that a thread takes, so that it stores 4 bytes at once.
    static constexpr int DEEP = MODE == ALONG_ROWS && sizeof(T) == 2 ? 2 : 1;
    // Pieces that lie one behind the other, and those of the whole tile; how often all threads take one.
    static constexpr int WIDE = MODE == ALONG_INNER ? DEPTH / WIDTH : MODE == ALONG_ROWS ? DEPTH / DEEP : MODE == SINGLE_INNER ? DEPTH : ROWS;
    static constexpr int PIECES = SINGLE ? ROWS * DEPTH : MODE == ALONG_INNER ? ROWS * DEPTH / WIDTH : ROWS / WIDTH * DEPTH / DEEP;
    static constexpr int STEP = THREADS / WIDE, TURNS = (PIECES + THREADS - 1) / THREADS;
    static_assert(THREADS % WIDE == 0, "threads do not divide into lines");
};

// The copies of one thread: `fill` starts them, `land` ends them.
template <class Shape, class T, class S, int ROWS, int DEPTH, int WIDTH, int MODE, int THREADS> struct Filler {
    static constexpr int DEEP = Shape::DEEP, TURNS = Shape::TURNS, WIDE = Shape::WIDE, STEP = Shape::STEP;
    static constexpr bool OVER_ROWS = MODE == ALONG_INNER || MODE == ALONG_ROWS;
    typedef Vec<T, WIDTH> Chunk;
    S kept[OVER_ROWS ? TURNS : 1];
    Chunk held[TURNS][DEEP];
    // Whether the thread has a piece in this turn.
    DEV bool has(int i) { return Shape::PIECES % THREADS == 0 || (int)threadIdx.x + i * THREADS < Shape::PIECES; }
    // The row of a piece in a turn.
    DEV int row_of(int i) {
        const int high = (int)threadIdx.x / WIDE + i * STEP;
        return MODE == ALONG_ROWS ? high * WIDTH : high;
    }
    template <class Row> MEMBER void begin(i64 row0, Row row) {
        if constexpr (OVER_ROWS) {
            #pragma unroll
            for (int i = 0; i < TURNS; ++i) kept[i] = row(row0 + row_of(i));
        } else if constexpr (MODE == SINGLE_ROWS) kept[0] = row(row0 + (int)threadIdx.x % WIDE);
    }
    DEV Chunk read(const T *base, S m, S k, bool in) {
        Chunk x = {};
        if (in) x = *(const Chunk *)(base + m.at + k.at);
        return x;
    }
    // Starts to bring inner points from `k0` on.
    template <class Row, class Inner, class Inside>
    MEMBER void fill(const T *base, i64 row0, i64 k0, Row row, Inner inner, Inside inside) {
        const int tid = threadIdx.x;
        if constexpr (OVER_ROWS) {
            #pragma unroll
            for (int d = 0; d < DEEP; ++d) {
                const S k = inner(k0 + (MODE == ALONG_INNER ? tid % WIDE * WIDTH : tid % WIDE * DEEP + d));
                #pragma unroll
                for (int i = 0; i < TURNS; ++i) held[i][d] = read(base, kept[i], k, has(i) && inside(kept[i], k));
            }
        } else if constexpr (MODE == SINGLE_INNER) {
            const S k = inner(k0 + tid % WIDE);
            #pragma unroll
            for (int i = 0; i < TURNS; ++i) {
                const S m = row(row0 + row_of(i));
                held[i][0] = read(base, m, k, has(i) && inside(m, k));
            }
        } else {
            #pragma unroll
            for (int i = 0; i < TURNS; ++i) {
                const S k = inner(k0 + row_of(i));
                held[i][0] = read(base, kept[0], k, has(i) && inside(kept[0], k));
            }
        }
    }
    // Stores what was brought to the tile.
    MEMBER void land(T *to) const {
        const int tid = threadIdx.x;
        #pragma unroll
        for (int i = 0; i < TURNS; ++i) {
            if (!has(i)) break;
            if constexpr (MODE == ALONG_INNER) *(Chunk *)(to + row_of(i) * Shape::PITCH + tid % WIDE * WIDTH) = held[i][0];
            else if constexpr (MODE == ALONG_ROWS) {
                #pragma unroll
                for (int w = 0; w < WIDTH; ++w) {
                    Vec<T, DEEP> x;
                    #pragma unroll
                    for (int d = 0; d < DEEP; ++d) x.v[d] = held[i][d].v[w];
                    *(Vec<T, DEEP> *)(to + (row_of(i) + w) * Shape::PITCH + tid % WIDE * DEEP) = x;
                }
            } else if constexpr (MODE == SINGLE_INNER) to[row_of(i) * Shape::PITCH + tid % WIDE] = held[i][0].v[0];
            else to[tid % WIDE * Shape::PITCH + row_of(i)] = held[i][0].v[0];
        }
    }
};

// Rows of attention, COUNT of ELEMENTS 16-bit numbers each: a thread takes eight numbers of two rows at a time, which land as they are,
// or turned: inner points are then the rows.
template <class T, int COUNT, int ELEMENTS, int THREADS> struct RowFiller {
    static constexpr int CHUNKS = ELEMENTS / 8, PIECES = COUNT / 2 * CHUNKS, TURNS = (PIECES + THREADS - 1) / THREADS;
    typedef Vec<T, 8> Chunk;
    Chunk held[TURNS][2];
    DEV int piece(int i) { return (int)threadIdx.x + i * THREADS; }
    DEV bool has(int i) { return PIECES % THREADS == 0 || piece(i) < PIECES; }
    // `at(row, element)`: where eight numbers of a row are, null where they are 0.
    template <class At> MEMBER void take(At at) {
        #pragma unroll
        for (int i = 0; i < TURNS; ++i)
            #pragma unroll
            for (int d = 0; d < 2; ++d) {
                const T *from = has(i) ? at(piece(i) / CHUNKS * 2 + d, piece(i) % CHUNKS * 8) : 0;
                held[i][d] = {};
                if (from) held[i][d] = *(const Chunk *)from;
            }
    }
    template <int PITCH> MEMBER void plain(T *to) const {
        #pragma unroll
        for (int i = 0; i < TURNS; ++i)
            #pragma unroll
            for (int d = 0; d < 2; ++d)
                if (has(i)) *(Chunk *)(to + (piece(i) / CHUNKS * 2 + d) * PITCH + piece(i) % CHUNKS * 8) = held[i][d];
    }
    MEMBER void turned(T *to) const {
        #pragma unroll
        for (int i = 0; i < TURNS; ++i)
            #pragma unroll
            for (int w = 0; w < 8; ++w) {
                const Vec<T, 2> both = {{held[i][0].v[w], held[i][1].v[w]}};
                if (has(i)) *(Vec<T, 2> *)(to + turned_place<COUNT>(piece(i) % CHUNKS * 8 + w, piece(i) / CHUNKS * 2)) = both;
            }
    }
};
