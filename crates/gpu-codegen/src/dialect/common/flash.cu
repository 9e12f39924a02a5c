// Attention and its gradients by the copy engine and `wgmma` (wgmma.cu), of 16-bit numbers; included behind those.
//
// A block has a tile of rows of its own, 64 to each warpgroup that multiplies, and goes over tiles of the far side, which one
// more warp brings through a ring of stages. Scores stay in registers, where they become the left factors of what follows.
// In the gradients of queries the own side is queries with cotangents of results, the far one keys with values; in those of
// keys and values it is the other way round, and scores are transposed.

DEV u32 pack_halves(Tag<bf16>, float low, float high) { return pack_bf16(low, high); }
DEV u32 pack_halves(Tag<f16>, float low, float high) { return pack_f16(low, high); }
DEV float flash_half(Tag<bf16>, u32 both, int high) { return as_float(high ? both & 0xffff0000u : both << 16); }
DEV float flash_half(Tag<f16>, u32 both, int high) { return widen(bits_as<f16>((u16)(both >> 16 * high))); }

// The logarithm of a row's sum in base 2; of a row that sees nothing: what makes its weights 0.
DEV float flash_exponent(float sum) { return sum == -INF32 ? INF32 : sum * 1.4426950408889634f; }

// A tile of ROWS rows of up to ELEMENTS numbers as the copy engine leaves it: panels of 64 numbers, a line of 128 bytes for
// each row. What a row does not have is 0.
template <class T, int ROWS_, int ELEMENTS> struct Panels {
    static constexpr int ROWS = ROWS_, COUNT = (ELEMENTS + 63) / 64, WIDTH = COUNT * 64;
    static constexpr int PANEL = ROWS * 128, BYTES = COUNT * PANEL, STEPS = (ELEMENTS + 15) / 16;
    // Brings a tile: `load(to, bar, element)`, a box of 64 elements each.
    template <class Load> DEV void fill(u8 *to, u64 *bar, Load load) {
        #pragma unroll
        for (int p = 0; p < COUNT; ++p) load(to + p * PANEL, bar, p * 64);
    }
};

// Starts d = rows · tileᵀ, of the warpgroup's 64 rows of a tile.
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

// What a product of N columns left as left factors of the next one.
template <class T, int N> DEV void flash_factors(u32 (&a)[N / 16][4], const float (&d)[N / 2]) {
    #pragma unroll
    for (int s = 0; s < N / 16; ++s)
        #pragma unroll
        for (int r = 0; r < 4; ++r) a[s][r] = pack_halves(Tag<T>(), d[8 * s + 2 * r], d[8 * s + 2 * r + 1]);
}
template <int N> DEV void flash_clear(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) d[i] = 0.0f;
}

// The barriers of a block: those of the own tile and of each stage, full and empty.
template <int STAGES> struct FlashBarriers {
    static constexpr int BYTES = (2 + 2 * STAGES) * 8;
    u64 *own_full, *own_empty, *full, *empty;
    MEMBER FlashBarriers(u8 *at) {
        own_full = (u64 *)at;
        own_empty = own_full + 1;
        full = own_empty + 1;
        empty = full + STAGES;
    }
    // `brings` arrivals make a stage full, one of each of `warps` makes it empty.
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

    // One thread brings a block's tiles in the order in which they are read: the keys of a turn before the values of the
    // turn before it. `load_q(to, bar, element)`, `load_k(to, bar, element, turn)`.
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
    // Brings a tile to the next stage, once that is empty.
    template <class Tile, class Load> MEMBER void bring_tile(int turn, Load load) {
        u64 *full = bars.full + at.stage;
        mbarrier_wait(bars.empty + at.stage, at.phase ^ 1);
        mbarrier_expect(full, Tile::BYTES);
        Tile::fill(memory + Q::BYTES + at.stage * STAGE, full, [&](u8 *to, u64 *bar, int e) { load(to, bar, e, turn); });
        at.next();
    }
    // The next stage, once it is full; its number goes to `which`.
    MEMBER const u8 *filled(int &which) {
        mbarrier_wait(bars.full + at.stage, at.phase);
        which = at.stage;
        at.next();
        return memory + Q::BYTES + which * STAGE;
    }

    // What a thread has of two rows: results, the largest score and the sum of weights, in units of the factor's exponents of 2.
    float out[V::WIDTH / 2], most[2], total[2];

    // Scores become weights; gives by how much what was added up before shrinks. `factor` takes a score to an exponent of 2,
    // and is more than 0.
    MEMBER void soften(float (&score)[KEYS / 2], float factor, float (&shrink)[2]) {
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = -INF32;
            #pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) top = fmaxf(top, fmaxf(score[4 * n + 2 * r], score[4 * n + 2 * r + 1]));
            top = fmaxf(top, shuffle_xor(top, 1));
            top = fmaxf(fmaxf(top, shuffle_xor(top, 2)) * factor, most[r]);
            const float shift = top == -INF32 ? 0.0f : top;
            shrink[r] = exp2_flushed(most[r] - shift);
            most[r] = top;
            float sum = 0.0f;
            #pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = score[4 * n + 2 * r + e];
                    x = exp2_flushed(fmaf(x, factor, -shift));
                    sum += x;
                }
            total[r] = total[r] * shrink[r] + sum;
        }
    }

    // The turns of a warpgroup. `look(score, turn)` masks and, where `factor` is 1, scales.
    template <class Look> MEMBER void turns(int count, float factor, Look look) {
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
            wgmma_wait<0>();
            wgmma_settle(score);
            mbarrier_arrive<1>(bars.empty + keys);
            look(score, 0);
            soften(score, factor, shrink);
            flash_factors<T, KEYS>(weights, score);
        }
        for (int turn = 1; turn < count; ++turn) {
            // What the turn before left in it is not kept.
            float score[KEYS / 2];
            tile = filled(keys);
            const u8 *next = filled(values);
            wgmma_fence();
            flash_scores<T, Q, K>(score, rows, tile);
            wgmma_fence();
            flash_product<T, V>(out, weights, next);
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
            flash_factors<T, KEYS>(weights, score);
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

// SPARING: where registers do not hold scores beside cotangents of weights, these are multiplied after those have become
// weights, which are then read back as they were rounded.
template <class T, int SIDE, int OWN, int FAR, int DEPTH, int WIDTH, int STAGES_, bool SPARING> struct FlashGradient {
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
    // Of each far row: the logarithm of its sum in base 2, and the sum of cotangents.
    MEMBER float *numbers(int stage) const { return (float *)(memory + RING) + stage * NUMBERS; }

    // One warp brings a block's tiles, and with queries two numbers of each. `load1(to, bar, element, turn)`,
    // `number(which, row, turn)`.
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

    // What a thread has of two rows of gradients: to keys or queries, and to values.
    float grad1[Own1::WIDTH / 2], grad2[SIDE == QUERIES ? 1 : Own2::WIDTH / 2];
    // Of these rows, where they are queries: what a far row has among its numbers.
    float sums[2], deltas[2];

    // The far row of a number of a thread's scores.
    DEV int column(int i) { return i / 4 * 8 + (int)(threadIdx.x & 3) * 2 + (i & 1); }
    // Scores become weights.
    MEMBER void weigh(float (&score)[FAR / 2], float factor, const float *number) const {
        #pragma unroll
        for (int i = 0; i < FAR / 2; ++i) {
            const float sum = SIDE == QUERIES ? sums[i >> 1 & 1] : number[column(i)];
            score[i] = exp2_flushed(fmaf(score[i], factor, -sum));
        }
    }
    // Cotangents of weights become those of scores.
    MEMBER void turn_back(const float (&weight)[FAR / 2], const u32 (&rounded)[FAR / 16][4], float (&grad)[FAR / 2], const float *number) const {
        #pragma unroll
        for (int i = 0; i < FAR / 2; ++i) {
            const float delta = SIDE == QUERIES ? deltas[i >> 1 & 1] : number[FAR + column(i)];
            grad[i] = (SPARING ? flash_half(Tag<T>(), rounded[i / 8][i % 8 / 2], i & 1) : weight[i]) * (grad[i] - delta);
        }
    }

    // A turn: its last product is still under way when the next one begins, which gives back the stage.
    template <class Look> MEMBER void turn(int number, float factor, Look look) {
        // What the turn before left in these is not kept.
        float score[FAR / 2], grad[FAR / 2];
        u32 weights[FAR / 16][4], factors[FAR / 16][4];
        const int here = at.stage, before = (here + STAGES - 1) % STAGES;
        const u8 *rows = memory + warpgroup() * 64 * 128, *far = tile(here);
        mbarrier_wait(bars.full + here, at.phase);
        wgmma_fence();
        flash_scores<T, Own1, Far1>(score, rows, far);
        if constexpr (!SPARING) flash_scores<T, Own2, Far2>(grad, rows + Own1::BYTES, far + Far1::BYTES);
        wgmma_wait<SPARING ? 0 : 1>();
        wgmma_settle(score);
        if (number > 0) mbarrier_arrive<1>(bars.empty + before);
        look(score, number);
        weigh(score, factor, numbers(here));
        if constexpr (SIDE != QUERIES || SPARING) flash_factors<T, FAR>(weights, score);
        if constexpr (SPARING) {
            wgmma_fence();
            flash_scores<T, Own2, Far2>(grad, rows + Own1::BYTES, far + Far1::BYTES);
        }
        if constexpr (SIDE != QUERIES) {
            wgmma_fence();
            flash_product<T, Far2>(grad2, weights, far + Far1::BYTES);
        }
        wgmma_wait<SIDE == QUERIES ? 0 : 1>();
        wgmma_settle(grad);
        turn_back(score, weights, grad, numbers(here));
        flash_factors<T, FAR>(factors, grad);
        wgmma_fence();
        flash_product<T, Far1>(grad1, factors, far);
        at.next();
    }

    // The turns of a warpgroup. `look(score, turn)` masks and, where `factor` is 1, scales.
    template <class Look> MEMBER void turns(int count, float factor, Look look) {
        flash_clear(grad1);
        flash_clear(grad2);
        mbarrier_wait(bars.own_full, own);
        #pragma unroll 1
        for (int n = 0; n < count; ++n) turn(n, factor, look);
        wgmma_wait<0>();
        wgmma_settle(grad1);
        wgmma_settle(grad2);
        if (count > 0) mbarrier_arrive<1>(bars.empty + (at.stage + STAGES - 1) % STAGES);
        mbarrier_arrive<1>(bars.own_empty);
        own ^= 1;
    }
};
