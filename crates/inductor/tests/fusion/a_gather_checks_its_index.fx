# test fuse
# An index from data is checked where it is used, with the operator that asked for it as the site.
fx 1.0

graph "g" {
  %t: f32[10, 4] = input "t"
  %i: i64[3] = input "i"

  %r: f32[3, 4] = prims.index(%t, [%i], 0) from emb:forward:"net.py:7":"aten.embedding.default"
  return %r
}

# expected:
# kir 1.12
# program "g"
# site "aten.embedding.default" "emb: forward at net.py:7" dim 0
# buffer b0 "t" f32[10, 4]{4, 1}+0 input 0
# buffer b1 "i" i64[3]{1}+0 input 1
# buffer b2 "r" f32[3, 4]{4, 1}+0 output
# input "t" b0
# input "i" b1
# output "r" b2[3, 4]{4, 1}+0
# init:
# steps:
# loop "r" outer [3, 4] from "r"
#   stage []
#     v0: i64 = load b1[i0]
#     v1: i64 = check v0, [10] at 0
#     v2: f32 = load b0[v1, i1]
#     v3: f32 = store b2[i0, i1], v2
# plan bytes 0:
