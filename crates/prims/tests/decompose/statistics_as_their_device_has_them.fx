# test decompose
# Statistics of 16-bit floats are 16-bit floats on CPUs, and of the dtype of arithmetic on GPUs: the graph states which.
fx 1.0

graph "g" {
  %x: bf16[2, 4] = input "x"
  %w: bf16[4] = parameter "w"
  %b: bf16[4] = parameter "b"
  %rm: bf16[4] = buffer "rm"
  %rv: bf16[4] = buffer "rv"

  %cpu.0: bf16[2, 4], %cpu.1: bf16[2, 1], %cpu.2: bf16[2, 1] = aten.native_layer_norm.default(%x, [4], %w, %b, 0.00001)
  %gpu.0: bf16[2, 4], %gpu.1: f32[2, 1], %gpu.2: f32[2, 1] = aten.native_layer_norm.default(%x, [4], %w, %b, 0.00001)
  %batch.0: bf16[2, 4], %batch.1: f32[4], %batch.2: f32[4], %batch.3: bf16[4], %batch.4: bf16[4] = aten._native_batch_norm_legit_functional.default(%x, %w, %b, %rm, %rv, true, 0.1, 0.00001)
  return %cpu.0
  return %cpu.1
  return %gpu.0
  return %gpu.1
  return %gpu.2
  return %batch.0
  return %batch.1
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: bf16[2, 4] = input "x"
#   %w: bf16[4] = parameter "w"
#   %b: bf16[4] = parameter "b"
#   %rm: bf16[4] = buffer "rm"
#   %rv: bf16[4] = buffer "rv"
#
#   %cpu.0: f32[2, 4] = prims.convert(%x, f32)
#   %cpu.0_1: f32[2] = prims.sum(%cpu.0, [1])
#   %cpu.0_2: f32[2, 1] = prims.reshape(%cpu.0_1, [2, 1])
#   %cpu.0_3: f32[2, 1] = prims.div(%cpu.0_2, 4.0)
#   %cpu.0_4: f32[2, 4] = prims.expand(%cpu.0_3, [2, 4])
#   %cpu.0_5: f32[2, 4] = prims.sub(%cpu.0, %cpu.0_4)
#   %cpu.0_6: f32[2, 4] = prims.mul(%cpu.0_5, %cpu.0_5)
#   %cpu.0_7: f32[2] = prims.sum(%cpu.0_6, [1])
#   %cpu.0_8: f32[2, 1] = prims.reshape(%cpu.0_7, [2, 1])
#   %cpu.0_9: f32[2, 1] = prims.div(%cpu.0_8, 4.0)
#   %cpu.0_10: f32[2, 1] = prims.add(%cpu.0_9, 1e-5)
#   %cpu.0_11: f32[2, 1] = prims.rsqrt(%cpu.0_10)
#   %cpu.0_12: f32[2, 4] = prims.expand(%cpu.0_11, [2, 4])
#   %cpu.0_13: f32[2, 4] = prims.mul(%cpu.0_5, %cpu.0_12)
#   %cpu.0_14: f32[4] = prims.convert(%w, f32)
#   %cpu.0_15: f32[2, 4] = prims.expand(%cpu.0_14, [2, 4])
#   %cpu.0_16: f32[2, 4] = prims.mul(%cpu.0_13, %cpu.0_15)
#   %cpu.0_17: f32[4] = prims.convert(%b, f32)
#   %cpu.0_18: f32[2, 4] = prims.expand(%cpu.0_17, [2, 4])
#   %cpu.0_19: f32[2, 4] = prims.add(%cpu.0_16, %cpu.0_18)
#   %cpu.0_20: bf16[2, 4] = prims.convert(%cpu.0_19, bf16)
#   %cpu.0_21: bf16[2, 1] = prims.convert(%cpu.0_3, bf16)
#   %gpu.0: f32[2, 4] = prims.convert(%x, f32)
#   %gpu.0_1: f32[2] = prims.sum(%gpu.0, [1])
#   %gpu.0_2: f32[2, 1] = prims.reshape(%gpu.0_1, [2, 1])
#   %gpu.0_3: f32[2, 1] = prims.div(%gpu.0_2, 4.0)
#   %gpu.0_4: f32[2, 4] = prims.expand(%gpu.0_3, [2, 4])
#   %gpu.0_5: f32[2, 4] = prims.sub(%gpu.0, %gpu.0_4)
#   %gpu.0_6: f32[2, 4] = prims.mul(%gpu.0_5, %gpu.0_5)
#   %gpu.0_7: f32[2] = prims.sum(%gpu.0_6, [1])
#   %gpu.0_8: f32[2, 1] = prims.reshape(%gpu.0_7, [2, 1])
#   %gpu.0_9: f32[2, 1] = prims.div(%gpu.0_8, 4.0)
#   %gpu.0_10: f32[2, 1] = prims.add(%gpu.0_9, 1e-5)
#   %gpu.0_11: f32[2, 1] = prims.rsqrt(%gpu.0_10)
#   %gpu.0_12: f32[2, 4] = prims.expand(%gpu.0_11, [2, 4])
#   %gpu.0_13: f32[2, 4] = prims.mul(%gpu.0_5, %gpu.0_12)
#   %gpu.0_14: f32[4] = prims.convert(%w, f32)
#   %gpu.0_15: f32[2, 4] = prims.expand(%gpu.0_14, [2, 4])
#   %gpu.0_16: f32[2, 4] = prims.mul(%gpu.0_13, %gpu.0_15)
#   %gpu.0_17: f32[4] = prims.convert(%b, f32)
#   %gpu.0_18: f32[2, 4] = prims.expand(%gpu.0_17, [2, 4])
#   %gpu.0_19: f32[2, 4] = prims.add(%gpu.0_16, %gpu.0_18)
#   %gpu.0_20: bf16[2, 4] = prims.convert(%gpu.0_19, bf16)
#   %batch.0: f32[2, 4] = prims.convert(%x, f32)
#   %batch.0_1: f32[4] = prims.sum(%batch.0, [0])
#   %batch.0_2: f32[1, 4] = prims.reshape(%batch.0_1, [1, 4])
#   %batch.0_3: f32[1, 4] = prims.div(%batch.0_2, 2.0)
#   %batch.0_4: f32[2, 4] = prims.expand(%batch.0_3, [2, 4])
#   %batch.0_5: f32[2, 4] = prims.sub(%batch.0, %batch.0_4)
#   %batch.0_6: f32[2, 4] = prims.mul(%batch.0_5, %batch.0_5)
#   %batch.0_7: f32[4] = prims.sum(%batch.0_6, [0])
#   %batch.0_8: f32[1, 4] = prims.reshape(%batch.0_7, [1, 4])
#   %batch.0_9: f32[1, 4] = prims.div(%batch.0_8, 2.0)
#   %batch.0_10: f32[1, 4] = prims.add(%batch.0_9, 1e-5)
#   %batch.0_11: f32[1, 4] = prims.rsqrt(%batch.0_10)
#   %batch.0_12: bf16[1, 4] = prims.reshape(%w, [1, 4])
#   %batch.0_13: bf16[1, 4] = prims.reshape(%b, [1, 4])
#   %batch.0_14: f32[1, 4] = prims.convert(%batch.0_12, f32)
#   %batch.0_15: f32[1, 4] = prims.mul(%batch.0_11, %batch.0_14)
#   %batch.0_16: f32[2, 4] = prims.expand(%batch.0_15, [2, 4])
#   %batch.0_17: f32[2, 4] = prims.mul(%batch.0_5, %batch.0_16)
#   %batch.0_18: f32[1, 4] = prims.convert(%batch.0_13, f32)
#   %batch.0_19: f32[2, 4] = prims.expand(%batch.0_18, [2, 4])
#   %batch.0_20: f32[2, 4] = prims.add(%batch.0_17, %batch.0_19)
#   %batch.0_21: bf16[2, 4] = prims.convert(%batch.0_20, bf16)
#   %batch.0_22: f32[4] = prims.reshape(%batch.0_3, [4])
#   return %cpu.0_20
#   return %cpu.0_21
#   return %gpu.0_20
#   return %gpu.0_3
#   return %gpu.0_11
#   return %batch.0_21
#   return %batch.0_22
# }
