# test pass attention
# Scores that are replaced by the least number where a condition holds are hidden by a mask that is added, beside a bias.
fx 1.0

graph "g" {
  %q: f32[2, 3, 5, 4] = input "q"
  %k: f32[2, 3, 6, 4] = input "k"
  %v: f32[2, 3, 6, 4] = input "v"
  %bias: f32[1, 3, 1, 6] = input "bias"
  %c: bool[1, 1, 5, 6] = input "c"

  %kt: f32[2, 3, 4, 6] = prims.permute(%k, [0, 1, 3, 2])
  %p: f32[2, 3, 5, 6] = prims.matmul(%q, %kt)
  %x: f32[2, 3, 5, 6] = prims.mul(%p, 0.5)
  %be: f32[2, 3, 5, 6] = prims.expand(%bias, [2, 3, 5, 6])
  %a: f32[2, 3, 5, 6] = prims.add(%x, %be)
  %ce: bool[2, 3, 5, 6] = prims.expand(%c, [2, 3, 5, 6])
  %s: f32[2, 3, 5, 6] = prims.select(%ce, -3.4028234663852886e38, %a)
  %top: f32[2, 3, 5] = prims.amax(%s, [3])
  %top1: f32[2, 3, 5, 1] = prims.reshape(%top, [2, 3, 5, 1])
  %tope: f32[2, 3, 5, 6] = prims.expand(%top1, [2, 3, 5, 6])
  %d: f32[2, 3, 5, 6] = prims.sub(%s, %tope)
  %e: f32[2, 3, 5, 6] = prims.exp(%d)
  %sum: f32[2, 3, 5] = prims.sum(%e, [3])
  %sum1: f32[2, 3, 5, 1] = prims.reshape(%sum, [2, 3, 5, 1])
  %sume: f32[2, 3, 5, 6] = prims.expand(%sum1, [2, 3, 5, 6])
  %w: f32[2, 3, 5, 6] = prims.div(%e, %sume)
  %y: f32[2, 3, 5, 4] = prims.matmul(%w, %v)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %q: f32[2, 3, 5, 4] = input "q"
#   %k: f32[2, 3, 6, 4] = input "k"
#   %v: f32[2, 3, 6, 4] = input "v"
#   %bias: f32[1, 3, 1, 6] = input "bias"
#   %c: bool[1, 1, 5, 6] = input "c"
#
#   %kt: f32[2, 3, 4, 6] = prims.permute(%k, [0, 1, 3, 2])
#   %y: f32[2, 3, 6, 4] = prims.permute(%kt, [0, 1, 3, 2])
#   %y_1: bool[1, 1, 5, 6] = prims.not(%c)
#   %y_2: f32[] = prims.full([], 0.0, f32)
#   %y_3: f32[] = prims.full([], -3.4028234663852886e38, f32)
#   %y_4: f32[1, 1, 5, 6] = prims.expand(%y_2, [1, 1, 5, 6])
#   %y_5: f32[1, 1, 5, 6] = prims.expand(%y_3, [1, 1, 5, 6])
#   %y_6: f32[1, 1, 5, 6] = prims.select(%y_1, %y_4, %y_5)
#   %y_7: f32[1, 3, 5, 6] = prims.expand(%bias, [1, 3, 5, 6])
#   %y_8: f32[1, 3, 5, 6] = prims.expand(%y_6, [1, 3, 5, 6])
#   %y_9: f32[1, 3, 5, 6] = prims.add(%y_7, %y_8)
#   %y_10: f32[2, 3, 5, 4], %y_11: f32[2, 3, 5] = prims.attention(%q, %y, %v, %y_9, false, 0.5, none, 1.0)
#   return %y_10
# }
