# Two positions, one after the other; what lies between reads the value between.
fx 1.0

graph "chain" {
  %cache: f32[6, 4] = buffer "cache"
  %a: f32[1, 4] = input "a"
  %b: f32[1, 4] = input "b"
  %i: i64[1] = input "at2"
  %j: i64[1] = input "at4"

  %one: f32[6, 4] = aten.index_copy.default(%cache, 0, %i, %a)
  %between: f32[6] = aten.sum.dim_IntList(%one, [1], false, none)
  %two: f32[6, 4] = aten.index_add.default(%one, 0, %j, %b, 1)
  return buffer "cache" = %two
  return %between
}

# expected:
# kir 1.12
# program "chain"
# site "aten.index_copy.default" "" dim 0
# site "aten.index_add.default" "" dim 0
# buffer b0 "cache" f32[6, 4]{4, 1}+0 input 0
# buffer b1 "a" f32[1, 4]{4, 1}+0 input 1
# buffer b2 "b" f32[1, 4]{4, 1}+0 input 2
# buffer b3 "i" i64[1]{1}+0 input 3
# buffer b4 "j" i64[1]{1}+0 input 4
# buffer b5 "one" f32[6, 4]{4, 1}+0 view b0
# buffer b6 "between" f32[6]{1}+0 output
# buffer b7 "two" f32[6, 4]{4, 1}+0 view b0
# input "cache" b0 written
# input "a" b1
# input "b" b2
# input "at2" b3
# input "at4" b4
# output "between" b6[6]{1}+0
# init:
# steps:
# loop "one" outer [1, 4] from "one"
#   stage []
#     v0: f32 = load b1[i0, i1]
#     v1: i64 = load b3[i0]
#     v2: i64 = check v1, [6] at 0
#     v3: f32 = store b5[v2, i1], v0
# loop "between" outer [6] from "between"
#   acc0: f32 sum
#   stage [4]
#     v0: f32 = load b5[i0, i1]
#     v1: f32 = reduce acc0, v0
#   stage []
#     v0: f32 = acc0
#     v1: f32 = store b6[i0], v0
# loop "two" outer [1, 4] from "two"
#   stage []
#     v0: f32 = load b2[i0, i1]
#     v1: i64 = load b4[i0]
#     v2: i64 = check v1, [6] at 1
#     v3: f32 = store_add b7[v2, i1], v0
# plan bytes 0:
