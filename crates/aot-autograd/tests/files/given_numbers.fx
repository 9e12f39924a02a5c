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
