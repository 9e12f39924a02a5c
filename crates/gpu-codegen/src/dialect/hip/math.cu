// Functions of numbers for a compiler without device libraries (`-nogpulib`), in the names of C's library, in double precision; those
// of floats round their results once. Errors are a few units in the last place of a double, for powers as many as the exponent has
// digits; sines of more than 2^50 have none right. What the machine has as instructions is the compiler's.

// ---- instructions
#if defined(BARE_HIP)
BARE double fabs(double x) { return __builtin_fabs(x); }
BARE float fabsf(float x) { return __builtin_fabsf(x); }
BARE double floor(double x) { return __builtin_floor(x); }
BARE float floorf(float x) { return __builtin_floorf(x); }
BARE double ceil(double x) { return __builtin_ceil(x); }
BARE float ceilf(float x) { return __builtin_ceilf(x); }
BARE double trunc(double x) { return __builtin_trunc(x); }
BARE float truncf(float x) { return __builtin_truncf(x); }
BARE double rint(double x) { return __builtin_rint(x); }
BARE float rintf(float x) { return __builtin_rintf(x); }
BARE double sqrt(double x) { return __builtin_sqrt(x); }
BARE float sqrtf(float x) { return __builtin_sqrtf(x); }
BARE double fmax(double x, double y) { return __builtin_fmax(x, y); }
BARE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
BARE double fmin(double x, double y) { return __builtin_fmin(x, y); }
BARE float fminf(float x, float y) { return __builtin_fminf(x, y); }
BARE double copysign(double x, double y) { return __builtin_copysign(x, y); }
BARE float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
BARE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
BARE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
BARE double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
BARE bool isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }
BARE bool isnan(double x) { return x != x; }
BARE float expf(float x) { return __builtin_expf(x); }
BARE float exp2f(float x) { return __builtin_exp2f(x); }
BARE float logf(float x) { return __builtin_logf(x); }
BARE float log2f(float x) { return __builtin_log2f(x); }
BARE float log10f(float x) { return __builtin_log10f(x); }
BARE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
BARE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
#endif

// ---- exponentials: the exponent's whole part shifts, the rest goes into the series
#if defined(BARE_HIP)
BARE double bare_exp_rest(double r) {
    double sum = 1.0;
    #pragma unroll
    for (int n = 14; n > 0; --n) sum = fma(sum, r / n, 1.0);
    return sum;
}
BARE double exp(double x) {
    if (x != x) return x;
    if (x > 709.8) return __builtin_inf();
    if (x < -745.2) return 0.0;
    const double n = rint(x * 1.4426950408889634);
    const double r = fma(n, -1.9082149292705877e-10, fma(n, -0.6931471803691238, x));
    return ldexp(bare_exp_rest(r), (int)n);
}
BARE double exp2(double x) {
    if (x != x) return x;
    const double n = rint(fmax(fmin(x, 1100.0), -1100.0));
    return ldexp(bare_exp_rest(0.6931471805599453 * fmax(fmin(x - n, 1.0), -1.0)), (int)n);
}
BARE double expm1(double x) {
    if (fabs(x) > 0.5) return exp(x) - 1.0;
    double sum = 1.0;
    #pragma unroll
    for (int n = 16; n > 1; --n) sum = fma(sum, x / n, 1.0);
    return x * sum;
}
BARE float expm1f(float x) { return (float)expm1((double)x); }
#endif

// ---- logarithms: of the mantissa by the series of the area tangent
#if defined(BARE_HIP)
BARE double bare_mantissa(double x, int &exponent) {
    double m = __builtin_amdgcn_frexp_mant(x);
    exponent = __builtin_amdgcn_frexp_exp(x);
    if (m < 0.7071067811865476) {
        m *= 2.0;
        exponent -= 1;
    }
    return m;
}
BARE double bare_log_of_mantissa(double m) {
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double sum = 0.0;
    #pragma unroll
    for (int n = 12; n > 0; --n) sum = fma(sum, z, 1.0 / (2 * n + 1));
    return 2.0 * fma(s * z, sum, s);
}
BARE bool bare_log_ends(double x, double &y) {
    y = x == 0.0 ? -__builtin_inf() : x < 0.0 ? __builtin_nan("") : x;
    return !(x > 0.0 && x < __builtin_inf());
}
BARE double log(double x) {
    double y;
    if (bare_log_ends(x, y)) return y;
    int n;
    const double l = bare_log_of_mantissa(bare_mantissa(x, n));
    return fma((double)n, 0.6931471803691238, fma((double)n, 1.9082149292705877e-10, l));
}
BARE double log2(double x) {
    double y;
    if (bare_log_ends(x, y)) return y;
    int n;
    const double l = bare_log_of_mantissa(bare_mantissa(x, n));
    return fma(l, 1.4426950408889634, (double)n);
}
BARE double log10(double x) { return log(x) * 0.4342944819032518; }
BARE double log1p(double x) {
    const double u = 1.0 + x;
    if (u == 1.0 || x == __builtin_inf()) return x;
    return log(u) * (x / (u - 1.0));
}
BARE float log1pf(float x) { return (float)log1p((double)x); }
#endif

// ---- powers and remainders
#if defined(BARE_HIP)
BARE double pow(double x, double y) {
    if (y == 0.0 || x == 1.0) return 1.0;
    if (x != x || y != y) return __builtin_nan("");
    const bool whole = trunc(y) == y, odd = whole && fabs(y) < 9007199254740992.0 && (long long)y % 2 != 0;
    const double a = fabs(x);
    if (x < 0.0 && !whole && a < __builtin_inf() && fabs(y) < __builtin_inf()) return __builtin_nan("");
    double r;
    if (a == 0.0 || isinf(a) || isinf(y)) {
        const bool grows = (a > 1.0) == (y > 0.0);
        r = a == 1.0 ? 1.0 : grows ? __builtin_inf() : 0.0;
    } else if (whole && fabs(y) <= 64.0) {
        r = 1.0;
        double base = a;
        for (int n = (int)fabs(y); n; n >>= 1) {
            if (n & 1) r *= base;
            base *= base;
        }
        if (y < 0.0) r = 1.0 / r;
    } else {
        const double l = log(a), p = y * l, rest = isinf(p) ? 0.0 : fma(y, l, -p);
        r = exp(p);
        if (!isinf(r)) r = fma(r, rest, r);
    }
    return x < 0.0 || (x == 0.0 && copysign(1.0, x) < 0.0) ? (odd ? -r : r) : r;
}
BARE float powf(float x, float y) { return (float)pow((double)x, (double)y); }
BARE double fmod(double x, double y) {
    if (x != x || y != y || isinf(x) || y == 0.0) return __builtin_nan("");
    double r = fabs(x);
    const double b = fabs(y);
    if (isinf(b)) return x;
    while (r >= b) {
        double part = ldexp(b, __builtin_amdgcn_frexp_exp(r) - __builtin_amdgcn_frexp_exp(b));
        if (part > r) part *= 0.5;
        r -= part;
    }
    return copysign(r, x);
}
BARE float fmodf(float x, float y) { return (float)fmod((double)x, (double)y); }
BARE double nextafter(double x, double y) {
    if (x != x || y != y) return __builtin_nan("");
    if (x == y) return y;
    if (x == 0.0) return copysign(4.9406564584124654e-324, y);
    const long long bits = __builtin_bit_cast(long long, x);
    return __builtin_bit_cast(double, (x < y) == (x > 0.0) ? bits + 1 : bits - 1);
}
BARE float nextafterf(float x, float y) {
    if (x != x || y != y) return __builtin_nanf("");
    if (x == y) return y;
    if (x == 0.0f) return copysignf(1.4012984643e-45f, y);
    const int bits = __builtin_bit_cast(int, x);
    return __builtin_bit_cast(float, (x < y) == (x > 0.0f) ? bits + 1 : bits - 1);
}
#endif

// ---- angles: quarters of a turn are taken off by pi / 2 in three parts
#if defined(BARE_HIP)
BARE double bare_turn(double x, int &quarter) {
    const double n = rint(x * 0.6366197723675814);
    quarter = (int)((long long)fmod(n, 4.0) & 3);
    return fma(n, 1.4973849048591833e-33, fma(n, -6.123233995736766e-17, fma(n, -1.5707963267948966, x)));
}
BARE double bare_sin(double r) {
    const double z = r * r;
    double sum = 1.0;
    #pragma unroll
    for (int n = 10; n > 0; --n) sum = fma(sum, -z / (2 * n * (2 * n + 1)), 1.0);
    return r * sum;
}
BARE double bare_cos(double r) {
    const double z = r * r;
    double sum = 1.0;
    #pragma unroll
    for (int n = 10; n > 0; --n) sum = fma(sum, -z / (2 * n * (2 * n - 1)), 1.0);
    return sum;
}
BARE double bare_wave(double x, int ahead) {
    if (x != x || isinf(x)) return __builtin_nan("");
    int quarter;
    const double r = bare_turn(x, quarter);
    quarter += ahead;
    const double y = quarter & 1 ? bare_cos(r) : bare_sin(r);
    return quarter & 2 ? -y : y;
}
BARE double sin(double x) { return x == 0.0 ? x : bare_wave(x, 0); }
BARE double cos(double x) { return bare_wave(x, 1); }
BARE double tan(double x) { return x == 0.0 ? x : bare_wave(x, 0) / bare_wave(x, 1); }
BARE double atan(double x) {
    const double a = fabs(x);
    if (x != x) return x;
    const double in = a > 1.0 ? 1.0 / a : a;
    // The tangent of 1/2 less than what is left, around a half.
    const bool far = in > 0.25;
    const double s = far ? (in - 0.5) / fma(0.5, in, 1.0) : in, z = s * s;
    double sum = 0.0;
    #pragma unroll
    for (int n = 17; n > 0; --n) sum = fma(sum, -z, 1.0 / (2 * n + 1));
    const double part = fma(s * -z, sum, s) + (far ? 0.4636476090008061 : 0.0);
    return copysign(a > 1.0 ? 1.5707963267948966 - part : part, x);
}
BARE double atan2(double y, double x) {
    if (x != x || y != y) return __builtin_nan("");
    const bool back = copysign(1.0, x) < 0.0;
    double r;
    if (y == 0.0) r = 0.0;
    else if (isinf(x) && isinf(y)) r = 0.7853981633974483;
    else r = x == 0.0 ? 1.5707963267948966 : atan(fabs(y) / fabs(x));
    return copysign(back ? 3.141592653589793 - r : r, y);
}
BARE float atan2f(float y, float x) { return (float)atan2((double)y, (double)x); }
BARE double asin(double x) { return fabs(x) > 1.0 ? __builtin_nan("") : x == 0.0 ? x : atan2(x, sqrt((1.0 - x) * (1.0 + x))); }
BARE double acos(double x) { return fabs(x) > 1.0 ? __builtin_nan("") : atan2(sqrt((1.0 - x) * (1.0 + x)), x); }
BARE float sinf(float x) { return (float)sin((double)x); }
BARE float cosf(float x) { return (float)cos((double)x); }
BARE float tanf(float x) { return (float)tan((double)x); }
BARE float atanf(float x) { return (float)atan((double)x); }
BARE float asinf(float x) { return (float)asin((double)x); }
BARE float acosf(float x) { return (float)acos((double)x); }
#endif

// ---- hyperbolic functions
#if defined(BARE_HIP)
BARE double sinh(double x) {
    const double a = fabs(x);
    if (a < 20.0) {
        const double t = expm1(a);
        return copysign(0.5 * (t + t / (t + 1.0)), x);
    }
    const double e = exp(0.5 * a);
    return copysign(0.5 * e * e, x);
}
BARE double cosh(double x) {
    const double e = exp(0.5 * fabs(x));
    return 0.5 * e * e + 0.5 / e / e;
}
BARE double tanh(double x) {
    const double a = fabs(x);
    if (a > 20.0) return copysign(1.0, x);
    const double t = expm1(2.0 * a);
    return copysign(t / (t + 2.0), x);
}
BARE double asinh(double x) {
    const double a = fabs(x);
    if (!(a < 1e150)) return copysign(log(a) + 0.6931471805599453, x);
    return copysign(log1p(a + a * a / (1.0 + sqrt(fma(a, a, 1.0)))), x);
}
BARE double acosh(double x) {
    if (x > 1e150) return log(x) + 0.6931471805599453;
    const double t = x - 1.0;
    // Each root is NaN below the domain; the root of the product is not.
    return log1p(t + sqrt(t) * sqrt(t + 2.0));
}
BARE double atanh(double x) {
    const double a = fabs(x);
    return copysign(0.5 * log1p(2.0 * a / (1.0 - a)), x);
}
BARE float sinhf(float x) { return (float)sinh((double)x); }
BARE float coshf(float x) { return (float)cosh((double)x); }
BARE float tanhf(float x) { return (float)tanh((double)x); }
BARE float asinhf(float x) { return (float)asinh((double)x); }
BARE float acoshf(float x) { return (float)acosh((double)x); }
BARE float atanhf(float x) { return (float)atanh((double)x); }
#endif

// ---- the error function: a series of positive terms up to 2.5, a continued fraction of its complement beyond
#if defined(BARE_HIP)
BARE double bare_bell(double x) {
    const double h = x * x;
    return isinf(h) ? 0.0 : exp(-h) * (1.0 - fma(x, x, -h));
}
BARE double bare_erf_series(double x) {
    double term = x, sum = x;
    for (int n = 1; n < 80; ++n) {
        term *= 2.0 * x * x / (2 * n + 1);
        sum += term;
    }
    return 1.1283791670955126 * bare_bell(x) * sum;
}
BARE double bare_erfc_far(double x) {
    const double z = 0.5 / (x * x);
    double f = 1.0;
    for (int n = 60; n > 0; --n) f = 1.0 + n * z / f;
    return 0.5641895835477563 * bare_bell(x) / (x * f);
}
BARE double erf(double x) {
    const double a = fabs(x);
    if (x != x) return x;
    return copysign(a < 2.5 ? bare_erf_series(a) : 1.0 - bare_erfc_far(a), x);
}
BARE double erfc(double x) {
    if (x != x) return x;
    return x < 2.5 ? 1.0 - erf(x) : bare_erfc_far(x);
}
BARE double erfinv(double y) {
    const double a = fabs(y);
    if (!(a <= 1.0)) return __builtin_nan("");
    if (a == 1.0) return copysign(__builtin_inf(), y);
    if (a == 0.0) return y;
    // A rough start (Winitzki's formula), then Newton's steps on the function, or on the logarithm of its complement.
    const double tail = 1.0 - a, l = log1p(-a * a), b = 4.3307467508 + l / 2.0;
    double x = sqrt(fmax(0.0, sqrt(b * b - l / 0.147) - b));
    for (int i = 0; i < 6; ++i) {
        const double density = 1.1283791670955126 * bare_bell(x);
        if (a < 0.5) x -= (erf(x) - a) / density;
        else {
            const double rest = erfc(x);
            x += rest * (log(rest) - log(tail)) / density;
        }
    }
    return copysign(x, y);
}
BARE float erff(float x) { return (float)erf((double)x); }
BARE float erfcf(float x) { return (float)erfc((double)x); }
BARE float erfinvf(float x) { return (float)erfinv((double)x); }
#endif

// ---- the logarithm of the gamma function: Stirling's series from 10 on
#if defined(BARE_HIP)
BARE double bare_lgamma_positive(double x) {
    double product = 1.0;
    while (x < 10.0) {
        product *= x;
        x += 1.0;
    }
    const double z = 1.0 / (x * x);
    const double series = 1.0 / 12.0 - z * (1.0 / 360.0 - z * (1.0 / 1260.0 - z * (1.0 / 1680.0 - z * (1.0 / 1188.0 - z * 691.0 / 360360.0))));
    return (x - 0.5) * log(x) - x + 0.9189385332046727 + series / x - log(product);
}
BARE double lgamma(double x) {
    if (x != x) return x;
    if (isinf(x) || (x <= 0.0 && floor(x) == x)) return __builtin_inf();
    if (x > 0.0) return bare_lgamma_positive(x);
    const double part = x - floor(x);
    return log(3.141592653589793 / fabs(sin(3.141592653589793 * part))) - bare_lgamma_positive(1.0 - x);
}
BARE float lgammaf(float x) { return (float)lgamma((double)x); }
#endif
