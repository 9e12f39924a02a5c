// Fourier transforms in registers: what a thread does with the numbers of one step of a line (Stockham's form of Cooley and
// Tukey's steps). A step of radix R on lines whose first NS elements in a row are done takes R numbers that lie a part of the
// line apart, times waves, and leaves them where the next step, or the result, has them. SIGN is that of the exponent.
// How numbers come from memory, and from one thread to another, is in the texts of the kernels.

template <class T> struct Complex { T re, im; };

template <class T> DEV Complex<T> complex_times(Complex<T> a, T re, T im) {
    return {a.re * re - a.im * im, a.re * im + a.im * re};
}

template <class T> DEV Complex<T> complex_sum(Complex<T> a, Complex<T> b) { return {a.re + b.re, a.im + b.im}; }

template <class T> DEV Complex<T> complex_less(Complex<T> a, Complex<T> b) { return {a.re - b.re, a.im - b.im}; }

// Times i, or -i.
template <int SIGN, class T> DEV Complex<T> complex_turned(Complex<T> a) {
    if constexpr (SIGN > 0) return {-a.im, a.re};
    else return {a.im, -a.re};
}

// Where an element of shared memory is kept, so that elements that lie a power of two apart are in different banks.
DEV int fourier_slot(int i) { return i + (i >> 5); }

// Sine and cosine of x up to a quarter of pi: polynomials of fdlibm, and of Cephes for float.
DEV Complex<double> small_angle(double x) {
    double z = x * x;
    double s = ((((1.58969099521155010221e-10 * z - 2.50507602534068634195e-08) * z + 2.75573137070700676789e-06) * z - 1.98412698298579493134e-04) * z + 8.33333333332248946124e-03) * z - 1.66666666666666324348e-01;
    double c = ((((-1.13596475577881948265e-11 * z + 2.08757232129817482790e-09) * z - 2.75573143513906633035e-07) * z + 2.48015872894767294178e-05) * z - 1.38888888888741095749e-03) * z + 4.16666666666666019037e-02;
    return {1.0 - (0.5 * z - z * z * c), x + x * z * s};
}
DEV Complex<float> small_angle(float x) {
    float z = x * x;
    float s = (-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f;
    float c = (2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
    return {1.0f - (0.5f * z - z * z * c), x + x * z * s};
}

// The number on the unit circle after `a` of N parts of a turn, 0 <= a < N. The angle is reduced as an integer to an eighth of
// a turn on either side of an axis, so that it is exact to the last place.
template <class T, int N, int SIGN> DEV Complex<T> on_circle(int a) {
    constexpr double PART = 1.57079632679489661923 / N;
    constexpr T STEP = (T)PART;
    constexpr T REST = (T)(PART - (double)STEP);
    int quarter = (8 * a + N) / (2 * N);
    int r = 4 * a - quarter * N;
    Complex<T> z = small_angle((T)r * STEP + (T)r * REST);
    if (quarter & 1) z = {-z.im, z.re};
    if (quarter & 2) z = {-z.re, -z.im};
    if constexpr (SIGN < 0) z.im = -z.im;
    return z;
}

// Cosine and sine of `i` of R parts of a turn, for an odd prime R: constants, where `i` is one.
template <int R> struct Corners;
template <> struct Corners<3> {
    static MEMBER double cosine(int) { return -0.5; }
    static MEMBER double sine(int) { return 0.86602540378443864676; }
};
template <> struct Corners<5> {
    static MEMBER double cosine(int i) { return i == 1 ? 0.30901699437494742410 : -0.80901699437494742410; }
    static MEMBER double sine(int i) { return i == 1 ? 0.95105651629515357212 : 0.58778525229247312917; }
};
template <> struct Corners<7> {
    static MEMBER double cosine(int i) {
        return i == 1 ? 0.62348980185873353053 : i == 2 ? -0.22252093395631440429 : -0.90096886790241912624;
    }
    static MEMBER double sine(int i) {
        return i == 1 ? 0.78183148246802980871 : i == 2 ? 0.97492791218182360702 : 0.43388373911755812048;
    }
};
template <> struct Corners<11> {
    static MEMBER double cosine(int i) {
        return i == 1 ? 0.84125353283118116886 : i == 2 ? 0.41541501300188642553 : i == 3 ? -0.14231483827328514044
            : i == 4 ? -0.65486073394528506406 : -0.95949297361449738989;
    }
    static MEMBER double sine(int i) {
        return i == 1 ? 0.54064081745559758211 : i == 2 ? 0.90963199535451837141 : i == 3 ? 0.98982144188093273238
            : i == 4 ? 0.75574957435425828377 : 0.28173255684142969771;
    }
};
template <> struct Corners<13> {
    static MEMBER double cosine(int i) {
        return i == 1 ? 0.88545602565320989590 : i == 2 ? 0.56806474673115580251 : i == 3 ? 0.12053668025532305335
            : i == 4 ? -0.35460488704253562597 : i == 5 ? -0.74851074817110109863 : -0.97094181742605202716;
    }
    static MEMBER double sine(int i) {
        return i == 1 ? 0.46472317204376854566 : i == 2 ? 0.82298386589365639458 : i == 3 ? 0.99270887409805399280
            : i == 4 ? 0.93501624268541482344 : i == 5 ? 0.66312265824079520238 : 0.23931566428755776715;
    }
};

// The transforms of R numbers in registers.
template <int SIGN, class T> DEV void two_points(Complex<T> &a, Complex<T> &b) {
    Complex<T> c = complex_less(a, b);
    a = complex_sum(a, b);
    b = c;
}
template <int SIGN, class T> DEV void four_points(Complex<T> &a, Complex<T> &b, Complex<T> &c, Complex<T> &d) {
    Complex<T> s = complex_sum(a, c), t = complex_less(a, c), u = complex_sum(b, d);
    Complex<T> w = complex_turned<SIGN>(complex_less(b, d));
    a = complex_sum(s, u);
    b = complex_sum(t, w);
    c = complex_less(s, u);
    d = complex_less(t, w);
}
template <int R, int SIGN, class T> DEV void odd_points(Complex<T> *v) {
    constexpr int HALF = R / 2;
    Complex<T> sums[HALF], differences[HALF], first = v[0];
    #pragma unroll
    for (int k = 0; k < HALF; ++k) {
        sums[k] = complex_sum(v[k + 1], v[R - 1 - k]);
        differences[k] = complex_less(v[k + 1], v[R - 1 - k]);
        v[0] = complex_sum(v[0], sums[k]);
    }
    #pragma unroll
    for (int k = 1; k <= HALF; ++k) {
        Complex<T> even = first, odd = {0, 0};
        #pragma unroll
        for (int j = 1; j <= HALF; ++j) {
            const int i = j * k % R;
            const T c = (T)Corners<R>::cosine(i > HALF ? R - i : i);
            const T s = (T)(i > HALF ? -Corners<R>::sine(R - i) : Corners<R>::sine(i));
            even = {even.re + c * sums[j - 1].re, even.im + c * sums[j - 1].im};
            odd = {odd.re + s * differences[j - 1].re, odd.im + s * differences[j - 1].im};
        }
        odd = complex_turned<SIGN>(odd);
        v[k] = complex_sum(even, odd);
        v[R - k] = complex_less(even, odd);
    }
}
template <int SIGN, class T> DEV void eight_points(Complex<T> *v) {
    constexpr T ROOT = (T)0.70710678118654752440;
    #pragma unroll
    for (int j = 0; j < 4; ++j) two_points<SIGN>(v[j], v[4 + j]);
    v[5] = complex_times<T>(v[5], ROOT, SIGN * ROOT);
    v[6] = complex_turned<SIGN>(v[6]);
    v[7] = complex_times<T>(v[7], -ROOT, SIGN * ROOT);
    four_points<SIGN>(v[0], v[1], v[2], v[3]);
    four_points<SIGN>(v[4], v[5], v[6], v[7]);
    Complex<T> u[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) u[i] = v[i];
    #pragma unroll
    for (int i = 0; i < 8; ++i) v[i / 4 + 2 * (i % 4)] = u[i];
}
template <int SIGN, class T> DEV void sixteen_points(Complex<T> *v) {
    constexpr T ROOT = (T)0.70710678118654752440, C = (T)0.92387953251128675613, S = (T)0.38268343236508977173;
    #pragma unroll
    for (int j = 0; j < 4; ++j) four_points<SIGN>(v[j], v[4 + j], v[8 + j], v[12 + j]);
    v[5] = complex_times<T>(v[5], C, SIGN * S);
    v[6] = complex_times<T>(v[6], ROOT, SIGN * ROOT);
    v[7] = complex_times<T>(v[7], S, SIGN * C);
    v[9] = complex_times<T>(v[9], ROOT, SIGN * ROOT);
    v[10] = complex_turned<SIGN>(v[10]);
    v[11] = complex_times<T>(v[11], -ROOT, SIGN * ROOT);
    v[13] = complex_times<T>(v[13], S, SIGN * C);
    v[14] = complex_times<T>(v[14], -ROOT, SIGN * ROOT);
    v[15] = complex_times<T>(v[15], -C, -SIGN * S);
    Complex<T> u[16];
    #pragma unroll
    for (int k = 0; k < 4; ++k) four_points<SIGN>(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
    #pragma unroll
    for (int i = 0; i < 16; ++i) u[i] = v[i];
    #pragma unroll
    for (int i = 0; i < 16; ++i) v[i / 4 + 4 * (i % 4)] = u[i];
}
template <int R, int SIGN, class T> DEV void fourier_points(Complex<T> *v) {
    if constexpr (R == 2) two_points<SIGN>(v[0], v[1]);
    else if constexpr (R == 4) four_points<SIGN>(v[0], v[1], v[2], v[3]);
    else if constexpr (R == 8) eight_points<SIGN>(v);
    else if constexpr (R == 16) sixteen_points<SIGN>(v);
    else if constexpr (R > 2) odd_points<R, SIGN>(v);
}

// The waves of a step: number q is multiplied by that after `q k` of N parts of a turn. Those of powers of two are computed, the
// others are products of these, so that errors stay those of a few roundings.
template <int R, int N, int SIGN, class T> DEV void fourier_waves(Complex<T> *v, int k) {
    Complex<T> w[R];
    #pragma unroll
    for (int q = 1; q < R; ++q) {
        const int high = q >= 8 ? 8 : q >= 4 ? 4 : q >= 2 ? 2 : 1;
        w[q] = q == high ? on_circle<T, N, SIGN>(q * k) : complex_times<T>(w[high], w[q - high].re, w[q - high].im);
        v[q] = complex_times<T>(v[q], w[q].re, w[q].im);
    }
}

// Step of radix R with NS elements done, for the numbers of place `j`.
template <int R, int NS, int SIGN, class T> DEV void fourier_step(Complex<T> *v, int j) {
    if constexpr (NS > 1 && R > 1) fourier_waves<R, NS * R, SIGN>(v, j % NS);
    fourier_points<R, SIGN>(v);
}

// Where that step leaves its number `q`.
template <int R, int NS> DEV int fourier_place(int j, int q) { return j / NS * (NS * R) + j % NS + q * NS; }

// Element k of the transform of N real numbers out of that of their pairs, of which `a` is element k and `b` element N / 2 - k.
template <int N, int SIGN, class T> DEV Complex<T> out_of_pairs(Complex<T> a, Complex<T> b, int k) {
    Complex<T> w = on_circle<T, N, SIGN>(k);
    Complex<T> even = {(T)0.5 * (a.re + b.re), (T)0.5 * (a.im - b.im)};
    Complex<T> odd = {(T)0.5 * (a.im + b.im), (T)0.5 * (b.re - a.re)};
    return complex_sum(even, complex_times<T>(odd, w.re, w.im));
}

// Element k of what is transformed to the pairs of N real numbers, where `a` and `b` are elements k and N / 2 - k of their transform.
template <int N, int SIGN, class T> DEV Complex<T> into_pairs(Complex<T> a, Complex<T> b, int k) {
    Complex<T> w = on_circle<T, N, SIGN>(k);
    Complex<T> even = {a.re + b.re, a.im - b.im};
    Complex<T> odd = complex_times<T>({a.re - b.re, a.im + b.im}, w.re, w.im);
    return {even.re - odd.im, even.im + odd.re};
}
