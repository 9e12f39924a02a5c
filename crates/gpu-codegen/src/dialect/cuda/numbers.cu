// 16-bit floats by PTX, rounded to nearest even, and saturating conversions to integers.

DEV float widen(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }

DEV f16 to_f16(float x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }

DEV bf16 to_bf16(float x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }

DEV i64 trunc64(double x) { return x != x ? 0 : (i64)x; }
DEV i64 trunc64(float x) { return x != x ? 0 : (i64)x; }
