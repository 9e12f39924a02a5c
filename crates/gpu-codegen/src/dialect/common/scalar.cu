// Conversions between number types, and scalar operators that C++ lacks. Included after the vendor's functions.

// Rounds to odd, so that a second rounding gives the result of a single one.
DEV float odd(double x) {
    float y = toward_zero(x);
    if ((double)y != x && y == y && (as_bits(y) & 0x7f800000u) != 0x7f800000u)
        y = as_float(as_bits(y) | 1u);
    return y;
}

// ---- conversions: `to<T>(x)`. Floats to integers truncate and saturate, NaN gives 0.
template <class T> struct Tag {};
template <class T, class S> DEV T to_as(Tag<T>, S x) { return (T)x; }
template <class S> DEV bool to_as(Tag<bool>, S x) { return x != (S)0; }
DEV bool to_as(Tag<bool>, bool x) { return x; }
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

// ---- integer index arithmetic: rounds towards minus infinity
template <class T> DEV T floor_div(T a, T b) { T q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }

template <class T> DEV T floor_mod(T a, T b) { T r = a % b; return r + (((r != 0) && ((r < 0) != (b < 0))) ? b : 0); }

template <class T> DEV T imin(T a, T b) { return a < b ? a : b; }

template <class T> DEV T imax(T a, T b) { return a > b ? a : b; }

// ---- scalar operators that C++ lacks
template <class T> DEV T op_max(T a, T b) { return a > b ? a : b; }
template <class T> DEV T op_min(T a, T b) { return a < b ? a : b; }
DEV float op_max(float a, float b) { return a != a ? a : (b != b ? b : fmaxf(a, b)); }
DEV float op_min(float a, float b) { return a != a ? a : (b != b ? b : fminf(a, b)); }
DEV double op_max(double a, double b) { return a != a ? a : (b != b ? b : fmax(a, b)); }
DEV double op_min(double a, double b) { return a != a ? a : (b != b ? b : fmin(a, b)); }

// `x / c` for a number whose reciprocal, rounded to `float`, is `r`: a quotient, corrected by its remainder (Markstein's theorem),
// without branches and without a slow path for zeros. Quotients that are 0, infinite or NaN need no correction. Ones below 2^-100 may
// be off in their last place.
DEV float divided_by(float x, float c, float r) {
    const float q = x * r, corrected = fmaf(fmaf(-q, c, x), r, q), size = fabsf(q);
    return size > 0.0f && size <= 3.402823466e38f ? corrected : q;
}

// A number that many are divided by.
struct Divisor {
    float c, r, scale;
    MEMBER float of(float x) const { return divided_by(x * scale, c, r); }
};

// The reciprocal of a subnormal number could be infinite: both operands are multiplied by 2^64.
DEV Divisor divisor(float c) {
    const float scale = fabsf(c) < 1e-30f ? 1.8446744e19f : 1.0f;
    return {c * scale, 1.0f / (c * scale), scale};
}

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
        // The period is taken off first, which is exact: tan of a large multiple of pi has no digits left.
        double part = x - rint(x);
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
        u32 h0 = high_product(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = high_product(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (i64)((u64)c0 | ((u64)c1 << 32));
}
