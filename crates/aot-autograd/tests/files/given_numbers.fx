# Numbers that the caller gives are tensors without dimensions. The symbol of an integer is bound where no size tells it; one
# that is a multiple of another symbol is divided; an input whose size integers determine is taken as large as they say.
fx 1.0

graph "g" {
  symbol s0 "n" 0..
  symbol s1 "k" -100..=100
  symbol s2 "half" 0..
  symbol s3 "j" 1..
  %x: f32[s0, 2] = input "x"
  %y: f32[3, s1*s3] = input "y"
  %n: int(s0) = input "n"
  %k: int(s1) = input "k"
  %m: int(2*s2 + s1) = input "m"
  %j: int(s3) = input "j"
  %scale: float = input "scale"
  %flag: bool = input "flag"

  %mul: f32[s0, 2] = aten.mul.Tensor(%x, %scale)
  %add: f32[s0, 2] = aten.add.Tensor(%mul, %n, 1)
  %full: f32[s2] = aten.full.default([s2], %m, f32, none, none, none)
  %twice: f32[3, s1*s3] = aten.mul_.Tensor(%y, 2)
  %both: f32[s0, 2] = aten.mul.Tensor(%add, %flag)
  return %both
  return %full
  return %twice
  return %k
}

# expected:
# fx 1.0
#
# graph "g" {
#   symbol s0 "n" 0..
#   symbol s1 "k" -100..=100 unbacked
#   symbol s2 "half" 0.. unbacked
#   symbol s3 "j" 1.. unbacked
#   symbol s4 "m" -9223372036854775808.. unbacked
#   symbol s5 "y_1" 0..
#   %x: f32[s0, 2] = input "x"
#   %y: f32[3, s5] = input "y"
#   %n: i64[] = input "n"
#   %k: i64[] = input "k"
#   %m: i64[] = input "m"
#   %j: i64[] = input "j"
#   %scale: f64[] = input "scale"
#   %flag: bool[] = input "flag"
#
#   %scale_1: float = aten.item.default(%scale)
#   %flag_1: bool = aten.item.default(%flag)
#   %k_1: int(s1) = aten.item.default(%k)
#   %j_1: int(s3) = aten.item.default(%j)
#   %m_1: int(s4) = aten.item.default(%m)
#   %m_2: i64[] = aten.scalar_tensor.default((-s1 + s4) // 2, i64, none, none, none)
#   %m_3: int(s2) = aten.item.default(%m_2)
#   %y_1: f32[3, s1*s3]{s5, 1} = aten.narrow.default(%y, 1, 0, s1*s3)
#   %mul: f32[s0, 2] = aten.mul.Tensor(%x, %scale_1)
#   %add: f32[s0, 2] = aten.add.Tensor(%mul, s0, 1)
#   %full: f32[s2] = aten.full.default([s2], s1 + 2*s2, f32, none, none, none)
#   %mul_1: f32[3, s1*s3]{s5, 1} = aten.mul.Tensor(%y_1, 2)
#   %y_2: f32[3, s5] = aten.slice_scatter.default(%y, %mul_1, 1, 0, s1*s3, 1)
#   %both: f32[s0, 2] = aten.mul.Tensor(%add, %flag_1)
#   %number_3: i64[] = aten.scalar_tensor.default(s1, i64, none, none, none)
#   return %both
#   return %full
#   return %mul_1
#   return %number_3
#   return input "y" = %y_2
# }
