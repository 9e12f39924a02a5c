# test fuse
# Parts that together take more work for each element than one kernel should do for all of them: each is a loop of its own, which stores
# to its part of the result.
fx 1.0

graph "g" {
  %x: f32[8, 64] = input "x"
  %y: f32[8, 64] = input "y"

  %a0: f32[8, 64] = prims.mul(%x, %x)
  %a1: f32[8, 64] = prims.add(%a0, 1.5)
  %a2: f32[8, 64] = prims.sub(%a1, 2.5)
  %a3: f32[8, 64] = prims.max(%a2, 3.5)
  %a4: f32[8, 64] = prims.min(%a3, 4.5)
  %a5: f32[8, 64] = prims.mul(%a4, %x)
  %a6: f32[8, 64] = prims.add(%a5, 6.5)
  %a7: f32[8, 64] = prims.sub(%a6, 7.5)
  %a8: f32[8, 64] = prims.max(%a7, 8.5)
  %a9: f32[8, 64] = prims.min(%a8, 9.5)
  %a10: f32[8, 64] = prims.mul(%a9, %x)
  %a11: f32[8, 64] = prims.add(%a10, 11.5)
  %a12: f32[8, 64] = prims.sub(%a11, 12.5)
  %a13: f32[8, 64] = prims.max(%a12, 13.5)
  %a14: f32[8, 64] = prims.min(%a13, 14.5)
  %a15: f32[8, 64] = prims.mul(%a14, %x)
  %a16: f32[8, 64] = prims.add(%a15, 16.5)
  %a17: f32[8, 64] = prims.sub(%a16, 17.5)
  %a18: f32[8, 64] = prims.max(%a17, 18.5)
  %a19: f32[8, 64] = prims.min(%a18, 19.5)
  %a20: f32[8, 64] = prims.mul(%a19, %x)
  %a21: f32[8, 64] = prims.add(%a20, 21.5)
  %a22: f32[8, 64] = prims.sub(%a21, 22.5)
  %a23: f32[8, 64] = prims.max(%a22, 23.5)
  %b0: f32[8, 64] = prims.mul(%y, %y)
  %b1: f32[8, 64] = prims.add(%b0, 1.5)
  %b2: f32[8, 64] = prims.sub(%b1, 2.5)
  %b3: f32[8, 64] = prims.max(%b2, 3.5)
  %b4: f32[8, 64] = prims.min(%b3, 4.5)
  %b5: f32[8, 64] = prims.mul(%b4, %y)
  %b6: f32[8, 64] = prims.add(%b5, 6.5)
  %b7: f32[8, 64] = prims.sub(%b6, 7.5)
  %b8: f32[8, 64] = prims.max(%b7, 8.5)
  %b9: f32[8, 64] = prims.min(%b8, 9.5)
  %b10: f32[8, 64] = prims.mul(%b9, %y)
  %b11: f32[8, 64] = prims.add(%b10, 11.5)
  %b12: f32[8, 64] = prims.sub(%b11, 12.5)
  %b13: f32[8, 64] = prims.max(%b12, 13.5)
  %b14: f32[8, 64] = prims.min(%b13, 14.5)
  %b15: f32[8, 64] = prims.mul(%b14, %y)
  %b16: f32[8, 64] = prims.add(%b15, 16.5)
  %b17: f32[8, 64] = prims.sub(%b16, 17.5)
  %b18: f32[8, 64] = prims.max(%b17, 18.5)
  %b19: f32[8, 64] = prims.min(%b18, 19.5)
  %b20: f32[8, 64] = prims.mul(%b19, %y)
  %b21: f32[8, 64] = prims.add(%b20, 21.5)
  %b22: f32[8, 64] = prims.sub(%b21, 22.5)
  %b23: f32[8, 64] = prims.max(%b22, 23.5)
  %c: f32[8, 128] = prims.cat([%a23, %b23], 1)
  return %c
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[8, 64]{64, 1}+0 input 0
# buffer b1 "y" f32[8, 64]{64, 1}+0 input 1
# buffer b2 "c" f32[8, 128]{128, 1}+0 output
# buffer b3 "a23" f32[8, 64]{128, 1}+0 view b2
# buffer b4 "b23" f32[8, 64]{128, 1}+64 view b2
# input "x" b0
# input "y" b1
# output "c" b2[8, 128]{128, 1}+0
# init:
# steps:
# loop "fused_a0_a1_a2_a3_a4" outer [8, 64] from "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "a10", "a11", "a12", "a13", "a14", "a15", "a16", "a17", "a18", "a19", "a20", "a21", "a22", "a23"
#   stage []
#     v0: f32 = load b0[i0, i1]
#     v1: f32 = mul v0, v0
#     v2: f32 = const 1.5
#     v3: f32 = add v1, v2
#     v4: f32 = const 2.5
#     v5: f32 = sub v3, v4
#     v6: f32 = const 3.5
#     v7: f32 = max v5, v6
#     v8: f32 = const 4.5
#     v9: f32 = min v7, v8
#     v10: f32 = mul v9, v0
#     v11: f32 = const 6.5
#     v12: f32 = add v10, v11
#     v13: f32 = const 7.5
#     v14: f32 = sub v12, v13
#     v15: f32 = const 8.5
#     v16: f32 = max v14, v15
#     v17: f32 = const 9.5
#     v18: f32 = min v16, v17
#     v19: f32 = mul v18, v0
#     v20: f32 = const 11.5
#     v21: f32 = add v19, v20
#     v22: f32 = const 12.5
#     v23: f32 = sub v21, v22
#     v24: f32 = const 13.5
#     v25: f32 = max v23, v24
#     v26: f32 = const 14.5
#     v27: f32 = min v25, v26
#     v28: f32 = mul v27, v0
#     v29: f32 = const 16.5
#     v30: f32 = add v28, v29
#     v31: f32 = const 17.5
#     v32: f32 = sub v30, v31
#     v33: f32 = const 18.5
#     v34: f32 = max v32, v33
#     v35: f32 = const 19.5
#     v36: f32 = min v34, v35
#     v37: f32 = mul v36, v0
#     v38: f32 = const 21.5
#     v39: f32 = add v37, v38
#     v40: f32 = const 22.5
#     v41: f32 = sub v39, v40
#     v42: f32 = const 23.5
#     v43: f32 = max v41, v42
#     v44: f32 = store b3[i0, i1], v43
# loop "fused_b0_b1_b2_b3_b4" outer [8, 64] from "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10", "b11", "b12", "b13", "b14", "b15", "b16", "b17", "b18", "b19", "b20", "b21", "b22", "b23"
#   stage []
#     v0: f32 = load b1[i0, i1]
#     v1: f32 = mul v0, v0
#     v2: f32 = const 1.5
#     v3: f32 = add v1, v2
#     v4: f32 = const 2.5
#     v5: f32 = sub v3, v4
#     v6: f32 = const 3.5
#     v7: f32 = max v5, v6
#     v8: f32 = const 4.5
#     v9: f32 = min v7, v8
#     v10: f32 = mul v9, v0
#     v11: f32 = const 6.5
#     v12: f32 = add v10, v11
#     v13: f32 = const 7.5
#     v14: f32 = sub v12, v13
#     v15: f32 = const 8.5
#     v16: f32 = max v14, v15
#     v17: f32 = const 9.5
#     v18: f32 = min v16, v17
#     v19: f32 = mul v18, v0
#     v20: f32 = const 11.5
#     v21: f32 = add v19, v20
#     v22: f32 = const 12.5
#     v23: f32 = sub v21, v22
#     v24: f32 = const 13.5
#     v25: f32 = max v23, v24
#     v26: f32 = const 14.5
#     v27: f32 = min v25, v26
#     v28: f32 = mul v27, v0
#     v29: f32 = const 16.5
#     v30: f32 = add v28, v29
#     v31: f32 = const 17.5
#     v32: f32 = sub v30, v31
#     v33: f32 = const 18.5
#     v34: f32 = max v32, v33
#     v35: f32 = const 19.5
#     v36: f32 = min v34, v35
#     v37: f32 = mul v36, v0
#     v38: f32 = const 21.5
#     v39: f32 = add v37, v38
#     v40: f32 = const 22.5
#     v41: f32 = sub v39, v40
#     v42: f32 = const 23.5
#     v43: f32 = max v41, v42
#     v44: f32 = store b4[i0, i1], v43
# plan bytes 0:
