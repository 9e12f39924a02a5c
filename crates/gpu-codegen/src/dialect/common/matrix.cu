// The layouts of fragments and tiles for the instructions of matrix products, which exist where the feature of their name
// does. All 32 lanes call functions marked *warp* together; none of them may have exited.
//
// Lane numbers: lane = threadIdx.x & 31, group = lane / 4 (0..7), pair = lane % 4 (0..3).
//
// mma.m16n8k16, f16 and bf16, D[16,8] += A[16,16] B[16,8]; two 16-bit elements per register, the lower index in the low half:
//   a[0] = A[group    ][2 pair + {0,1}]        b[0] = B[2 pair + {0,1}    ][group]
//   a[1] = A[group + 8][2 pair + {0,1}]        b[1] = B[2 pair + {0,1} + 8][group]
//   a[2] = A[group    ][2 pair + {0,1} + 8]    d[0], d[1] = D[group    ][2 pair + {0,1}]
//   a[3] = A[group + 8][2 pair + {0,1} + 8]    d[2], d[3] = D[group + 8][2 pair + {0,1}]
// mma.m16n8k8, tf32, D[16,8] += A[16,8] B[8,8]; a register holds the bits of a float, whose low 13 bits are ignored:
//   a[0] = A[group][pair]      a[1] = A[group + 8][pair]        b[0] = B[pair    ][group]
//   a[2] = A[group][pair + 4]  a[3] = A[group + 8][pair + 4]    b[1] = B[pair + 4][group]       d as above
// ldmatrix.x{1,2,4}: matrices of 8 rows of 16 bytes. Lane 8 i + r passes the address of row r of matrix i (16-byte aligned,
// shared memory; lanes beyond the matrices pass any valid address); register i is
//   plain: matrix i [group][2 pair + {0,1}]     trans: matrix i [2 pair + {0,1}][group]
// so that `ldmatrix_x4` of the four 8 x 8 quarters (rows 0-7, rows 8-15, then the same of columns 8-15) of a row-major A is
// `a`, and `ldmatrix_x2_trans` of the two 8 x 8 halves (k 0-7, k 8-15) of a row-major B is `b`.
//
// A warpgroup is 4 consecutive warps, the first a multiple of 4. All its 128 threads call functions marked *warpgroup*.
// wgmma.m64nNk: D[64,N] += A[64,K] B[K,N], K = 16 of 16-bit floats, 8 of tf32. Warp w of the group has rows 16 w to 16 w + 15:
//   d[4 j], d[4 j + 1] = D[16 w + group][8 j + 2 pair + {0,1}]      d[4 j + 2], d[4 j + 3] = the same for row 16 w + group + 8
// Both operands are in shared memory with TMA's 128-byte swizzle: lines of 128 bytes, in which piece p of 16 bytes of line r
// is at position p ^ (r % 8). A tile begins at a multiple of 1024.

// The major dimension of an operand's tile: a line holds inner points of one row, or 64 rows of one inner point, one block
// of lines after another.
enum { K_MAJOR, MN_MAJOR };
