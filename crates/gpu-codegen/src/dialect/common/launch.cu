// The order of launches, and the distribution of blocks over the kernels of a fused launch.

// The `blockIdx` or `gridDim` of one kernel in a fused launch: the number of a block among its own, or how many there are.
struct Dealt { u32 x, y; };

// The first statement of kernels that do nothing before they wait.
__device__ __forceinline__ void launch_order() {
    launch_next();
    launch_wait();
}
