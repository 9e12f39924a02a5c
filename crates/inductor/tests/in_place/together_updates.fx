# The updates of parameters of four shapes, one of them as long as the call has it: one step. What the call returns of an old
# value is read before.
fx 1.0

graph "updates" {
  symbol s0 "n" 1..=16 hint 4
  %a: f32[6, 3] = buffer "a"
  %b: f32[5] = buffer "b"
  %c: f32[s0, 2] = buffer "c"
  %d: f32[] = buffer "d"
  %v: f32[6, 3] = buffer "v"
  %da: f32[6, 3] = input "da"
  %db: f32[5] = input "db"
  %dc: f32[s0, 2] = input "dc"
  %dd: f32[] = input "dd"

  %decayed: f32[6, 3] = aten.mul.Scalar(%v, 0.9)
  %v_new: f32[6, 3] = aten.add.Tensor(%decayed, %da, 1)
  %a_step: f32[6, 3] = aten.mul.Scalar(%v_new, 0.1)
  %a_new: f32[6, 3] = aten.sub.Tensor(%a, %a_step, 1)
  %b_step: f32[5] = aten.mul.Scalar(%db, 0.1)
  %b_new: f32[5] = aten.sub.Tensor(%b, %b_step, 1)
  %c_step: f32[s0, 2] = aten.mul.Scalar(%dc, 0.1)
  %c_new: f32[s0, 2] = aten.sub.Tensor(%c, %c_step, 1)
  %d_step: f32[] = aten.mul.Scalar(%dd, 0.1)
  %d_new: f32[] = aten.sub.Tensor(%d, %d_step, 1)
  %old: f32[5] = aten.exp.default(%b)
  return buffer "a" = %a_new
  return buffer "b" = %b_new
  return buffer "c" = %c_new
  return buffer "d" = %d_new
  return buffer "v" = %v_new
  return %old
}

# expected:
# kir 1.12
# program "updates"
# symbol s0 "n" 1..=16 hint 4
# buffer b0 "a" f32[6, 3]{3, 1}+0 input 0
# buffer b1 "b" f32[5]{1}+0 input 1
# buffer b2 "c" f32[s0, 2]{2, 1}+0 input 2
# buffer b3 "d" f32[]{}+0 input 3
# buffer b4 "v" f32[6, 3]{3, 1}+0 input 4
# buffer b5 "da" f32[6, 3]{3, 1}+0 input 5
# buffer b6 "db" f32[5]{1}+0 input 6
# buffer b7 "dc" f32[s0, 2]{2, 1}+0 input 7
# buffer b8 "dd" f32[]{}+0 input 8
# buffer b9 "v_new" f32[6, 3]{3, 1}+0 view b4
# buffer b10 "a_new" f32[6, 3]{3, 1}+0 view b0
# buffer b11 "b_new" f32[5]{1}+0 view b1
# buffer b12 "c_new" f32[s0, 2]{2, 1}+0 view b2
# buffer b13 "d_new" f32[]{}+0 view b3
# buffer b14 "old" f32[5]{1}+0 output
# input "a" b0 written
# input "b" b1 written
# input "c" b2 written
# input "d" b3 written
# input "v" b4 written
# input "da" b5
# input "db" b6
# input "dc" b7
# input "dd" b8
# output "old" b14[5]{1}+0
# init:
# steps:
# together "fused_decayed_v_new_a_step_a_new_and_3_more"
# do:
# loop "fused_decayed_v_new_a_step_a_new" outer [6, 3] from "decayed", "v_new", "a_step", "a_new"
#   stage []
#     v0: f32 = load b4[i0, i1]
#     v1: f32 = const 0.8999999761581421
#     v2: f32 = mul v0, v1
#     v3: f32 = load b5[i0, i1]
#     v4: f32 = add v2, v3
#     v5: f32 = load b0[i0, i1]
#     v6: f32 = const 0.10000000149011612
#     v7: f32 = mul v4, v6
#     v8: f32 = sub v5, v7
#     v9: f32 = store b9[i0, i1], v4
#     v10: f32 = store b10[i0, i1], v8
# loop "fused_c_step_c_new" outer [s0, 2] from "c_step", "c_new"
#   stage []
#     v0: f32 = load b2[i0, i1]
#     v1: f32 = load b7[i0, i1]
#     v2: f32 = const 0.10000000149011612
#     v3: f32 = mul v1, v2
#     v4: f32 = sub v0, v3
#     v5: f32 = store b12[i0, i1], v4
# loop "fused_d_step_d_new" outer [] from "d_step", "d_new"
#   stage []
#     v0: f32 = load b3[]
#     v1: f32 = load b8[]
#     v2: f32 = const 0.10000000149011612
#     v3: f32 = mul v1, v2
#     v4: f32 = sub v0, v3
#     v5: f32 = store b13[], v4
# loop "old" outer [5] from "old"
#   stage []
#     v0: f32 = load b1[i0]
#     v1: f32 = exp v0
#     v2: f32 = store b14[i0], v1
# end
# loop "fused_b_step_b_new" outer [5] from "b_step", "b_new"
#   stage []
#     v0: f32 = load b1[i0]
#     v1: f32 = load b6[i0]
#     v2: f32 = const 0.10000000149011612
#     v3: f32 = mul v1, v2
#     v4: f32 = sub v0, v3
#     v5: f32 = store b11[i0], v4
# plan bytes 0:
