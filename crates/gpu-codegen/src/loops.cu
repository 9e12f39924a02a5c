// What loop kernels stand on beyond the prelude: vectors past the caches, parts of a reduction that several blocks make.

// 16 bytes at once; STREAM where the kernel's memory is larger than the cache and nothing of it is soon used again.
template <bool STREAM, class V> DEV V load_vector(const V *p) {
    if constexpr (STREAM && sizeof(V) == 16) {
        union { uint4 w; V v; } u;
        u.w = load_streaming(p);
        return u.v;
    } else return *p;
}
template <bool STREAM, class V> DEV void store_vector(V *p, const V &x) {
    if constexpr (STREAM && sizeof(V) == 16) {
        union { uint4 w; V v; } u;
        u.v = x;
        store_streaming(p, u.w);
    } else *p = x;
}

// The threads of a block that have the same lane combine one value each; all of them get the result. WARPS is that of the
// block; the order is fixed.
template <int OP, int WARPS, class T> DEV T column_combine(T x, void *scratch) {
    T *part = (T *)scratch;
    __syncthreads();
    part[threadIdx.x] = x;
    __syncthreads();
    T sum = part[threadIdx.x & 31];
    for (int w = 1; w < WARPS; ++w) sum = combine<OP>(sum, part[w * 32 + (threadIdx.x & 31)]);
    return sum;
}
