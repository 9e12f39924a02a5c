# test error
fx 1.0

graph "g" {
  %x: f33[2] = input "x"
}

# expected:
# 5:7: `f33` is not a dtype: one of bool, u8, u16, u32, u64, i8, i16, i32, i64, f8e4m3, f8e5m2, f16, bf16, f32, f64, c64, c128
