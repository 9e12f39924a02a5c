// Reduction operators, and reductions over the threads of a wave or a block. WAVE is the number of lanes per wave.

// ---- reduction operators
enum { SUM, PROD, MAX, MIN, ANY, ALL, XOR, ARGMAX, ARGMIN };
template <int OP, class T> DEV T combine(T a, T b) {
    if constexpr (OP == SUM) return (T)(a + b);
    else if constexpr (OP == PROD) return (T)(a * b);
    else if constexpr (OP == MAX) return op_max(a, b);
    else if constexpr (OP == MIN) return op_min(a, b);
    else if constexpr (OP == ANY) return (T)(a | b);
    else if constexpr (OP == ALL) return (T)(a & b);
    else return (T)(a ^ b);
}

// A value with its position: the first of equal ones; NaN precedes all.
template <class T> struct At { T v; i64 p; };
template <int OP, class T> DEV bool before(At<T> a, At<T> b) {
    bool an = a.v != a.v, bn = b.v != b.v;
    if (an || bn) return an && (!bn || a.p < b.p);
    if (a.v == b.v) return a.p < b.p;
    return OP == ARGMAX ? a.v > b.v : a.v < b.v;
}
template <int OP, class T> DEV At<T> combine(At<T> a, At<T> b) { return before<OP>(b, a) ? b : a; }

template <class T> DEV T shuffle_down(T x, int n) {
    if constexpr (sizeof(T) <= 4) {
        union { T t; u32 w; } u;
        u.w = 0;
        u.t = x;
        u.w = wave_down(u.w, n);
        return u.t;
    } else {
        constexpr int W = sizeof(T) / 4;
        union { T t; u32 w[W]; } u;
        u.t = x;
        for (int i = 0; i < W; ++i) u.w[i] = wave_down(u.w[i], n);
        return u.t;
    }
}

template <class T> DEV T shuffle_up(T x, int n) {
    constexpr int W = (sizeof(T) + 3) / 4;
    union { T t; u32 w[W]; } u;
    u.w[0] = 0;
    u.t = x;
    for (int i = 0; i < W; ++i) u.w[i] = wave_up(u.w[i], n);
    return u.t;
}

template <class T> DEV T shuffle(T x, int lane) {
    constexpr int W = (sizeof(T) + 3) / 4;
    union { T t; u32 w[W]; } u;
    u.w[0] = 0;
    u.t = x;
    for (int i = 0; i < W; ++i) u.w[i] = wave_read(u.w[i], lane);
    return u.t;
}

// The value of the lane whose number differs in the bits of `mask`.
template <class T> DEV T shuffle_xor(T x, int mask) {
    constexpr int W = (sizeof(T) + 3) / 4;
    union { T t; u32 w[W]; } u;
    u.w[0] = 0;
    u.t = x;
    for (int i = 0; i < W; ++i) u.w[i] = wave_xor(u.w[i], mask);
    return u.t;
}

// A team of TEAM threads (a part of a wave, a wave, or the whole block) reduces one value each; all get the result. The order is
// fixed. Where a team is a part of a wave, all lanes of the wave take part.
template <int OP, int TEAM, class T> DEV T team_combine(T x, void *scratch) {
    if constexpr (TEAM < WAVE) {
        #pragma unroll
        for (int n = TEAM / 2; n; n >>= 1) x = combine<OP>(x, shuffle_xor(x, n));
        return x;
    }
    #pragma unroll
    for (int n = WAVE / 2; n; n >>= 1) x = combine<OP>(x, shuffle_down(x, n));
    if constexpr (TEAM <= WAVE) return shuffle(x, 0);
    else {
        T *part = (T *)scratch;
        block_sync();
        if ((threadIdx.x & (WAVE - 1)) == 0) part[threadIdx.x / WAVE] = x;
        block_sync();
        T sum = part[0];
        for (int w = 1; w < TEAM / WAVE; ++w) sum = combine<OP>(sum, part[w]);
        return sum;
    }
}

// Inclusive scan over the team's threads, in their order; `total` is that of all.
template <int OP, int TEAM, class T> DEV T team_scan(T x, T &total, void *scratch) {
    int lane = threadIdx.x & (WAVE - 1);
    #pragma unroll
    for (int n = 1; n < WAVE; n <<= 1) {
        T y = shuffle_up(x, n);
        if (lane >= n) x = combine<OP>(y, x);
    }
    if constexpr (TEAM == WAVE) {
        total = shuffle(x, WAVE - 1);
        return x;
    } else {
        T *part = (T *)scratch;
        block_sync();
        if (lane == WAVE - 1) part[threadIdx.x / WAVE] = x;
        block_sync();
        T sum = part[0];
        T lead = sum;
        int warp = threadIdx.x / WAVE;
        for (int w = 1; w < TEAM / WAVE; ++w) {
            if (w == warp) lead = sum;
            sum = combine<OP>(sum, part[w]);
        }
        if (warp > 0) x = combine<OP>(lead, x);
        total = sum;
        return x;
    }
}

template <int TEAM> DEV void team_sync() {
    if constexpr (TEAM <= WAVE) wave_sync();
    else block_sync();
}

// Adjacent elements that are accessed at once.
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Vec { T v[N]; };
