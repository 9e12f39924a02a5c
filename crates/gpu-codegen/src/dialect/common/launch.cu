// The order of launches, and blocks that are dealt out to several kernels of one launch.

// The blocks of one kernel of several that share a launch: the number of a block among them, or how many there are.
struct Dealt { u32 x, y; };

// What kernels begin with that do nothing before they wait.
__device__ __forceinline__ void launch_order() {
    launch_next();
    launch_wait();
}
