# test print
fx 1.0

graph "stem" {
  symbol s0 "batch" 1..=64 hint 8
  %x: f32[s0, 3, 224, 224] = input "x"
  %p_conv1_weight: f32[64, 3, 7, 7] = parameter "conv1.weight"
  %b_mean: f32[64] = buffer "bn1.running_mean"

  %conv2d: f32[s0, 64, 112, 112] = aten.conv2d.default(%x, %p_conv1_weight, none, [2, 2], [3, 3], [1, 1], 1) from conv1:conv2d:"resnet.py:268"
  %sub: f32[s0, 64, 112, 112] = aten.sub.Tensor(%conv2d, 1.0, 1) from bn1:sub
  %max: f32[s0, 64, 56, 56], %argmax: i64[s0, 64, 56, 56] = aten.max_pool2d_with_indices.default(%sub, [3, 3], [2, 2], [1, 1]) from maxpool:max_pool2d
  aten._assert_tensor_metadata.default(%argmax)
  return %max
  return %argmax
  return buffer "bn1.running_mean" = %b_mean
}

# expected:
# // s0 = batch: 1..=64, at capture 8
# fn stem(
#     x: f32[s0, 3, 224, 224],
#     p_conv1_weight: f32[64, 3, 7, 7],  // parameter conv1.weight
#     b_mean: f32[64],  // buffer bn1.running_mean
# ) {
#
#     // conv1  (resnet.py:268)
#     let conv2d: f32[s0, 64, 112, 112] = aten.conv2d.default(x, p_conv1_weight, none, [2, 2], [3, 3], [1, 1], 1);
#
#     // bn1
#     let sub: f32[s0, 64, 112, 112] = aten.sub.Tensor(conv2d, 1.0, 1);
#
#     // maxpool
#     let (max: f32[s0, 64, 56, 56], argmax: i64[s0, 64, 56, 56]) = aten.max_pool2d_with_indices.default(sub, [3, 3], [2, 2], [1, 1]);
#     aten._assert_tensor_metadata.default(argmax);
#     bn1.running_mean := b_mean;
#     return (max, argmax);
# }
