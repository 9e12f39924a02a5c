// 16-bit attention and its gradients by TMA and `wgmma` (wgmma.cu); included after those.
//
// A block has a tile of rows of its own, 64 per consumer warpgroup, and streams tiles of the other side, which an extra
// producer warp copies to a ring buffer. Scores stay in registers, where they become the left operands of the next
// products. For the gradients of queries the block's own side is queries with cotangents of results, and keys with values
// are streamed; for those of keys and values it is vice versa, and scores are transposed.

DEV u32 pack_halves(Tag<bf16>, float low, float high) { return pack_bf16(low, high); }
DEV u32 pack_halves(Tag<f16>, float low, float high) { return pack_f16(low, high); }
DEV float flash_half(Tag<bf16>, u32 both, int high) { return as_float(high ? both & 0xffff0000u : both << 16); }
DEV float flash_half(Tag<f16>, u32 both, int high) { return widen(bits_as<f16>((u16)(both >> 16 * high))); }

// The base-2 logarithm of a row's sum. For a row without visible keys it is a value that makes its weights 0.
DEV float flash_exponent(float sum) { return sum == -INF32 ? INF32 : sum * 1.4426950408889634f; }

// A tile of ROWS rows of up to ELEMENTS numbers as TMA stores it: panels of 64 numbers, with a line of 128 bytes per row.
// Missing elements of a row are 0.
template <class T, int ROWS_, int ELEMENTS> struct Panels {
    static constexpr int ROWS = ROWS_, COUNT = (ELEMENTS + 63) / 64, WIDTH = COUNT * 64;
    static constexpr int PANEL = ROWS * 128, BYTES = COUNT * PANEL, STEPS = (ELEMENTS + 15) / 16;
    // Copies a tile by `load(to, bar, element)`, a box of 64 elements each.
    template <class Load> DEV void fill(u8 *to, u64 *bar, Load load) {
        #pragma unroll
        for (int p = 0; p < COUNT; ++p) load(to + p * PANEL, bar, p * 64);
    }
};

// Starts d = rows · tileᵀ for the warpgroup's 64 rows of a tile.
template <class T, class A, class B> DEV void flash_scores(float (&d)[B::ROWS / 2], const u8 *rows, const u8 *tile) {
    const auto a = wgmma_operand<A::PANEL>(rows), b = wgmma_operand<B::PANEL>(tile);
    #pragma unroll
    for (int s = 0; s < A::STEPS; ++s)
        Wgmma<T, B::ROWS>::template run<K_MAJOR, K_MAJOR>(d, wgmma_advance(a, s / 4 * A::PANEL + s % 4 * 32),
            wgmma_advance(b, s / 4 * B::PANEL + s % 4 * 32), s > 0);
    wgmma_commit();
}

// Starts d += weights · tile.
template <class T, class B> DEV void flash_product(float (&d)[B::WIDTH / 2], const u32 (&weights)[B::ROWS / 16][4], const u8 *tile) {
    const auto b = wgmma_operand<B::PANEL>(tile);
    #pragma unroll
    for (int s = 0; s < B::ROWS / 16; ++s)
        WgmmaHeld<T, B::WIDTH>::template run<MN_MAJOR>(d, weights[s], wgmma_advance(b, s * 16 * 128), true);
    wgmma_commit();
}

// Converts the result of a product with N columns to the left operand of the next one. Elements for which `kept(i)` is false become 0.
template <class T, int N, class Kept> DEV void flash_factors(u32 (&a)[N / 16][4], const float (&d)[N / 2], Kept kept) {
    #pragma unroll
    for (int s = 0; s < N / 16; ++s)
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int i = 8 * s + 2 * r;
            a[s][r] = pack_halves(Tag<T>(), kept(i) ? d[i] : 0.0f, kept(i + 1) ? d[i + 1] : 0.0f);
        }
}
template <class T, int N> DEV void flash_factors(u32 (&a)[N / 16][4], const float (&d)[N / 2]) {
    flash_factors<T, N>(a, d, [](int) { return true; });
}
// The same of a left operand.
template <int N, class Kept> DEV void flash_drop(u32 (&a)[N / 16][4], Kept kept) {
    #pragma unroll
    for (int s = 0; s < N / 16; ++s)
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int i = 8 * s + 2 * r;
            a[s][r] &= (kept(i) ? 0xffffu : 0u) | (kept(i + 1) ? 0xffff0000u : 0u);
        }
}
template <int N> DEV void flash_clear(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) d[i] = 0.0f;
}

// The largest of a warp's scores in row `r` of a thread's two.
template <int KEYS> DEV float flash_top(const float (&score)[KEYS / 2], int r) {
    float top = -INF32;
    #pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) top = fmaxf(top, fmaxf(score[4 * n + 2 * r], score[4 * n + 2 * r + 1]));
    top = fmaxf(top, shuffle_xor(top, 1));
    return fmaxf(top, shuffle_xor(top, 2));
}

// Converts the thread's scores in that row to weights, and returns their sum. `shift` is subtracted from the exponents.
template <int KEYS> DEV float flash_weigh(float (&score)[KEYS / 2], int r, float factor, float shift) {
    float sum = 0.0f;
    #pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
        #pragma unroll
        for (int e = 0; e < 2; ++e) {
            float &x = score[4 * n + 2 * r + e];
            x = exp2_flushed(fmaf(x, factor, -shift));
            sum += x;
        }
    return sum;
}

// The barriers of a block: one of its own tile, and a full and an empty one per stage.
template <int STAGES> struct FlashBarriers {
    static constexpr int BYTES = (2 + 2 * STAGES) * 8;
    u64 *own_full, *own_empty, *full, *empty;
    MEMBER FlashBarriers(u8 *at) {
        own_full = (u64 *)at;
        own_empty = own_full + 1;
        full = own_empty + 1;
        empty = full + STAGES;
    }
    // `brings` arrivals fill a stage; one arrival of each of `warps` empties it.
    MEMBER void begin(int brings, int warps) const {
        if (threadIdx.x == 0) {
            mbarrier_init(own_full, 1);
            mbarrier_init(own_empty, warps);
            for (int stage = 0; stage < STAGES; ++stage) {
                mbarrier_init(full + stage, brings);
                mbarrier_init(empty + stage, warps);
            }
            mbarrier_publish();
        }
        block_sync();
    }
};

// The bits from `first` to before `end`, of which any may be outside of a word.
DEV u32 bits_between(int first, int end) {
    const u32 below = end >= 32 ? ~0u : end <= 0 ? 0u : (1u << end) - 1u;
    return first <= 0 ? below : first >= 32 ? 0u : below & ~0u << first;
}

// The tiles, of PER blocks of 64 streamed rows each, in which a mask shows some score, line after line. A bit of
// `shown(line, word)` says that it shows some of a block, a bit of `whole(line, word)` that it shows all of it unchanged.
template <int PER, class Shown, class Whole> struct ShownTiles {
    static_assert(PER == 1 || PER == 2, "tiles are of one or two blocks");
    Shown shown;
    Whole whole;
    int lines, first, end, line = 0, word, bit = 0, turn = -1;
    u32 left = 0, all = 0;
    MEMBER ShownTiles(Shown shown, Whole whole, int lines, int first, int end)
        : shown(shown), whole(whole), lines(lines), first(first), end(end), word(first - 1) {}
    // A bit for each tile, that of its first block.
    MEMBER u32 tiles(int line, int word) const {
        const u32 blocks = shown(line, word);
        return PER == 2 ? (blocks | blocks >> 1) & 0x55555555u : blocks;
    }
    MEMBER int count() const {
        int n = 0;
        for (int line = 0; line < lines; ++line)
            for (int word = first; word < end; ++word) n += count_bits(tiles(line, word));
        return n;
    }
    // The tile of iteration `wanted`, which is never before the one that was asked for last. Without any, the first tile.
    MEMBER int at(int wanted) {
        for (; turn < wanted; ++turn) {
            while (left == 0) {
                if (++word >= end) {
                    word = first;
                    if (++line >= lines) {
                        line = bit = 0;
                        all = 0;
                        turn = wanted;
                        return first * 32 / PER;
                    }
                }
                left = tiles(line, word);
                all = whole(line, word);
            }
            bit = lowest_bit(left);
            left &= left - 1;
        }
        return (word * 32 + bit) / PER;
    }
    // Whether the tile that was asked for last is shown whole.
    MEMBER bool is_whole() const { return PER == 2 ? (all >> bit & 3u) == 3u : (all >> bit & 1u) != 0; }
};

// ---- forward: a block's ROWS queries over tiles of KEYS keys and their values
template <class T, int ROWS, int KEYS, int DEPTH, int WIDTH, int STAGES_> struct FlashForward {
    typedef Panels<T, ROWS, DEPTH> Q;
    typedef Panels<T, KEYS, DEPTH> K;
    typedef Panels<T, KEYS, WIDTH> V;
    static constexpr int STAGES = STAGES_, CONSUMERS = ROWS / 64;
    static constexpr int STAGE = K::BYTES > V::BYTES ? K::BYTES : V::BYTES, RING = Q::BYTES + STAGES * STAGE;
    static constexpr int BYTES = RING + FlashBarriers<STAGES>::BYTES;
    u8 *memory;
    FlashBarriers<STAGES> bars;
    Ring<STAGES> at;
    u32 own = 0;
    MEMBER FlashForward(u8 *memory) : memory(memory), bars(memory + RING) { bars.begin(1, CONSUMERS * 4); }

    // One thread issues the copies of a block's tiles in the order in which they are read: the keys of an iteration before
    // the values of the previous one. `load_q(to, bar, element)`, `load_k(to, bar, element, turn)`.
    template <class LoadQ, class LoadK, class LoadV> MEMBER void bring(int turns, LoadQ load_q, LoadK load_k, LoadV load_v) {
        mbarrier_wait(bars.own_empty, own ^ 1);
        mbarrier_expect(bars.own_full, Q::BYTES);
        Q::fill(memory, bars.own_full, load_q);
        own ^= 1;
        for (int turn = 0; turn <= turns; ++turn) {
            if (turn < turns) bring_tile<K>(turn, load_k);
            if (turn > 0) bring_tile<V>(turn - 1, load_v);
        }
    }
    // Copies a tile to the next stage, once that is empty.
    template <class Tile, class Load> MEMBER void bring_tile(int turn, Load load) {
        u64 *full = bars.full + at.stage;
        mbarrier_wait(bars.empty + at.stage, at.phase ^ 1);
        mbarrier_expect(full, Tile::BYTES);
        Tile::fill(memory + Q::BYTES + at.stage * STAGE, full, [&](u8 *to, u64 *bar, int e) { load(to, bar, e, turn); });
        at.next();
    }
    // Returns the next stage, once it is full, and its number in `which`.
    MEMBER const u8 *filled(int &which) {
        mbarrier_wait(bars.full + at.stage, at.phase);
        which = at.stage;
        at.next();
        return memory + Q::BYTES + which * STAGE;
    }

    // A thread's state of two rows: results, the largest score and the sum of weights, in units of the factor's exponents
    // of 2.
    float out[V::WIDTH / 2], most[2], total[2];

    // Element `i` of the results.
    MEMBER float result(int i) const { return out[i]; }

    // Converts scores to weights, and returns the factor by which earlier sums shrink. `factor` converts a score to an
    // exponent of 2, and is positive.
    MEMBER void soften(float (&score)[KEYS / 2], float factor, float (&shrink)[2]) {
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float top = fmaxf(flash_top<KEYS>(score, r) * factor, most[r]), shift = top == -INF32 ? 0.0f : top;
            shrink[r] = exp2_flushed(most[r] - shift);
            most[r] = top;
            total[r] = total[r] * shrink[r] + flash_weigh<KEYS>(score, r, factor, shift);
        }
    }

    // The loop of a warpgroup. `look(score, turn)` masks and, where `factor` is 1, scales. `words(turn)` reads which weights dropout keeps,
    // as `kept(i)` says of element `i`; the sums have all weights.
    template <class Look, class Words, class Kept>
    MEMBER void turns(int count, float factor, Look look, Words words, Kept kept) {
        float shrink[2];
        u32 weights[KEYS / 16][4];
        int keys, values;
        const u8 *rows = memory + warpgroup() * 64 * 128;
        flash_clear(out);
        most[0] = most[1] = -INF32;
        total[0] = total[1] = 0.0f;
        mbarrier_wait(bars.own_full, own);
        const u8 *tile = filled(keys);
        {
            float score[KEYS / 2];
            wgmma_fence();
            flash_scores<T, Q, K>(score, rows, tile);
            words(0);
            wgmma_wait<0>();
            wgmma_settle(score);
            mbarrier_arrive<1>(bars.empty + keys);
            look(score, 0);
            soften(score, factor, shrink);
            flash_factors<T, KEYS>(weights, score, kept);
        }
        for (int turn = 1; turn < count; ++turn) {
            // The values of the previous iteration are not kept.
            float score[KEYS / 2];
            tile = filled(keys);
            const u8 *next = filled(values);
            wgmma_fence();
            flash_scores<T, Q, K>(score, rows, tile);
            wgmma_fence();
            flash_product<T, V>(out, weights, next);
            words(turn);
            wgmma_wait<1>();
            wgmma_settle(score);
            mbarrier_arrive<1>(bars.empty + keys);
            look(score, turn);
            soften(score, factor, shrink);
            wgmma_wait<0>();
            wgmma_settle(out);
            mbarrier_arrive<1>(bars.empty + values);
            #pragma unroll
            for (int i = 0; i < V::WIDTH / 2; ++i) out[i] *= shrink[i >> 1 & 1];
            flash_factors<T, KEYS>(weights, score, kept);
        }
        mbarrier_arrive<1>(bars.own_empty);
        own ^= 1;
        tile = filled(values);
        wgmma_fence();
        flash_product<T, V>(out, weights, tile);
        wgmma_wait<0>();
        wgmma_settle(out);
        mbarrier_arrive<1>(bars.empty + values);
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += shuffle_xor(total[r], 1);
            total[r] += shuffle_xor(total[r], 2);
        }
    }
};

// ---- gradients: a block's OWN rows over tiles of FAR rows
enum { QUERIES, KEYS_AND_VALUES };

// SPARING: where registers cannot hold scores and cotangents of weights at once, the cotangents are computed after the
// weights were stored in 16 bits, and the weights are read back as they were rounded. DROPS: with dropout.
template <class T, int SIDE, int OWN, int FAR, int DEPTH, int WIDTH, int STAGES_, bool SPARING, bool DROPS> struct FlashGradient {
    typedef Panels<T, OWN, DEPTH> Own1;
    typedef Panels<T, OWN, WIDTH> Own2;
    typedef Panels<T, FAR, DEPTH> Far1;
    typedef Panels<T, FAR, WIDTH> Far2;
    static constexpr int STAGES = STAGES_, CONSUMERS = OWN / 64, OWN_BYTES = Own1::BYTES + Own2::BYTES;
    static constexpr int STAGE = Far1::BYTES + Far2::BYTES, NUMBERS = SIDE == QUERIES ? 0 : 2 * FAR;
    static constexpr int RING = OWN_BYTES + STAGES * STAGE, BYTES = RING + STAGES * NUMBERS * 4 + FlashBarriers<STAGES>::BYTES;
    u8 *memory;
    FlashBarriers<STAGES> bars;
    Ring<STAGES> at;
    u32 own = 0;
    MEMBER FlashGradient(u8 *memory) : memory(memory), bars(memory + RING + STAGES * NUMBERS * 4) {
        bars.begin(SIDE == QUERIES ? 1 : 2, CONSUMERS * 4);
    }
    MEMBER u8 *tile(int stage) const { return memory + OWN_BYTES + stage * STAGE; }
    // For each streamed row: the base-2 logarithm of its sum, and the sum of cotangents.
    MEMBER float *numbers(int stage) const { return (float *)(memory + RING) + stage * NUMBERS; }

    // One warp issues the copies of a block's tiles and, with queries, of two numbers per row. `load1(to, bar, element,
    // turn)`, `number(which, row, turn)`.
    template <class LoadOwn1, class LoadOwn2, class Load1, class Load2, class Number>
    MEMBER void bring(int turns, LoadOwn1 load_own1, LoadOwn2 load_own2, Load1 load1, Load2 load2, Number number) {
        const int lane = threadIdx.x & 31;
        mbarrier_wait(bars.own_empty, own ^ 1);
        if (lane == 0) {
            mbarrier_expect(bars.own_full, OWN_BYTES);
            Own1::fill(memory, bars.own_full, load_own1);
            Own2::fill(memory + Own1::BYTES, bars.own_full, load_own2);
        }
        own ^= 1;
        for (int turn = 0; turn < turns; ++turn) {
            u64 *full = bars.full + at.stage;
            mbarrier_wait(bars.empty + at.stage, at.phase ^ 1);
            if (lane == 0) {
                u8 *to = tile(at.stage);
                mbarrier_expect(full, STAGE);
                Far1::fill(to, full, [&](u8 *to, u64 *bar, int e) { load1(to, bar, e, turn); });
                Far2::fill(to + Far1::BYTES, full, [&](u8 *to, u64 *bar, int e) { load2(to, bar, e, turn); });
            }
            if constexpr (SIDE != QUERIES) {
                float *to = numbers(at.stage);
                #pragma unroll
                for (int n = 0; n < NUMBERS / 32; ++n) {
                    const int i = n * 32 + lane;
                    to[i] = number(i / FAR, i % FAR, turn);
                }
                wave_sync();
                mbarrier_arrive<1>(full);
            }
            at.next();
        }
    }

    // A thread's gradients of two rows: of keys or queries, and of values.
    float grad1[Own1::WIDTH / 2], grad2[SIDE == QUERIES ? 1 : Own2::WIDTH / 2];
    // The logarithms and sums of these rows, where they are queries.
    float sums[2], deltas[2];

    // The streamed row of element `i` of a thread's scores.
    DEV int column(int i) { return i / 4 * 8 + (int)(threadIdx.x & 3) * 2 + (i & 1); }
    // Converts scores to weights.
    MEMBER void weigh(float (&score)[FAR / 2], float factor, const float *number) const {
        #pragma unroll
        for (int i = 0; i < FAR / 2; ++i) {
            const float sum = SIDE == QUERIES ? sums[i >> 1 & 1] : number[column(i)];
            score[i] = exp2_flushed(fmaf(score[i], factor, -sum));
        }
    }
    // Converts cotangents of weights to those of scores. Those of weights that dropout keeps are multiplied by `kept_factor`, the others 0.
    template <class Kept>
    MEMBER void turn_back(const float (&weight)[FAR / 2], const u32 (&rounded)[FAR / 16][4], float (&grad)[FAR / 2], const float *number,
                          float kept_factor, Kept kept) const {
        #pragma unroll
        for (int i = 0; i < FAR / 2; ++i) {
            const float delta = SIDE == QUERIES ? deltas[i >> 1 & 1] : number[FAR + column(i)];
            const float cotangent = DROPS ? fmaf(kept(i) ? grad[i] : 0.0f, kept_factor, -delta) : grad[i] - delta;
            grad[i] = (SPARING ? flash_half(Tag<T>(), rounded[i / 8][i % 8 / 2], i & 1) : weight[i]) * cotangent;
        }
    }

    // An iteration: its last product is still in flight when the next one begins, which releases the stage.
    template <class Look, class Words, class Kept>
    MEMBER void turn(int number, float factor, float kept_factor, Look look, Words words, Kept kept) {
        // The values of the previous iteration are not kept.
        float score[FAR / 2], grad[FAR / 2];
        u32 weights[FAR / 16][4], factors[FAR / 16][4];
        const int here = at.stage, before = (here + STAGES - 1) % STAGES;
        const u8 *rows = memory + warpgroup() * 64 * 128, *far = tile(here);
        mbarrier_wait(bars.full + here, at.phase);
        wgmma_fence();
        flash_scores<T, Own1, Far1>(score, rows, far);
        if constexpr (!SPARING) flash_scores<T, Own2, Far2>(grad, rows + Own1::BYTES, far + Far1::BYTES);
        words(number);
        wgmma_wait<SPARING ? 0 : 1>();
        wgmma_settle(score);
        if (number > 0) mbarrier_arrive<1>(bars.empty + before);
        look(score, number);
        weigh(score, factor, numbers(here));
        // Weights that are read back are dropped behind that, and the product of them waits.
        constexpr bool LATE = SPARING && DROPS;
        if constexpr (LATE) flash_factors<T, FAR>(weights, score);
        else if constexpr (SIDE != QUERIES || SPARING) flash_factors<T, FAR>(weights, score, kept);
        if constexpr (SPARING) {
            wgmma_fence();
            flash_scores<T, Own2, Far2>(grad, rows + Own1::BYTES, far + Far1::BYTES);
        }
        if constexpr (SIDE != QUERIES && !LATE) {
            wgmma_fence();
            flash_product<T, Far2>(grad2, weights, far + Far1::BYTES);
        }
        wgmma_wait<SIDE == QUERIES || LATE ? 0 : 1>();
        wgmma_settle(grad);
        turn_back(score, weights, grad, numbers(here), kept_factor, kept);
        flash_factors<T, FAR>(factors, grad);
        if constexpr (LATE) flash_drop<FAR>(weights, kept);
        wgmma_fence();
        if constexpr (SIDE != QUERIES && LATE) flash_product<T, Far2>(grad2, weights, far + Far1::BYTES);
        flash_product<T, Far1>(grad1, factors, far);
        at.next();
    }

    // The loop of a warpgroup. `look(score, turn)` masks and, where `factor` is 1, scales. `words(turn)` reads which weights dropout keeps,
    // as `kept(i)` says of element `i`, times `kept_factor`, which the caller multiplies the gradient of values by.
    template <class Look, class Words, class Kept>
    MEMBER void turns(int count, float factor, float kept_factor, Look look, Words words, Kept kept) {
        flash_clear(grad1);
        flash_clear(grad2);
        mbarrier_wait(bars.own_full, own);
        #pragma unroll 1
        for (int n = 0; n < count; ++n) turn(n, factor, kept_factor, look, words, kept);
        wgmma_wait<0>();
        wgmma_settle(grad1);
        wgmma_settle(grad2);
        if (count > 0) mbarrier_arrive<1>(bars.empty + (at.stage + STAGES - 1) % STAGES);
        mbarrier_arrive<1>(bars.own_empty);
        own ^= 1;
    }
};
