// 16-bit floats on the host. Replaces `cuda/numbers.cu`.

DEV float widen(f16 x) { return ffx_from_f16(x.bits); }

DEV float widen(bf16 x) { return as_float((u32)x.bits << 16); }

DEV f16 to_f16(float x) { f16 y; y.bits = ffx_to_f16(x); return y; }

DEV bf16 to_bf16(float x) { bf16 y; y.bits = ffx_to_bf16(x); return y; }

// A number rounded to bf16, as a float.
DEV float rounded_bf16(float x) { return widen(to_bf16(x)); }

// The cast of a number that is out of range is undefined on the host; GPUs saturate.
DEV i64 trunc64(double x) { return ffx_saturate(x); }
DEV i64 trunc64(float x) { return ffx_saturate(x); }
