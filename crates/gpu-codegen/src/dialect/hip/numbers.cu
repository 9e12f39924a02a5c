// 16-bit floats without bf16 instructions, rounded to nearest even, and saturating conversions to integers.

DEV float widen(f16 x) { return (float)__builtin_bit_cast(_Float16, x.bits); }

DEV float widen(bf16 x) { return as_float((u32)x.bits << 16); }

DEV f16 to_f16(float x) {
    f16 y;
    y.bits = __builtin_bit_cast(u16, (_Float16)x);
    return y;
}

DEV bf16 to_bf16(float x) {
    const u32 bits = as_bits(x);
    bf16 y;
    y.bits = x != x ? (u16)0x7fff : (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    return y;
}

// A number rounded to bf16, as a float.
DEV float rounded_bf16(float x) { return widen(to_bf16(x)); }

// The cast of a number that is out of range is undefined.
DEV i64 trunc64(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return 0x7fffffffffffffffLL;
    return x <= -9223372036854775808.0 ? -0x7fffffffffffffffLL - 1 : (i64)x;
}
DEV i64 trunc64(float x) { return trunc64((double)x); }
