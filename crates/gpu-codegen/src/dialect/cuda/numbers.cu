// 16-bit floats by PTX, rounded to nearest even, and saturating conversions to integers.

DEV float widen(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }

// As a pair of halves it is one instruction, wherever in a register the number is.
DEV float widen(bf16 x) { float y; asm("mov.b32 %0, {0, %1};" : "=f"(y) : "h"(x.bits)); return y; }

DEV f16 to_f16(float x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }

DEV bf16 to_bf16(float x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }

// A number rounded to bf16, as a float: the high half of a pair whose low half is 0.
DEV float rounded_bf16(float x) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x), "f"(0.0f));
    return as_float(y);
}

DEV i64 trunc64(double x) { return x != x ? 0 : (i64)x; }
DEV i64 trunc64(float x) { return x != x ? 0 : (i64)x; }
