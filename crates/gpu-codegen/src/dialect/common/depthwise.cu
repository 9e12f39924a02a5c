// Helpers of grouped convolutions with few channels: adjacent elements as words that are loaded at once and converted to
// floats, and bounds checks of coordinates.

template <class E, int N> struct alignas(sizeof(E) * N) Packed { u32 w[sizeof(E) * N / 4]; };
template <> struct Packed<bf16, 1> { u16 w[1]; };
template <> struct Packed<f16, 1> { u16 w[1]; };

DEV void widened_pair(float *out, u32 word, Tag<bf16>) {
    out[0] = as_float(word << 16);
    out[1] = as_float(word & 0xffff0000u);
}
DEV void widened_pair(float *out, u32 word, Tag<f16>) {
    out[0] = widen(bits_as<f16>((u16)word));
    out[1] = widen(bits_as<f16>((u16)(word >> 16)));
}
template <class E, int N> DEV void widened(float *out, const Packed<E, N> &from) {
    if constexpr (sizeof(E) == 4) {
        #pragma unroll
        for (int i = 0; i < N; ++i) out[i] = as_float(from.w[i]);
    } else if constexpr (N == 1) {
        out[0] = widen(bits_as<E>(from.w[0]));
    } else {
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) widened_pair(out + 2 * i, from.w[i], Tag<E>());
    }
}
template <class I> DEV bool within(I x, I size) { return x >= 0 && x < size; }
