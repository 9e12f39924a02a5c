// The keywords, built-in types and functions that an ordinary C++ compiler needs to read the kernel dialect. No header is
// included, as in the dialect itself: names of the C library would conflict with those of kernels. The scheduler follows.

#define FFX_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __constant__ static const
// All static shared memory is in one section, so that it can be overwritten between blocks.
#define __shared__ static __attribute__((section("ffx_shared")))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

typedef unsigned int ffx_u32;
typedef unsigned long long ffx_u64;
typedef long long ffx_i64;

struct ffx_dim3 { ffx_u32 x, y, z; };
typedef ffx_dim3 dim3, uint3;
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(16) double2 { double x, y; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) uint2 { ffx_u32 x, y; };
struct __align__(16) uint4 { ffx_u32 x, y, z, w; };
struct __align__(16) ulonglong2 { ffx_u64 x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(ffx_u32 x, ffx_u32 y) { return {x, y}; }
static inline uint4 make_uint4(ffx_u32 x, ffx_u32 y, ffx_u32 z, ffx_u32 w) { return {x, y, z, w}; }

// ---- functions of the C library, with declarations of their own
#define FFX_UNARY(NAME) extern "C" double NAME(double); extern "C" float NAME##f(float);
#define FFX_BINARY(NAME) extern "C" double NAME(double, double); extern "C" float NAME##f(float, float);
FFX_UNARY(fabs) FFX_UNARY(floor) FFX_UNARY(ceil) FFX_UNARY(trunc) FFX_UNARY(rint) FFX_UNARY(round) FFX_UNARY(nearbyint)
FFX_UNARY(sqrt) FFX_UNARY(cbrt) FFX_UNARY(exp) FFX_UNARY(exp2) FFX_UNARY(expm1) FFX_UNARY(log) FFX_UNARY(log2)
FFX_UNARY(log10) FFX_UNARY(log1p) FFX_UNARY(sin) FFX_UNARY(cos) FFX_UNARY(tan) FFX_UNARY(asin) FFX_UNARY(acos)
FFX_UNARY(atan) FFX_UNARY(sinh) FFX_UNARY(cosh) FFX_UNARY(tanh) FFX_UNARY(asinh) FFX_UNARY(acosh) FFX_UNARY(atanh)
FFX_UNARY(erf) FFX_UNARY(erfc) FFX_UNARY(lgamma) FFX_UNARY(tgamma)
FFX_BINARY(fmod) FFX_BINARY(pow) FFX_BINARY(atan2) FFX_BINARY(copysign) FFX_BINARY(nextafter) FFX_BINARY(fmax)
FFX_BINARY(fmin) FFX_BINARY(hypot) FFX_BINARY(remainder) FFX_BINARY(fdim)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
extern "C" double ldexp(double, int);
extern "C" float ldexpf(float, int);
extern "C" double frexp(double, int *);
extern "C" float frexpf(float, int *);
extern "C" int abs(int);
extern "C" void *memset(void *, int, __SIZE_TYPE__);
extern "C" void *memcpy(void *, const void *, __SIZE_TYPE__);
extern "C" void *realloc(void *, __SIZE_TYPE__);
extern "C" int snprintf(char *, __SIZE_TYPE__, const char *, ...);
extern "C" int printf(const char *, ...);

template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
static inline bool isnan(double x) { return x != x; }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline float exp10f(float x) { return (float)pow(10.0, (double)x); }
static inline void sincosf(float x, float *s, float *c) { *s = sinf(x); *c = cosf(x); }
static inline void sincos(double x, double *s, double *c) { *s = sin(x); *c = cos(x); }
static inline float sinpif(float x) { return (float)sin(3.14159265358979323846 * fmod((double)x, 2.0)); }
static inline float cospif(float x) { return (float)cos(3.14159265358979323846 * fmod((double)x, 2.0)); }

// The inverse of the error function: a rough start (Winitzki's formula), then Newton's method on erf, or on the logarithm
// of erfc where erf has no digits left.
static inline double erfinv(double y) {
    if (!(y >= -1.0 && y <= 1.0)) return __builtin_nan("");
    double a = fabs(y);
    if (a == 1.0) return copysign(__builtin_inf(), y);
    if (a == 0.0) return y;
    const double slope = 1.1283791670955126, k = 0.147; // 2 / sqrt(pi)
    double tail = 1.0 - a, l = log1p(-a * a), b = 4.3307467508 + l / 2.0;
    double x = sqrt(fmax(0.0, sqrt(b * b - l / k) - b));
    for (int i = 0; i < 6; ++i) {
        double density = slope * exp(-x * x);
        if (a < 0.5) x -= (erf(x) - a) / density;
        else {
            double rest = erfc(x);
            x += rest * (log(rest) - log(tail)) / density;
        }
    }
    return copysign(x, y);
}
static inline float erfinvf(float y) { return (float)erfinv((double)y); }

// ---- bits
template <class T, class S> static inline T ffx_bits(S x) {
    static_assert(sizeof(T) == sizeof(S), "sizes differ");
    T y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __int_as_float(int x) { return ffx_bits<float>(x); }
static inline int __float_as_int(float x) { return ffx_bits<int>(x); }
static inline float __uint_as_float(ffx_u32 x) { return ffx_bits<float>(x); }
static inline ffx_u32 __float_as_uint(float x) { return ffx_bits<ffx_u32>(x); }
static inline double __longlong_as_double(ffx_i64 x) { return ffx_bits<double>(x); }
static inline ffx_i64 __double_as_longlong(double x) { return ffx_bits<ffx_i64>(x); }
static inline int __popc(ffx_u32 x) { return __builtin_popcount(x); }
static inline int __popcll(ffx_u64 x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(ffx_i64 x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((ffx_u32)x) : 32; }
static inline int __clzll(ffx_i64 x) { return x ? __builtin_clzll((ffx_u64)x) : 64; }
static inline ffx_u32 __brev(ffx_u32 x) {
    ffx_u32 y = 0;
    for (int i = 0; i < 32; ++i) y |= (x >> i & 1u) << (31 - i);
    return y;
}
static inline ffx_u32 __umulhi(ffx_u32 a, ffx_u32 b) { return (ffx_u32)((ffx_u64)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((ffx_i64)a * b >> 32); }
static inline ffx_u64 __umul64hi(ffx_u64 a, ffx_u64 b) { return (ffx_u64)((unsigned __int128)a * b >> 64); }
static inline ffx_i64 __mul64hi(ffx_i64 a, ffx_i64 b) { return (ffx_i64)((__int128)a * b >> 64); }
static inline ffx_u32 __byte_perm(ffx_u32 a, ffx_u32 b, ffx_u32 s) {
    ffx_u64 both = (ffx_u64)b << 32 | a;
    ffx_u32 y = 0;
    for (int i = 0; i < 4; ++i) y |= (ffx_u32)(both >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
    return y;
}
static inline ffx_u32 __funnelshift_l(ffx_u32 lo, ffx_u32 hi, ffx_u32 n) { return (ffx_u32)(((ffx_u64)hi << 32 | lo) << (n & 31) >> 32); }
static inline ffx_u32 __funnelshift_r(ffx_u32 lo, ffx_u32 hi, ffx_u32 n) { return (ffx_u32)(((ffx_u64)hi << 32 | lo) >> (n & 31)); }

// ---- conversions
static inline float __double2float_rz(double x) {
    float y = (float)x;
    // The cast rounded away from zero, so one step back. The step back from infinity gives the largest float.
    if (fabs((double)y) > fabs(x)) y = __uint_as_float(__float_as_uint(y) - 1u);
    return y;
}
static inline ffx_i64 ffx_saturate(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return 0x7fffffffffffffffLL;
    if (x <= -9223372036854775808.0) return -0x7fffffffffffffffLL - 1;
    return (ffx_i64)x;
}
static inline int ffx_saturate_int(double x) {
    return x != x ? 0 : x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : (int)x;
}
static inline int __float2int_rn(float x) { return ffx_saturate_int(rint((double)x)); }
static inline int __float2int_rz(float x) { return ffx_saturate_int((double)x); }
static inline int __float2int_rd(float x) { return ffx_saturate_int(floor((double)x)); }
static inline int __double2int_rn(double x) { return ffx_saturate_int(rint(x)); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(ffx_u32 x) { return (float)x; }
static inline float ffx_from_f16(unsigned short h) {
    ffx_u32 sign = (ffx_u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) return copysignf((float)mantissa * 5.9604644775390625e-8f, __uint_as_float(sign)); // 2^-24
    return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}
// Round to nearest even; NaN is 0x7fff, as on the device.
static inline unsigned short ffx_to_f16(float x) {
    ffx_u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, m = bits & 0x7fffffffu;
    if (m > 0x7f800000u) return 0x7fff;
    if (m >= 0x47800000u) return (unsigned short)(sign | 0x7c00u); // 65536 and more
    if (m < 0x38800000u) return (unsigned short)(sign | (ffx_u32)(int)rintf(__uint_as_float(m) * 16777216.0f)); // below 2^-14
    return (unsigned short)(sign | (m + 0xfffu + (m >> 13 & 1u) - 0x38000000u) >> 13);
}
static inline unsigned short ffx_to_bf16(float x) {
    ffx_u32 bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// ---- fast and rounded arithmetic: the ordinary functions
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return exp10f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline void __sincosf(float x, float *s, float *c) { sincosf(x, s, c); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return rsqrtf(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

// ---- memory
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldlu(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T x) { *p = x; }
template <class T> static inline void __stcg(T *p, T x) { *p = x; }
template <class T> static inline void __stwb(T *p, T x) { *p = x; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
template <class T> struct FfxSame { typedef T type; };
// Fibers are not preempted, so a plain read and write is atomic. The operand has the type of the memory, as in the
// dialect.
#define FFX_ATOMIC(NAME, VALUE) \
    template <class T> static inline T NAME(T *p, typename FfxSame<T>::type x) { T old = *p; *p = (T)(VALUE); return old; }
FFX_ATOMIC(atomicAdd, old + x) FFX_ATOMIC(atomicSub, old - x) FFX_ATOMIC(atomicExch, x)
FFX_ATOMIC(atomicMax, old > x ? old : x) FFX_ATOMIC(atomicMin, old < x ? old : x)
FFX_ATOMIC(atomicAnd, old & x) FFX_ATOMIC(atomicOr, old | x) FFX_ATOMIC(atomicXor, old ^ x)
FFX_ATOMIC(atomicInc, old >= x ? 0 : old + 1) FFX_ATOMIC(atomicDec, old == 0 || old > x ? x : old - 1)
template <class T>
static inline T atomicCAS(T *p, typename FfxSame<T>::type compare, typename FfxSame<T>::type x) {
    T old = *p;
    if (old == compare) *p = x;
    return old;
}
static inline void __builtin_assume(bool) {}
static inline ffx_i64 clock64() { static ffx_i64 now; return ++now; }
