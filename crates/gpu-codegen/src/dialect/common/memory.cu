// Atomics, and the record of a failed index check.

// ---- atomics: any operator on any type, by compare-and-swap of the word that contains it
template <class T> struct Wide { typedef T type; };
template <> struct Wide<bf16> { typedef float type; };
template <> struct Wide<f16> { typedef float type; };

template <int OP, class T> DEV T combine_stored(T a, T b) {
    typedef typename Wide<T>::type W;
    return to<T>(combine<OP>(to<W>(a), to<W>(b)));
}
template <int OP, class T> DEV void atomic(T *p, T x) {
    if constexpr (sizeof(T) == 8) {
        u64 *w = (u64 *)p, old = *w, seen;
        do {
            seen = old;
            old = atomicCAS(w, seen, bits_as<u64>(combine_stored<OP>(bits_as<T>(seen), x)));
        } while (old != seen);
    } else if constexpr (sizeof(T) == 4) {
        u32 *w = (u32 *)p, old = *w, seen;
        do {
            seen = old;
            old = atomicCAS(w, seen, bits_as<u32>(combine_stored<OP>(bits_as<T>(seen), x)));
        } while (old != seen);
    } else {
        u32 *w = (u32 *)((u64)p & ~3ULL), old = *w, seen;
        int shift = (int)((u64)p & 3ULL) * 8;
        u32 mask = (sizeof(T) == 2 ? 0xffffu : 0xffu) << shift;
        do {
            seen = old;
            T now;
            if constexpr (sizeof(T) == 2) now = bits_as<T>((u16)(seen >> shift));
            else now = bits_as<T>((u8)(seen >> shift));
            T next = combine_stored<OP>(now, x);
            u32 bits;
            if constexpr (sizeof(T) == 2) bits = (u32)bits_as<u16>(next);
            else bits = (u32)bits_as<u8>(next);
            old = atomicCAS(w, seen, (seen & ~mask) | (bits << shift));
        } while (old != seen);
    }
}
template <> __device__ __forceinline__ void atomic<SUM, float>(float *p, float x) { atomicAdd(p, x); }
template <> __device__ __forceinline__ void atomic<SUM, double>(double *p, double x) { atomicAdd(p, x); }
template <> __device__ __forceinline__ void atomic<SUM, i32>(i32 *p, i32 x) { atomicAdd(p, x); }
template <> __device__ __forceinline__ void atomic<SUM, i64>(i64 *p, i64 x) { atomicAdd((u64 *)p, (u64)x); }

// ---- indices from data
// The record of the first index that failed its check, with the layout of `gpu_codegen::Fault`, in host memory.
struct Fault { u32 claimed, check; i64 index, size; };

// Records a failed index, where none was recorded yet. The thread goes on, since others may wait for it at a barrier.
DEV void index_fault(Fault *fault, i64 check, i64 index, i64 size) {
    if (*(volatile u32 *)&fault->claimed || atomicCAS(&fault->claimed, 0u, 1u)) return;
    fault->check = (u32)check;
    fault->index = index;
    fault->size = size;
    system_fence();
}
