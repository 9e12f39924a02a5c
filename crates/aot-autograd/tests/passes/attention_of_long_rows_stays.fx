# test pass attention
# Of long rows, such as channels that attend to one another, scores are little memory beside the operands.
fx 1.0

graph "g" {
  %q: f32[2, 3, 5, 513] = input "q"
  %k: f32[2, 3, 6, 513] = input "k"
  %v: f32[2, 3, 6, 4] = input "v"

  %kt: f32[2, 3, 513, 6] = prims.permute(%k, [0, 1, 3, 2])
  %p: f32[2, 3, 5, 6] = prims.matmul(%q, %kt)
  %s: f32[2, 3, 5, 6] = prims.mul(%p, 0.5)
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
#   %q: f32[2, 3, 5, 513] = input "q"
#   %k: f32[2, 3, 6, 513] = input "k"
#   %v: f32[2, 3, 6, 4] = input "v"
#
#   %kt: f32[2, 3, 513, 6] = prims.permute(%k, [0, 1, 3, 2])
#   %p: f32[2, 3, 5, 6] = prims.matmul(%q, %kt)
#   %s: f32[2, 3, 5, 6] = prims.mul(%p, 0.5)
#   %top: f32[2, 3, 5] = prims.amax(%s, [3])
#   %top1: f32[2, 3, 5, 1] = prims.reshape(%top, [2, 3, 5, 1])
#   %tope: f32[2, 3, 5, 6] = prims.expand(%top1, [2, 3, 5, 6])
#   %d: f32[2, 3, 5, 6] = prims.sub(%s, %tope)
#   %e: f32[2, 3, 5, 6] = prims.exp(%d)
#   %sum: f32[2, 3, 5] = prims.sum(%e, [3])
#   %sum1: f32[2, 3, 5, 1] = prims.reshape(%sum, [2, 3, 5, 1])
#   %sume: f32[2, 3, 5, 6] = prims.expand(%sum1, [2, 3, 5, 6])
#   %w: f32[2, 3, 5, 6] = prims.div(%e, %sume)
#   %y: f32[2, 3, 5, 4] = prims.matmul(%w, %v)
#   return %y
# }
