// What generated kernels stand on: number types, conversions, scalar operators, team reductions, atomics. No header is
// included, so that a run-time compiler needs no search path; built-in functions of the compiler are used for libm.
// Where FFX_EMULATED is defined, an ordinary C++ compiler reads this behind the emulator's own definitions.

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177 // Not every kernel uses everything that stands here.
#endif

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
struct __align__(2) f16 { u16 bits; };
struct __align__(2) bf16 { u16 bits; };

#define DEV static __device__ __forceinline__
#define INF32 __int_as_float(0x7f800000)
#define NAN32 __int_as_float(0x7fc00000)
#define INF64 __longlong_as_double(0x7ff0000000000000LL)
#define NAN64 __longlong_as_double(0x7ff8000000000000LL)

// ---- 16-bit floats: round to nearest even
DEV float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
#ifndef FFX_EMULATED
DEV float widen(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEV f16 to_f16(float x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
DEV bf16 to_bf16(float x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
#else
DEV float widen(f16 x) { return ffx_from_f16(x.bits); }
DEV f16 to_f16(float x) { f16 y; y.bits = ffx_to_f16(x); return y; }
DEV bf16 to_bf16(float x) { bf16 y; y.bits = ffx_to_bf16(x); return y; }
#endif
// Rounds to odd, so that rounding once more is as good as rounding once.
DEV float odd(double x) {
    float y = __double2float_rz(x);
    if ((double)y != x && y == y && (__float_as_uint(y) & 0x7f800000u) != 0x7f800000u)
        y = __uint_as_float(__float_as_uint(y) | 1u);
    return y;
}

// ---- conversions: `to<T>(x)`. Floats to integers truncate and saturate, not a number gives 0.
template <class T> struct Tag {};
template <class T, class S> DEV T to_as(Tag<T>, S x) { return (T)x; }
template <class S> DEV bool to_as(Tag<bool>, S x) { return x != (S)0; }
DEV bool to_as(Tag<bool>, bool x) { return x; }
#ifndef FFX_EMULATED
DEV i64 trunc64(double x) { return x != x ? 0 : (i64)x; }
DEV i64 trunc64(float x) { return x != x ? 0 : (i64)x; }
#else
// The cast of a number that does not fit is undefined on the host; GPUs saturate.
DEV i64 trunc64(double x) { return ffx_saturate(x); }
DEV i64 trunc64(float x) { return ffx_saturate(x); }
#endif
#define NARROW(T) \
    DEV T to_as(Tag<T>, float x) { return (T)trunc64(x); } \
    DEV T to_as(Tag<T>, double x) { return (T)trunc64(x); }
NARROW(i8) NARROW(u8) NARROW(i16) NARROW(i64)
DEV i32 to_as(Tag<i32>, float x) { return (i32)trunc64(x); }
DEV i32 to_as(Tag<i32>, double x) { return (i32)trunc64(x); }
template <class T> DEV T to(bf16 x);
template <class T> DEV T to(f16 x);
template <class T, class S> DEV T to(S x) { return to_as(Tag<T>(), x); }
DEV f16 to_as(Tag<f16>, float x) { return to_f16(x); }
DEV bf16 to_as(Tag<bf16>, float x) { return to_bf16(x); }
DEV f16 to_as(Tag<f16>, double x) { return to_f16(odd(x)); }
DEV bf16 to_as(Tag<bf16>, double x) { return to_bf16(odd(x)); }
#define FROM_INT(S) \
    DEV f16 to_as(Tag<f16>, S x) { return to_f16(odd((double)x)); } \
    DEV bf16 to_as(Tag<bf16>, S x) { return to_bf16(odd((double)x)); }
FROM_INT(bool) FROM_INT(i8) FROM_INT(u8) FROM_INT(i16) FROM_INT(i32) FROM_INT(i64)
DEV f16 to_as(Tag<f16>, f16 x) { return x; }
DEV bf16 to_as(Tag<bf16>, bf16 x) { return x; }
template <class T> DEV T to(bf16 x) { return to_as(Tag<T>(), widen(x)); }
template <class T> DEV T to(f16 x) { return to_as(Tag<T>(), widen(x)); }
template <> __device__ __forceinline__ bf16 to<bf16>(bf16 x) { return x; }
template <> __device__ __forceinline__ f16 to<f16>(f16 x) { return x; }

// ---- bits
template <class T, class S> DEV T bits_as(S x) {
    static_assert(sizeof(T) == sizeof(S), "sizes differ");
    union { S s; T t; } u;
    u.s = x;
    return u.t;
}

// ---- integer index arithmetic: rounds to minus infinity
template <class T> DEV T floor_div(T a, T b) { T q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }
template <class T> DEV T floor_mod(T a, T b) { T r = a % b; return r + (((r != 0) && ((r < 0) != (b < 0))) ? b : 0); }
template <class T> DEV T imin(T a, T b) { return a < b ? a : b; }
template <class T> DEV T imax(T a, T b) { return a > b ? a : b; }

// ---- scalar operators that C++ has no operator for
template <class T> DEV T op_max(T a, T b) { return a > b ? a : b; }
template <class T> DEV T op_min(T a, T b) { return a < b ? a : b; }
DEV float op_max(float a, float b) { return a != a ? a : (b != b ? b : fmaxf(a, b)); }
DEV float op_min(float a, float b) { return a != a ? a : (b != b ? b : fminf(a, b)); }
DEV double op_max(double a, double b) { return a != a ? a : (b != b ? b : fmax(a, b)); }
DEV double op_min(double a, double b) { return a != a ? a : (b != b ? b : fmin(a, b)); }
DEV i64 int_div(i64 a, i64 b) { return b == 0 ? 0 : (b == -1 ? (i64)(0ULL - (u64)a) : a / b); }
DEV i64 int_rem(i64 a, i64 b) { return (b == 0 || b == -1) ? 0 : a % b; }
DEV i64 int_pow(i64 a, i64 e) {
    if (e < 0) return a == 1 ? 1 : (a == -1 ? (e % 2 ? -1 : 1) : 0);
    u64 r = 1, base = (u64)a;
    for (u64 n = (u64)e; n; n >>= 1) {
        if (n & 1) r *= base;
        base *= base;
    }
    return (i64)r;
}
DEV i64 int_shl(i64 a, i64 b, int width) { return b >= 0 && b < width ? (i64)((u64)a << b) : 0; }
DEV i64 int_shr(i64 a, i64 b, int width) { return a >> (b >= 0 && b < width ? b : width - 1); }

DEV double digamma_positive(double x) {
    double sum = 0.0;
    while (x < 10.0) {
        sum -= 1.0 / x;
        x += 1.0;
    }
    double z = 1.0 / (x * x);
    double series = z * (1.0 / 12.0 - z * (1.0 / 120.0 - z * (1.0 / 252.0 - z * (1.0 / 240.0 - z * (1.0 / 132.0 - z * 691.0 / 32760.0)))));
    return sum + log(x) - 0.5 / x - series;
}
DEV double op_digamma(double x) {
    if (x == 0.0) return copysign(INF64, -x);
    if (x < 0.0) {
        if (floor(x) == x) return NAN64;
        // The period is taken off first: tan of a large multiple of pi has no digits left.
        double part = x - floor(x);
        return digamma_positive(1.0 - x) - 3.14159265358979323846 / tan(3.14159265358979323846 * part);
    }
    return digamma_positive(x);
}

enum { CHEBYSHEV_T, CHEBYSHEV_U, CHEBYSHEV_V, CHEBYSHEV_W, HERMITE_H, HERMITE_HE, LAGUERRE_L, LEGENDRE_P };
template <int KIND> DEV double polynomial(double x, double degree, int hermite_limit) {
    i64 n = trunc64(degree);
    if (n < 0) return 0.0;
    if (KIND <= CHEBYSHEV_W && fabs(x) < 1.0 && (double)n >= 9.0) {
        double angle = acos(x), m = (double)n;
        if (KIND == CHEBYSHEV_T) return cos(m * angle);
        if (KIND == CHEBYSHEV_U) return sin((m + 1.0) * angle) / sin(angle);
        if (KIND == CHEBYSHEV_V) return cos((m + 0.5) * angle) / cos(angle / 2.0);
        return sin((m + 0.5) * angle) / sin(angle / 2.0);
    }
    bool hermite = KIND == HERMITE_H || KIND == HERMITE_HE;
    if (n > (hermite ? (i64)hermite_limit : (1LL << 20))) return NAN64;
    if (n == 0) return 1.0;
    double before = 1.0, at = x;
    if (KIND == CHEBYSHEV_U || KIND == HERMITE_H) at = 2.0 * x;
    if (KIND == CHEBYSHEV_V) at = 2.0 * x - 1.0;
    if (KIND == CHEBYSHEV_W) at = 2.0 * x + 1.0;
    if (KIND == LAGUERRE_L) at = 1.0 - x;
    for (i64 i = 1; i < n && at == at; ++i) {
        double k = (double)i, next;
        if (KIND == HERMITE_H) next = 2.0 * x * at - 2.0 * k * before;
        else if (KIND == HERMITE_HE) next = x * at - k * before;
        else if (KIND == LAGUERRE_L) next = ((2.0 * k + 1.0 - x) * at - k * before) / (k + 1.0);
        else if (KIND == LEGENDRE_P) next = ((2.0 * k + 1.0) * x * at - k * before) / (k + 1.0);
        else next = 2.0 * x * at - before;
        before = at;
        at = next;
    }
    return at;
}

DEV double op_igamma(double a, double x, bool upper) {
    if (a != a || x != x || a < 0.0 || x < 0.0) return NAN64;
    bool ainf = isinf(a), xinf = isinf(x);
    if ((a == 0.0 && x == 0.0) || (ainf && xinf)) return NAN64;
    if (a == 0.0 || xinf) return upper ? 0.0 : 1.0;
    if (x == 0.0 || ainf) return upper ? 1.0 : 0.0;
    const double eps = 2.220446049250313e-16;
    double scale = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1.0) {
        double term = 1.0 / a, sum = term, n = a;
        for (int i = 0; i < (1 << 20); ++i) {
            n += 1.0;
            term *= x / n;
            sum += term;
            if (term < sum * eps) break;
        }
        double p = scale * sum;
        return upper ? 1.0 - p : p;
    }
    const double tiny = 2.2250738585072014e-308 / eps;
    double den = x + 1.0 - a, c = 1.0 / tiny, d = 1.0 / den, h = d;
    for (int j = 1; j < (1 << 20); ++j) {
        double i = (double)j, an = -i * (i - a);
        den += 2.0;
        d = an * d + den;
        d = fabs(d) < tiny ? tiny : d;
        c = den + an / c;
        c = fabs(c) < tiny ? tiny : c;
        d = 1.0 / d;
        double step = d * c;
        h *= step;
        if (fabs(step - 1.0) < eps) break;
    }
    double q = scale * h;
    return upper ? q : 1.0 - q;
}

// Philox 4x32-10, words 0 and 1.
DEV i64 op_philox(i64 seed, i64 stream, i64 index) {
    u32 k0 = (u32)seed, k1 = (u32)((u64)seed >> 32);
    u32 c0 = (u32)index, c1 = (u32)((u64)index >> 32), c2 = (u32)stream, c3 = (u32)((u64)stream >> 32);
    #pragma unroll
    for (int r = 0; r < 10; ++r) {
        u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (i64)((u64)c0 | ((u64)c1 << 32));
}

// ---- how values combine
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
// A value with its position: the first of equal ones, not a number before all.
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
        u.w = __shfl_down_sync(0xffffffffu, u.w, n);
        return u.t;
    } else {
        constexpr int W = sizeof(T) / 4;
        union { T t; u32 w[W]; } u;
        u.t = x;
        for (int i = 0; i < W; ++i) u.w[i] = __shfl_down_sync(0xffffffffu, u.w[i], n);
        return u.t;
    }
}
template <class T> DEV T shuffle_up(T x, int n) {
    constexpr int W = (sizeof(T) + 3) / 4;
    union { T t; u32 w[W]; } u;
    u.w[0] = 0;
    u.t = x;
    for (int i = 0; i < W; ++i) u.w[i] = __shfl_up_sync(0xffffffffu, u.w[i], n);
    return u.t;
}
template <class T> DEV T shuffle(T x, int lane) {
    constexpr int W = (sizeof(T) + 3) / 4;
    union { T t; u32 w[W]; } u;
    u.w[0] = 0;
    u.t = x;
    for (int i = 0; i < W; ++i) u.w[i] = __shfl_sync(0xffffffffu, u.w[i], lane);
    return u.t;
}

// A team of TEAM threads (32, or the whole block) combines one value each; all get the result. The order is fixed.
template <int OP, int TEAM, class T> DEV T team_combine(T x, void *scratch) {
    #pragma unroll
    for (int n = 16; n; n >>= 1) x = combine<OP>(x, shuffle_down(x, n));
    if constexpr (TEAM == 32) return shuffle(x, 0);
    else {
        T *part = (T *)scratch;
        __syncthreads();
        if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
        __syncthreads();
        T sum = part[0];
        for (int w = 1; w < TEAM / 32; ++w) sum = combine<OP>(sum, part[w]);
        return sum;
    }
}
// Inclusive running combination over the team's threads, in their order; `total` is that of all.
template <int OP, int TEAM, class T> DEV T team_scan(T x, T &total, void *scratch) {
    int lane = threadIdx.x & 31;
    #pragma unroll
    for (int n = 1; n < 32; n <<= 1) {
        T y = shuffle_up(x, n);
        if (lane >= n) x = combine<OP>(y, x);
    }
    if constexpr (TEAM == 32) {
        total = shuffle(x, 31);
        return x;
    } else {
        T *part = (T *)scratch;
        __syncthreads();
        if (lane == 31) part[threadIdx.x >> 5] = x;
        __syncthreads();
        T sum = part[0];
        T lead = sum;
        int warp = threadIdx.x >> 5;
        for (int w = 1; w < TEAM / 32; ++w) {
            if (w == warp) lead = sum;
            sum = combine<OP>(sum, part[w]);
        }
        if (warp > 0) x = combine<OP>(lead, x);
        total = sum;
        return x;
    }
}
template <int TEAM> DEV void team_sync() {
    if constexpr (TEAM == 32) __syncwarp();
    else __syncthreads();
}

// Neighbouring elements that move together.
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Vec { T v[N]; };

// ---- atomics: any operator on any type, by compare and swap of the word that holds it
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
// The first index of a program that failed its check: laid out as `gpu_codegen::Fault`, in memory of the host.
struct Fault { u32 claimed, check; i64 index, size; };
// Notes an index that failed, where none was noted yet. The thread goes on: others may wait for it at a barrier.
DEV void index_fault(Fault *fault, i64 check, i64 index, i64 size) {
    if (*(volatile u32 *)&fault->claimed || atomicCAS(&fault->claimed, 0u, 1u)) return;
    fault->check = (u32)check;
    fault->index = index;
    fault->size = size;
    __threadfence_system();
}

// The blocks of one kernel of several that share a launch: the number of a block among them, or how many there are.
struct Dealt { u32 x, y; };

// Where launches may overlap, the next launch's blocks are placed once all blocks of this one have come here and there is room
// for them; elsewhere this does nothing.
__device__ __forceinline__ void launch_next() {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until earlier launches have ended: all that they write is there, and all that they read has been read. Every thread
// comes here, and before it uses nothing but its arguments and what no launch of a call writes (constants): since a launch
// ends after it has waited, waiting for the one before is waiting for all.
__device__ __forceinline__ void launch_wait() {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// What kernels begin with that do nothing before they wait.
__device__ __forceinline__ void launch_order() {
    launch_next();
    launch_wait();
}
