# test decompose
# An embedding gathers rows; the index keeps the name of the operator and its place for the error of an index that is out of bounds.
fx 1.0

graph "g" {
  %w: f32[10, 4] = parameter "w"
  %i: i64[3] = input "i"

  %y: f32[3, 4] = aten.embedding.default(%w, %i, -1, false, false) from emb:forward:"net.py:7"
  return %y
}

# expected:
# fx 1.1
#
# graph "g" {
#   %w: f32[10, 4] = parameter "w"
#   %i: i64[3] = input "i"
#
#   %y: f32[3, 4] = prims.index(%w, [%i], 0) from emb:forward:"net.py:7":"aten.embedding.default"
#   return %y
# }
