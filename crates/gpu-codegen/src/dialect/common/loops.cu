// Helpers of loop kernels: streaming vectors, and parts of a reduction that several blocks compute.

// A 16-byte access. STREAM bypasses the caches where the kernel's memory is larger than the cache and will not be used
// again soon.
template <bool STREAM, class V> DEV V load_vector(const V *p) {
    if constexpr (STREAM && sizeof(V) == 16) {
        union { Quad w; V v; } u;
        u.w = load_streaming(p);
        return u.v;
    } else return *p;
}

template <bool STREAM, class V> DEV void store_vector(V *p, const V &x) {
    if constexpr (STREAM && sizeof(V) == 16) {
        union { Quad w; V v; } u;
        u.v = x;
        store_streaming(p, u.w);
    } else *p = x;
}

// The reciprocal of a count, to two units in the last place.
DEV float inverse(float n) { return quick_quotient(1.0f, n); }
DEV double inverse(double n) { return 1.0 / n; }

// A count of numbers, their mean and the sum of their squared differences from it. The mean is that of the differences
// from `shift`, one of the numbers and the same for all partial results, so that it is accurate where numbers are far from
// 0.
template <class T> struct Moments {
    T n, mean, m2, shift;
    // Adds one difference (Welford); `each` is the reciprocal of the count including it. `n` and `shift` are set at the
    // end.
    __device__ __forceinline__ void add(T x, T each) {
        T d = x - mean;
        mean = mean + d * each;
        m2 = m2 + d * (x - mean);
    }
};

// Merges two sets (Chan).
template <int OP, class T> DEV Moments<T> combine(Moments<T> a, Moments<T> b) {
    if (b.n == 0) return a;
    if (a.n == 0) return b;
    T n = a.n + b.n, share = b.n * inverse(n), d = b.mean - a.mean;
    return {n, a.mean + d * share, a.m2 + b.m2 + d * d * (a.n * share), a.shift};
}

// Combines COUNT values at distance `stride` in order, in groups of four: a combination waits for that of the previous
// group, not for each value.
template <int OP, int COUNT, class T> DEV T in_fours(const T *from, int stride) {
    static_assert(COUNT % 4 == 0, "whole fours");
    T all = from[0];
    #pragma unroll
    for (int n = 0; n < COUNT; n += 4) {
        const T *x = from + n * stride;
        T four = combine<OP>(combine<OP>(x[0], x[stride]), combine<OP>(x[2 * stride], x[3 * stride]));
        all = n ? combine<OP>(all, four) : four;
    }
    return all;
}

// Threads of a block combine the V columns of each, with TX adjacent threads: thread `n` of the block gets the total of
// column `n`, of which there are TX * V. The order is fixed. `part` is memory for this many values per wave.
template <int OP, int TX, int V, int WARPS, class T> DEV T column_total(T (&x)[V], T *part) {
    const int lane = threadIdx.x & (WAVE - 1), warp = threadIdx.x / WAVE, columns = TX * V;
    #pragma unroll
    for (int n = WAVE / 2; n >= TX; n >>= 1) {
        #pragma unroll
        for (int u = 0; u < V; ++u) x[u] = combine<OP>(x[u], shuffle_down(x[u], n));
    }
    block_sync();
    if (lane < TX) {
        #pragma unroll
        for (int u = 0; u < V; ++u) part[warp * columns + lane * V + u] = x[u];
    }
    block_sync();
    T sum = x[0];
    if (threadIdx.x < columns) sum = in_fours<OP, WARPS>(part + threadIdx.x, columns);
    return sum;
}

// The same for moments: first the means, then the squared differences from them. Sums of numbers take far fewer
// instructions than merging sets in pairs, and are as accurate.
template <int OP, int TX, int V, int WARPS, class T> DEV Moments<T> column_total(Moments<T> (&x)[V], Moments<T> *memory) {
    constexpr int COLUMNS = TX * V;
    const int first = threadIdx.x % TX * V, column = threadIdx.x;
    T *part = (T *)memory, *counts = part + COLUMNS, *shifts = counts + TX;
    T count[1] = {x[0].n}, sum[V];
    #pragma unroll
    for (int u = 0; u < V; ++u) sum[u] = x[u].n * x[u].mean;
    T all = column_total<OP, TX, 1, WARPS>(count, part), total = column_total<OP, TX, V, WARPS>(sum, part);
    block_sync();
    if (threadIdx.x < TX) {
        counts[threadIdx.x] = all;
        #pragma unroll
        for (int u = 0; u < V; ++u) shifts[first + u] = x[u].shift;
    }
    block_sync();
    Moments<T> made = {0, 0, 0, 0};
    if (column < COLUMNS) {
        made.n = counts[column / V];
        made.shift = shifts[column];
        if (made.n != 0) made.mean = total * inverse(made.n);
        part[column] = made.mean;
    }
    block_sync();
    #pragma unroll
    for (int u = 0; u < V; ++u) {
        T d = x[u].mean - part[first + u];
        sum[u] = x[u].m2 + x[u].n * d * d;
    }
    made.m2 = column_total<OP, TX, V, WARPS>(sum, part);
    return made;
}

// The moments of a team's threads, in each of them.
template <int OP, int TEAM, class T> DEV Moments<T> team_combine(Moments<T> x, void *scratch) {
    T n = team_combine<OP, TEAM>(x.n, scratch), sum = team_combine<OP, TEAM>(x.n * x.mean, scratch);
    T mean = n != 0 ? sum * inverse(n) : 0, d = x.mean - mean;
    return {n, mean, team_combine<OP, TEAM>(x.m2 + x.n * d * d, scratch), x.shift};
}

// exp(x) where it is a part of a sum: numbers below 2^-126 may be 0.
DEV float part_exp(float x) { return exp2_flushed(x * 1.4426950408889634f); }
DEV double part_exp(double x) { return exp(x); }

// erf(x) for `1 + erf(x)`, off by 3e-7 at most: erfc(|x|) is 2 to the power of |x| times a polynomial, which was fitted to
// log2(erfc(x)) / x from 0 to 4 with the least absolute error of erfc, and beyond is smaller than counts.
DEV float rough_erf(float x) {
    const float a = fabsf(x);
    float p = fmaf(-4.53585162e-05f, a, 0.000445507001f);
    p = fmaf(p, a, -0.00148943963f);
    p = fmaf(p, a, -0.000774632732f);
    p = fmaf(p, a, 0.0282536838f);
    p = fmaf(p, a, -0.148481622f);
    p = fmaf(p, a, -0.918416381f);
    p = fmaf(p, a, -1.62790859f);
    return copysignf(1.0f - exp2_flushed(p * a), x);
}

// The larger number, of one number and NaN the number.
DEV float larger(float a, float b) { return fmaxf(a, b); }
DEV double larger(double a, double b) { return fmax(a, b); }

// The largest of some numbers, and the sum of exp(x - base) over them, where `base` is the largest number, or 0 where that is
// infinite. A NaN among the numbers makes the sum NaN and nothing else.
template <class T> struct Peak {
    T most, sum;
    static MEMBER T base(T most) { return most - most == 0 ? most : (T)0; }
    template <int N> MEMBER void add(const T (&x)[N]) {
        T top = most, more = 0;
        #pragma unroll
        for (int n = 0; n < N; ++n) top = larger(top, x[n]);
        const T from = base(top);
        #pragma unroll
        for (int n = 0; n < N; ++n) more = more + part_exp(x[n] - from);
        sum = sum * part_exp(most - from) + more;
        most = top;
    }
    MEMBER void add(T x) {
        const T one[1] = {x};
        add(one);
    }
    MEMBER T largest() const { return sum != sum ? sum : most; }
    // The sum of exp(x - most), which is NaN where the largest number is infinite.
    MEMBER T defined_sum() const { return most - most == 0 ? sum : most - most; }
};

// Merges two sets. Other reductions do without this text, so its names are its own.
template <int OP, class T> DEV Peak<T> combine_peaks(Peak<T> a, Peak<T> b) {
    const T top = larger(a.most, b.most), from = Peak<T>::base(top);
    return {top, a.sum * part_exp(a.most - from) + b.sum * part_exp(b.most - from)};
}

// The peak of a team's threads, in each of them: first the largest number, then the sum.
template <int OP, int TEAM, class T> DEV Peak<T> team_combine_peaks(Peak<T> x, void *scratch) {
    const T top = team_combine<MAX, TEAM>(x.most, scratch);
    return {top, team_combine<SUM, TEAM>(x.sum * part_exp(x.most - Peak<T>::base(top)), scratch)};
}

// Adds a number of each lane to a place of a table in shared memory; lanes whose place is -1 have none. While more than two lanes
// have the same place, these are added up first: additions to one place wait for each other.
template <class T> DEV void table_add(T *table, int place, T x) {
    const int lane = threadIdx.x & (WAVE - 1);
    for (u64 open = wave_ballot(place >= 0); open != 0;) {
        const int first = lowest_bit(open);
        const int key = (int)wave_read((u32)place, first);
        const u64 same = wave_ballot(place == key);
        if (count_bits(same) <= 2) break;
        T sum = team_combine<SUM, WAVE>(place == key ? x : (T)0, (void *)0);
        if (lane == first) atomicAdd(table + key, sum);
        if (place == key) place = -1;
        open &= ~same;
    }
    if (place >= 0) atomicAdd(table + place, x);
}

// Reads what other blocks wrote during this launch, bypassing the first-level cache.
template <class T> DEV T fresh(const T *p) {
    if constexpr (sizeof(T) % 8 == 0) {
        union { u64 w[sizeof(T) / 8]; T t; } u;
        #pragma unroll
        for (int i = 0; i < (int)sizeof(T) / 8; ++i) u.w[i] = past_first_cache((const u64 *)p + i);
        return u.t;
    } else if constexpr (sizeof(T) % 4 == 0) {
        union { u32 w[sizeof(T) / 4]; T t; } u;
        #pragma unroll
        for (int i = 0; i < (int)sizeof(T) / 4; ++i) u.w[i] = past_first_cache((const u32 *)p + i);
        return u.t;
    } else if constexpr (sizeof(T) == 2) return bits_as<T>((u16)*(const volatile u16 *)p);
    else return bits_as<T>((u8)*(const volatile u8 *)p);
}

// Combines the partial results of `parts` blocks for COLUMNS adjacent columns, of which `here` exist, in the order of the blocks:
// thread `n` of THREADS gets that of column `n`. `stride` is the distance between blocks. A thread loads AT_ONCE before it combines
// the first.
template <int OP, int COLUMNS, int THREADS, int AT_ONCE, class T>
DEV T parts_total(const T *from, i64 stride, int parts, int here, T start, T *part) {
    const int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
    constexpr int SLICES = THREADS / COLUMNS;
    // To combine moments takes many instructions: one place in the text takes all turns over shared memory.
    constexpr int LAST = sizeof(T) > 8 ? 1 : SLICES < 8 ? SLICES : 8;
    T x = start;
    if (column < here) {
        #pragma unroll AT_ONCE
        for (int s = slice; s < parts; s += SLICES) x = combine<OP>(x, fresh(from + s * stride + column));
    }
    block_sync();
    part[threadIdx.x] = x;
    block_sync();
    #pragma unroll 1
    for (int n = SLICES / 2; n >= LAST; n /= 2) {
        if (slice < n) part[threadIdx.x] = x = combine<OP>(x, part[threadIdx.x + n * COLUMNS]);
        block_sync();
    }
    if constexpr (LAST > 1) {
        if (threadIdx.x < COLUMNS) x = in_fours<OP, LAST>(part + threadIdx.x, COLUMNS);
    }
    return x;
}

// Returns whether this block is the last of `parts` to arrive, in every thread of it. The last block sees all that the
// others wrote before: the barriers pass on to one thread, and from it, what its fences order. The ticket is 0 again
// afterwards.
DEV bool comes_last(u32 *ticket, int parts, u32 *seen) {
    block_sync();
    if (threadIdx.x == 0) {
        device_fence();
        *seen = atomicAdd(ticket, 1u);
        device_fence();
        if (*seen == (u32)parts - 1) *ticket = 0;
    }
    block_sync();
    return *seen == (u32)parts - 1;
}
