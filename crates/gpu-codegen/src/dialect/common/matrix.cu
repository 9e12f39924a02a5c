// What instructions of matrix products work on: how fragments and tiles lie. Only devices with the feature of their name have
// the functions; those marked *warp* are called by all 32 lanes together, without any of them having left.
// All functions marked *warp* are called by all 32 lanes together, without any of them having left.
//
// Lane numbers: lane = threadIdx.x & 31, group = lane / 4 (0..7), pair = lane % 4 (0..3).
//
// mma.m16n8k16, f16 and bf16, D[16,8] += A[16,16] B[16,8]; two 16-bit elements a register, the lower index in the low half:
//   a[0] = A[group    ][2 pair + {0,1}]        b[0] = B[2 pair + {0,1}    ][group]
//   a[1] = A[group + 8][2 pair + {0,1}]        b[1] = B[2 pair + {0,1} + 8][group]
//   a[2] = A[group    ][2 pair + {0,1} + 8]    d[0], d[1] = D[group    ][2 pair + {0,1}]
//   a[3] = A[group + 8][2 pair + {0,1} + 8]    d[2], d[3] = D[group + 8][2 pair + {0,1}]
// mma.m16n8k8, tf32, D[16,8] += A[16,8] B[8,8]; a register holds the bits of a float, the low 13 of which are not looked at:
//   a[0] = A[group][pair]      a[1] = A[group + 8][pair]        b[0] = B[pair    ][group]
//   a[2] = A[group][pair + 4]  a[3] = A[group + 8][pair + 4]    b[1] = B[pair + 4][group]       d as above
// ldmatrix.x{1,2,4}: matrices of 8 rows of 16 bytes. Lane 8 i + r gives the address of row r of matrix i (16-byte aligned,
// shared memory; lanes beyond the matrices give any valid address); register i is
//   plain: matrix i [group][2 pair + {0,1}]     trans: matrix i [2 pair + {0,1}][group]
// so that `ldmatrix_x4` of the four 8 x 8 quarters (rows 0-7, rows 8-15, then the same of columns 8-15) of a row-major A is
// `a`, and `ldmatrix_x2_trans` of the two 8 x 8 halves (k 0-7, k 8-15) of a row-major B is `b`.
//
// A warpgroup is 4 warps, the first a multiple of 4. Functions marked *warpgroup* are called by all its 128 threads.
// wgmma.m64nNk: D[64,N] += A[64,K] B[K,N], K = 16 of 16-bit floats, 8 of tf32. Warp w of the group has rows 16 w to 16 w + 15:
//   d[4 j], d[4 j + 1] = D[16 w + group][8 j + 2 pair + {0,1}]      d[4 j + 2], d[4 j + 3] = the same of row 16 w + group + 8
// Both operands lie in shared memory as the copy engine leaves them with its 128-byte swizzle: lines of 128 bytes, the
// 16-byte pieces of line r at place (piece ^ r % 8); a tile begins at a multiple of 1024.

// How a factor's tile lies: lines along the inner dimension (a line a row), or along the rows (a line an inner point, 64
// rows a line, one block of lines after another).
enum { K_MAJOR, MN_MAJOR };
