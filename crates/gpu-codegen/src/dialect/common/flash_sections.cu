// 16-bit attention with long rows by TMA and `wgmma` (wgmma.cu); included after flash.cu.
//
// A block has 64 queries and a section of the columns of the result, of which each of two consumer warpgroups accumulates a
// half. Each computes the scores of half of a tile's keys. They exchange the largest scores of their rows, then the weights,
// which a thread needs exactly as the thread with its number in the other warpgroup has them. Queries stay in shared memory;
// keys and values come in panels of 64 columns, so a stage's size does not depend on the lengths of rows.

// A stage is two panels of all KEYS rows: of keys two neighbouring ones, of values one of each warpgroup's half. A half of the
// section has PANELS panels.
template <class T, int DEPTH, int PANELS, int STAGES> struct FlashSections {
    static constexpr int KEYS = 128, HALF = KEYS / 2, WARPS = 8;
    typedef Panels<T, 64, DEPTH> Q;
    static constexpr int PANEL = KEYS * 128, STAGE = 2 * PANEL, KEY_STAGES = (Q::COUNT + 1) / 2;
    // The weights and, of each warpgroup's rows, the largest score and the sum.
    static constexpr int WEIGHTS = 2 * 64 * HALF * 2, NUMBERS = 2 * 2 * 64 * 4;
    u8 *memory;
    FlashBarriers<STAGES> bars;
    Ring<STAGES> at;
    u32 own = 0;
    MEMBER FlashSections(u8 *memory) : memory(memory), bars(memory + Q::BYTES + STAGES * STAGE + WEIGHTS + NUMBERS) { bars.begin(1, WARPS); }

    // One thread issues the copies of a block's tiles. `column` is the section's first one. `load_q(to, bar, element)`,
    // `load_k(to, bar, element, turn)`.
    template <class LoadQ, class LoadK, class LoadV> MEMBER void bring(int turns, int column, LoadQ load_q, LoadK load_k, LoadV load_v) {
        mbarrier_wait(bars.own_empty, own ^ 1);
        mbarrier_expect(bars.own_full, Q::BYTES);
        Q::fill(memory, bars.own_full, load_q);
        own ^= 1;
        for (int turn = 0; turn < turns; ++turn) {
            for (int s = 0; s < KEY_STAGES; ++s) {
                const bool both = 2 * s + 1 < Q::COUNT;
                u8 *to = emptied(both ? STAGE : PANEL);
                load_k(to, bars.full + at.stage, s * 128, turn);
                if (both) load_k(to + PANEL, bars.full + at.stage, s * 128 + 64, turn);
                at.next();
            }
            for (int p = 0; p < PANELS; ++p) {
                u8 *to = emptied(STAGE);
                load_v(to, bars.full + at.stage, column + p * 64, turn);
                load_v(to + PANEL, bars.full + at.stage, column + (PANELS + p) * 64, turn);
                at.next();
            }
        }
    }
    MEMBER u8 *stage() const { return memory + Q::BYTES + at.stage * STAGE; }
    // The next stage, once it is empty; it awaits this many bytes.
    MEMBER u8 *emptied(int bytes) {
        mbarrier_wait(bars.empty + at.stage, at.phase ^ 1);
        mbarrier_expect(bars.full + at.stage, bytes);
        return stage();
    }
    // Waits for all but the latest PENDING products, then releases the stage that was read `before` the next one.
    template <int PENDING> MEMBER void release(int before) {
        wgmma_wait<PENDING>();
        mbarrier_arrive<1>(bars.empty + (at.stage + STAGES - before) % STAGES);
    }

    // A thread's state of two rows, as that of `FlashForward`.
    float out[PANELS][32], most[2], total[2];
    MEMBER float result(int i) const { return out[i / 32][i % 32]; }

    // Computes the scores of the warpgroup's half of a tile.
    MEMBER void scores(float (&score)[HALF / 2], int half) {
        const auto a = wgmma_operand<Q::PANEL>(memory);
        #pragma unroll
        for (int s = 0; s < KEY_STAGES; ++s) {
            mbarrier_wait(bars.full + at.stage, at.phase);
            const auto b = wgmma_operand<PANEL>(stage() + half * HALF * 128);
            wgmma_fence();
            #pragma unroll
            for (int k = 0; k < 8; ++k)
                if (s * 8 + k < Q::STEPS)
                    Wgmma<T, HALF>::template run<K_MAJOR, K_MAJOR>(score, wgmma_advance(a, (2 * s + k / 4) * Q::PANEL + k % 4 * 32),
                        wgmma_advance(b, k / 4 * PANEL + k % 4 * 32), s + k > 0);
            wgmma_commit();
            at.next();
            if (s > 0) release<1>(2);
        }
        release<0>(1);
        wgmma_settle(score);
    }
    // Multiplies the weights, of the own half of the keys and of the other one, by the values.
    MEMBER void products(const u32 (&near)[HALF / 16][4], const u32 (&far)[HALF / 16][4], int half) {
        #pragma unroll
        for (int p = 0; p < PANELS; ++p) {
            mbarrier_wait(bars.full + at.stage, at.phase);
            const auto b = wgmma_operand<PANEL>(stage() + half * PANEL);
            wgmma_fence();
            #pragma unroll
            for (int s = 0; s < HALF / 16; ++s)
                WgmmaHeld<T, 64>::template run<MN_MAJOR>(out[p], near[s], wgmma_advance(b, (half * HALF + s * 16) * 128), true);
            #pragma unroll
            for (int s = 0; s < HALF / 16; ++s)
                WgmmaHeld<T, 64>::template run<MN_MAJOR>(out[p], far[s], wgmma_advance(b, ((1 - half) * HALF + s * 16) * 128), true);
            wgmma_commit();
            at.next();
            if (p > 0) release<1>(2);
        }
        release<0>(1);
        #pragma unroll
        for (int p = 0; p < PANELS; ++p) wgmma_settle(out[p]);
    }
    // The number of the thread's row `r` that a warpgroup notes: the largest score (0) or the sum (1).
    MEMBER float &number(int which, int half, int r) const {
        const int row = (int)(threadIdx.x >> 5 & 3) * 16 + (int)(threadIdx.x & 31) / 4 + r * 8;
        return ((float *)(memory + Q::BYTES + STAGES * STAGE + WEIGHTS))[(which * 2 + half) * 64 + row];
    }
    // Gives the other warpgroup a number of each row, and returns its numbers in their place.
    MEMBER void exchange_numbers(float (&x)[2], int which, int half) const {
        #pragma unroll
        for (int r = 0; r < 2; ++r)
            if ((threadIdx.x & 3) == 0) number(which, half, r) = x[r];
        barrier_sync(1, WARPS * 32);
        #pragma unroll
        for (int r = 0; r < 2; ++r) x[r] = number(which, 1 - half, r);
    }
    // The same of the weights. What was read last turn is not overwritten before the numbers of this turn are exchanged.
    MEMBER void exchange_weights(const u32 (&near)[HALF / 16][4], u32 (&far)[HALF / 16][4], int half) const {
        Quad *all = (Quad *)(memory + Q::BYTES + STAGES * STAGE);
        const int thread = threadIdx.x & 127;
        #pragma unroll
        for (int s = 0; s < HALF / 16; ++s) all[(half * (HALF / 16) + s) * 128 + thread] = {near[s][0], near[s][1], near[s][2], near[s][3]};
        barrier_sync(1, WARPS * 32);
        #pragma unroll
        for (int s = 0; s < HALF / 16; ++s) {
            const Quad x = all[((1 - half) * (HALF / 16) + s) * 128 + thread];
            far[s][0] = x.x;
            far[s][1] = x.y;
            far[s][2] = x.z;
            far[s][3] = x.w;
        }
    }
    // Converts scores to weights, with the largest scores of both halves, and shrinks earlier results.
    MEMBER void soften(float (&score)[HALF / 2], float factor, int half) {
        float near[2], far[2], shrink[2];
        #pragma unroll
        for (int r = 0; r < 2; ++r) near[r] = far[r] = flash_top<HALF>(score, r) * factor;
        exchange_numbers(far, 0, half);
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float top = fmaxf(fmaxf(near[r], far[r]), most[r]), shift = top == -INF32 ? 0.0f : top;
            shrink[r] = exp2_flushed(most[r] - shift);
            most[r] = top;
            total[r] = total[r] * shrink[r] + flash_weigh<HALF>(score, r, factor, shift);
        }
        #pragma unroll
        for (int p = 0; p < PANELS; ++p)
            #pragma unroll
            for (int i = 0; i < 32; ++i) out[p][i] *= shrink[i >> 1 & 1];
    }

    // The loop of a warpgroup. `look(score, turn)` masks and, where `factor` is 1, scales.
    template <class Look> MEMBER void turns(int count, float factor, Look look) {
        const int half = warpgroup();
        #pragma unroll
        for (int p = 0; p < PANELS; ++p) flash_clear(out[p]);
        most[0] = most[1] = -INF32;
        total[0] = total[1] = 0.0f;
        mbarrier_wait(bars.own_full, own);
        #pragma unroll 1
        for (int turn = 0; turn < count; ++turn) {
            float score[HALF / 2];
            u32 near[HALF / 16][4], far[HALF / 16][4];
            scores(score, half);
            look(score, turn);
            soften(score, factor, half);
            flash_factors<T, HALF>(near, score);
            exchange_weights(near, far, half);
            products(near, far, half);
        }
        mbarrier_arrive<1>(bars.own_empty);
        own ^= 1;
        float other[2];
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += shuffle_xor(total[r], 1);
            total[r] += shuffle_xor(total[r], 2);
            other[r] = total[r];
        }
        exchange_numbers(other, 1, half);
        total[0] += other[0];
        total[1] += other[1];
    }
};
