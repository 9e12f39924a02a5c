// The words of HIP that its headers and run-time compiler define, for a compiler that has neither: clang with `-nogpuinc`. In a
// text of its own before the prelude, whole, where the run-time compiler has not said that it is there (`__HIPCC_RTC__`). Not here:
// functions of numbers (`math.cu`).
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) BARE_BOUNDS(__VA_ARGS__, 1, 0)
#define BARE_BOUNDS(threads, waves, ...) __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
struct BareIndex { unsigned x, y, z; };
struct BareThread {
    struct X { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_workitem_id_x(); } } x;
};
struct BareBlock {
    struct X { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_x(); } } x;
    struct Y { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_y(); } } y;
    struct Z { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_z(); } } z;
};
struct BareSize {
    struct X { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_workgroup_size_x(); } } x;
};
struct BareGrid {
    struct X { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); } } x;
    struct Y { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_grid_size_y(); } } y;
    struct Z { __device__ __forceinline__ operator unsigned() const { return __builtin_amdgcn_grid_size_z(); } } z;
};
static constexpr BareThread threadIdx;
static constexpr BareBlock blockIdx;
static constexpr BareSize blockDim;
static constexpr BareGrid gridDim;
#define BARE static __device__ __forceinline__
BARE unsigned bare_lane() {
    const unsigned low = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    return WAVE == 32 ? low : __builtin_amdgcn_mbcnt_hi(~0u, low);
}
BARE unsigned bare_read(unsigned x, unsigned lane) { return (unsigned)__builtin_amdgcn_ds_bpermute((int)(lane << 2), (int)x); }
BARE unsigned __shfl(unsigned x, int lane) { return bare_read(x, (unsigned)lane & (WAVE - 1)); }
BARE unsigned __shfl_down(unsigned x, unsigned n) {
    const unsigned lane = bare_lane();
    return bare_read(x, lane + n < WAVE ? lane + n : lane);
}
BARE unsigned __shfl_up(unsigned x, unsigned n) {
    const unsigned lane = bare_lane();
    return bare_read(x, lane < n ? lane : lane - n);
}
BARE unsigned __shfl_xor(unsigned x, int mask) { return bare_read(x, bare_lane() ^ (unsigned)mask); }
BARE unsigned long long __ballot(int yes) {
#if WAVE == 32
    return __builtin_amdgcn_ballot_w32(yes != 0);
#else
    return __builtin_amdgcn_ballot_w64(yes != 0);
#endif
}
BARE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
BARE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
BARE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
template <class T> struct BareSame { typedef T type; };
template <class T> BARE T atomicAdd(T *p, typename BareSame<T>::type x) { return __hip_atomic_fetch_add(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
template <class T> BARE T atomicCAS(T *p, typename BareSame<T>::type expected, typename BareSame<T>::type x) {
    __hip_atomic_compare_exchange_strong(p, &expected, x, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    return expected;
}
#define BARE_ATOMIC(NAME, HOW) \
    template <class T> BARE T NAME(T *p, typename BareSame<T>::type x) { return HOW(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
BARE_ATOMIC(atomicExch, __hip_atomic_exchange)
BARE_ATOMIC(atomicMax, __hip_atomic_fetch_max)
BARE_ATOMIC(atomicMin, __hip_atomic_fetch_min)
BARE_ATOMIC(atomicOr, __hip_atomic_fetch_or)
BARE_ATOMIC(atomicAnd, __hip_atomic_fetch_and)
BARE_ATOMIC(atomicXor, __hip_atomic_fetch_xor)
