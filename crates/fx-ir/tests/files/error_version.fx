# test error
fx 2.0
graph "g" { }

# expected:
# 2:4: this reader takes `fx 1.x` up to `fx 1.2`, not `fx 2.0`: write the file again with this version
