# A row whose scores are not numbers is not a row without scores: it gives NaN, not zeros.
fx 1.0

graph "attention_of_nan" {
  %nan: f32[2, 2, 4, 1] = input "nan"
  %k: f32[2, 2, 4, 1] = input "k"
  %v: f32[2, 2, 4, 1] = input "v"

  %y: f32[2, 2, 4, 1], %s: f32[2, 2, 4] = prims.attention(%nan, %k, %v, none, true, 1.0, none, 1.0)
  return %y
}
