// Sorting. An item is the sort key of an element with its position in the row: no two are equal, so that any sorting
// network is stable. A 32-bit key and its position are one 64-bit word.
struct LongItem { u64 key; u32 position; };
DEV bool item_before(u64 a, u64 b) { return a < b; }
DEV bool item_before(LongItem a, LongItem b) { return a.key < b.key || (a.key == b.key && a.position < b.position); }
DEV u32 item_position(u64 x) { return (u32)x; }
DEV u32 item_position(LongItem x) { return x.position; }
DEV u64 item_address(u64 x) { return x >> 32; }
DEV u64 item_address(LongItem x) { return x.key; }
DEV bool is_last(u64 x) { return x == ~0ULL; }
DEV bool is_last(LongItem x) { return x.key == ~0ULL && x.position == ~0u; }

// An item after every element.
DEV void last_item(u64 &x) { x = ~0ULL; }
DEV void last_item(LongItem &x) { x.key = ~0ULL; x.position = ~0u; }

// The items of other lanes: of the one whose number differs in the bits of `mask`, and of one. The bytes behind a position stay.
DEV u64 item_xor(u64 x, int mask) { return shuffle_xor(x, mask); }
DEV LongItem item_xor(LongItem x, int mask) { return {shuffle_xor(x.key, mask), shuffle_xor(x.position, mask)}; }
DEV u64 item_of_lane(u64 x, int lane) { return shuffle(x, lane); }
DEV LongItem item_of_lane(LongItem x, int lane) { return {shuffle(x.key, lane), shuffle(x.position, lane)}; }

// Unsigned numbers in the order of the values: zeros are equal, NaN comes last.
DEV u32 sort_key(float x) {
    if (x != x) return ~0u;
    u32 bits = x == 0.0f ? 0u : as_bits(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEV u64 sort_key(double x) {
    if (x != x) return ~0ULL;
    u64 bits = x == 0.0 ? 0ULL : (u64)as_bits(x);
    return bits >> 63 ? ~bits : bits | (1ULL << 63);
}
DEV u32 sort_key(bf16 x) { return sort_key(widen(x)); }
DEV u32 sort_key(f16 x) { return sort_key(widen(x)); }
DEV u64 sort_key(i64 x) { return (u64)x ^ (1ULL << 63); }
DEV u32 sort_key(i32 x) { return (u32)x ^ 0x80000000u; }
DEV u32 sort_key(i16 x) { return sort_key((i32)x); }
DEV u32 sort_key(i8 x) { return sort_key((i32)x); }
DEV u32 sort_key(u8 x) { return x; }
DEV void make_item(u64 &item, u32 key, u32 position) { item = (u64)key << 32 | position; }
DEV void make_item(LongItem &item, u64 key, u32 position) { item.key = key; item.position = position; }
template <bool DESCENDING, class I, class T> DEV I sort_item(T x, u32 position) {
    auto key = sort_key(x);
    if (DESCENDING) key = ~key;
    I item;
    make_item(item, key, position);
    return item;
}

// The passes of a bitonic network over the EACH adjacent items of each thread from `first` on, for runs of `k` items of rows of N, whose
// pairs are `top` apart and less: by registers of other lanes, then by the thread's own.
template <int N, int EACH, class I> DEV void wave_passes(I (&x)[EACH], int first, int k, int top) {
    #pragma unroll 1
    for (int j = top; j >= EACH; j >>= 1) {
        const bool lower = (first & j) == 0;
        #pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const bool up = ((first + e) & (N - 1) & k) == 0;
            const I other = item_xor(x[e], j / EACH);
            if (lower == up ? item_before(other, x[e]) : item_before(x[e], other)) x[e] = other;
        }
    }
    #pragma unroll
    for (int j = EACH / 2; j > 0; j >>= 1) {
        if (j > top) continue;
        #pragma unroll
        for (int e = 0; e < EACH; ++e) {
            if (e & j) continue;
            const bool up = ((first + e) & (N - 1) & k) == 0;
            const I a = x[e], b = x[e + j];
            if (item_before(b, a) == up) {
                x[e] = b;
                x[e + j] = a;
            }
        }
    }
}

// Sorts each row of N adjacent items (a power of two) among ALL in shared memory by a bitonic network. Only pairs that are further
// apart than a wave's items pass through shared memory.
template <int N, int ALL, int THREADS, class I> DEV void block_sort(I *items) {
    constexpr int EACH = ALL / THREADS, OWN = EACH * WAVE;
    const int first = (int)threadIdx.x * EACH;
    I x[EACH];
    block_sync();
    #pragma unroll
    for (int e = 0; e < EACH; ++e) x[e] = items[first + e];
    #pragma unroll 1
    for (int k = 2; k <= N && k <= OWN; k <<= 1) wave_passes<N, EACH>(x, first, k, k / 2);
    #pragma unroll 1
    for (int k = 2 * OWN; k <= N; k <<= 1) {
        #pragma unroll
        for (int e = 0; e < EACH; ++e) items[first + e] = x[e];
        #pragma unroll 1
        for (int j = k / 2; j >= OWN; j >>= 1) {
            block_sync();
            for (int t = threadIdx.x; t < ALL / 2; t += THREADS) {
                int i = 2 * t - (t & (j - 1));
                bool up = (i & (N - 1) & k) == 0;
                I a = items[i], b = items[i + j];
                if (item_before(b, a) == up) {
                    items[i] = b;
                    items[i + j] = a;
                }
            }
        }
        block_sync();
        #pragma unroll
        for (int e = 0; e < EACH; ++e) x[e] = items[first + e];
        wave_passes<N, EACH>(x, first, k, OWN / 2);
    }
    #pragma unroll
    for (int e = 0; e < EACH; ++e) items[first + e] = x[e];
    block_sync();
}

// The earlier of the items of two lanes whose numbers differ in the bit `j`, or the later one.
template <class I> DEV I exchanged(I x, int j, bool earlier) {
    const I other = item_xor(x, j);
    return item_before(other, x) == earlier ? other : x;
}

// Sorts one item of each lane, the last first, by a bitonic network.
template <class I> DEV I wave_sorted_down(I x) {
    const int lane = threadIdx.x & (WAVE - 1);
    #pragma unroll
    for (int k = 2; k <= WAVE; k <<= 1) {
        #pragma unroll
        for (int j = k / 2; j > 0; j >>= 1) x = exchanged(x, j, ((lane & j) == 0) == ((lane & k) != 0));
    }
    return x;
}

// The first K of the items that a wave is given, in order: number e * WAVE + l is `best[e]` of lane l. Items before the K-th of these
// wait in the wave's ROOM items of shared memory until there is one for every lane. All lanes call the functions together.
template <int K, class I> struct Selection {
    static constexpr int EACH = K <= WAVE ? 1 : K <= 2 * WAVE ? 2 : 4;
    static constexpr int ROOM = (EACH < 2 ? 2 : EACH) * WAVE;
    I best[EACH], limit;
    I *room;
    // How many items came to wait, and how many of them have left, by whole waves.
    u32 came, left;

    MEMBER void begin(I *shared) {
        room = shared;
        came = left = 0;
        last_item(limit);
        #pragma unroll
        for (int e = 0; e < EACH; ++e) last_item(best[e]);
    }

    MEMBER void give(I item) {
        const bool waits = item_before(item, limit);
        const u64 all = wave_ballot(waits);
        if (all == 0) return;
        const int lane = threadIdx.x & (WAVE - 1);
        if (waits) room[(came + count_bits(all & ((1ULL << lane) - 1))) & (2 * WAVE - 1)] = item;
        came += count_bits(all);
        if (came - left >= WAVE) take();
    }

    // Every item was given.
    MEMBER void end() {
        if (came != left) take();
    }

    // Merges what waits, at most an item for each lane. Of an ascending and a descending sequence the earlier at each place are the
    // first half of both, as a bitonic sequence; items of one lane each stand at the end of the kept ones.
    MEMBER void take() {
        const u32 at = left + (threadIdx.x & (WAVE - 1));
        I x;
        last_item(x);
        wave_sync();
        if (at < came) x = room[at & (2 * WAVE - 1)];
        wave_sync();
        left = came - left < WAVE ? came : left + WAVE;
        x = wave_sorted_down(x);
        if (item_before(x, best[EACH - 1])) best[EACH - 1] = x;
        settle();
        limit = item_of_lane(best[(K - 1) / WAVE], (K - 1) % WAVE);
    }

    // Sorts the kept items, which are a bitonic sequence.
    MEMBER void settle() {
        const int lane = threadIdx.x & (WAVE - 1);
        #pragma unroll
        for (int j = EACH / 2; j > 0; j >>= 1) {
            #pragma unroll
            for (int e = 0; e < EACH; ++e) {
                if (e & j) continue;
                const I a = best[e], b = best[e + j];
                if (item_before(b, a)) {
                    best[e] = b;
                    best[e + j] = a;
                }
            }
        }
        #pragma unroll
        for (int j = WAVE / 2; j > 0; j >>= 1) {
            #pragma unroll
            for (int e = 0; e < EACH; ++e) best[e] = exchanged(best[e], j, (lane & j) == 0);
        }
    }

    // The first of PARTS adjacent waves gets what all of them kept. Their rooms are adjacent and used by nothing else until the block
    // has passed another barrier.
    template <int PARTS> MEMBER void join(int part) {
        const int lane = threadIdx.x & (WAVE - 1);
        wave_sync();
        #pragma unroll 1
        for (int other = PARTS / 2; other > 0; other >>= 1) {
            if (part >= other && part < 2 * other) {
                #pragma unroll
                for (int e = 0; e < EACH; ++e) room[e * WAVE + lane] = best[e];
            }
            block_sync();
            if (part >= other) continue;
            const I *theirs = room + other * ROOM;
            #pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const I x = theirs[(EACH - e) * WAVE - 1 - lane];
                if (item_before(x, best[e])) best[e] = x;
            }
            settle();
        }
    }
};

// Returns how many of the first `diagonal` items of the merged sequence come from `a` (merge path).
template <class X, class I> DEV X merge_path(const I *a, X na, const I *b, X nb, X diagonal) {
    X low = diagonal > nb ? diagonal - nb : 0, high = diagonal < na ? diagonal : na;
    while (low < high) {
        X mid = (low + high) / 2;
        if (item_before(b[diagonal - 1 - mid], a[mid])) high = mid;
        else low = mid + 1;
    }
    return low;
}

// Merges the two runs of `width` items, in a row of `length`, that contain the tile at `start`; writes the tile's items. A
// tile never spans more than two runs: `width` is a multiple of TILE.
template <int TILE, int THREADS, class X, class I>
DEV void merge_tile(const I *from, I *to, X length, X width, X start, I *shared, X *bounds) {
    constexpr int EACH = TILE / THREADS;
    X base = start / (2 * width) * (2 * width);
    X na = imin<X>(width, length - base), nb = imin<X>(width, length - base - na);
    const I *a = from + base, *b = a + na;
    X first = start - base, last = imin<X>(first + TILE, na + nb);
    if (threadIdx.x < 2) bounds[threadIdx.x] = merge_path<X>(a, na, b, nb, threadIdx.x ? last : first);
    block_sync();
    X a0 = bounds[0], a1 = bounds[1], b0 = first - a0, b1 = last - a1;
    int ta = (int)(a1 - a0), tb = (int)(b1 - b0);
    for (int t = threadIdx.x; t < ta + tb; t += THREADS) shared[t] = t < ta ? a[a0 + t] : b[b0 + t - ta];
    block_sync();
    int at = imin<int>((int)threadIdx.x * EACH, ta + tb);
    int i = merge_path<int>(shared, ta, shared + ta, tb, at), j = at - i;
    for (int e = 0; e < EACH && at + e < ta + tb; ++e) {
        bool second = i >= ta || (j < tb && item_before(shared[ta + j], shared[i]));
        to[start + at + e] = second ? shared[ta + j++] : shared[i++];
    }
    block_sync();
}
