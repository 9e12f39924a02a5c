// What kernels of convolutions of few channels a group stand on: elements as floats, and whether a coordinate lies within.

DEV void widened_pair(float *out, u32 word, Tag<bf16>) {
    out[0] = __uint_as_float(word << 16);
    out[1] = __uint_as_float(word & 0xffff0000u);
}
DEV void widened_pair(float *out, u32 word, Tag<f16>) {
    out[0] = widen(bits_as<f16>((u16)word));
    out[1] = widen(bits_as<f16>((u16)(word >> 16)));
}
// Neighbouring elements as floats; 16-bit ones by words of two.
template <class E, int N> DEV void widened(float *out, const Vec<E, N> &from) {
    if constexpr (sizeof(E) == 2 && N % 2 == 0) {
        struct alignas(sizeof(Vec<E, N>)) Words { u32 w[N / 2]; };
        const Words words = bits_as<Words>(from);
        #pragma unroll
        for (int i = 0; i < N / 2; ++i) widened_pair(out + 2 * i, words.w[i], Tag<E>());
    } else {
        #pragma unroll
        for (int i = 0; i < N; ++i) out[i] = to<float>(from.v[i]);
    }
}
template <class I> DEV bool within(I x, I size) { return x >= 0 && x < size; }
