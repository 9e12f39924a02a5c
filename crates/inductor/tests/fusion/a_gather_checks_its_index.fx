# test fuse
# An index from data is checked where it is used, with the operator that asked for it as the site.
fx 1.0

graph "g" {
  %t: f32[10, 4] = input "t"
  %i: i64[3] = input "i"

  %r: f32[3, 4] = prims.index(%t, [%i], 0) from emb:forward:"net.py:7":"aten.embedding.default"
  return %r
}
