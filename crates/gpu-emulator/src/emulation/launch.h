// Runs a launch: blocks one after another, their threads as fibers. The prelude and the kernels follow, then the table of
// entries.

extern char __start_ffx_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_ffx_shared[] __attribute__((weak, visibility("hidden")));

static inline void *ffx_dynamic_shared() { return ffx_now->dynamic; }

// Calls a kernel with arguments of 64 bits each.
template <int... I> struct FfxPlaces {};
template <int N, int... I> struct FfxCount { typedef typename FfxCount<N - 1, N - 1, I...>::type type; };
template <int... I> struct FfxCount<0, I...> { typedef FfxPlaces<I...> type; };
template <class... A, int... I>
static inline void ffx_apply(void (*kernel)(A...), const ffx_u64 *arguments, FfxPlaces<I...>) {
    kernel((A)arguments[I]...);
}
template <class... A> static inline void ffx_call(void (*kernel)(A...), const ffx_u64 *arguments) {
    ffx_apply(kernel, arguments, typename FfxCount<sizeof...(A)>::type());
}

static char *ffx_stack(ffx_u32 thread) { return ffx_now->stacks + (ffx_u64)thread * ffx_now->stack_bytes; }
static const ffx_u64 FFX_CANARY = 0x7ca9a57ac0ffee11ULL;

static void ffx_enter() {
    ffx_kernel(ffx_now->arguments);
    if (ffx_waiting) ffx_fail(FFX_DIVERGED, "a thread left the kernel while %d wait for the block", (int)ffx_waiting);
    ffx_u32 me = ffx_number(), first = me - me % FFX_WAVE;
    for (ffx_u32 i = first; i < first + FFX_WAVE && i < blockDim.x; ++i)
        if (ffx_fibers[i].state == FFX_WARP && ffx_fibers[i].mask >> me % FFX_WAVE & 1ULL)
            ffx_fail(FFX_DIVERGED, "a lane left the kernel while lane %d of its warp waits for it", (int)(i - first));
    ffx_put(ffx_self, FFX_DONE);
    ffx_lanes_of[me / FFX_WAVE].left |= 1ULL << me % FFX_WAVE;
    ++ffx_finished;
    for (;;) ffx_yield();
}

// Runs a fiber until it waits or ends. Stacks are assigned in order: `free` is the first unused one.
static bool ffx_resume(ffx_u32 thread, ffx_u32 *stack) {
    FfxFiber *f = ffx_fibers + thread;
    ffx_self = f;
    threadIdx = {thread, 0, 0};
    bool fresh = f->state == FFX_NEW;
    if (fresh) {
        char *bottom = f->bottom = ffx_stack(*stack);
        *(ffx_u64 *)bottom = FFX_CANARY;
        void **top = (void **)(((ffx_u64)bottom + ffx_now->stack_bytes) & ~15ULL) - 2;
        // The initial stack for the first switch: registers without values, and the entry address.
#if defined(__x86_64__)
        // At the entry of a function the stack is 8 off a multiple of 16, as after a call.
        top[-2] = (void *)ffx_enter;
        f->sp = top - 2 - FFX_SAVED;
#else
        f->sp = top - FFX_SAVED;
        ((void **)f->sp)[11] = (void *)ffx_enter;
#endif
    }
    f->state = FFX_READY;
    ffx_switch(&ffx_scheduler_sp, f->sp);
    if (fresh && f->state != FFX_DONE) ++*stack;
    if (*(ffx_u64 *)f->bottom != FFX_CANARY && !ffx_now->error) {
        ffx_now->error = FFX_STACK;
        snprintf(ffx_now->message, sizeof ffx_now->message, "the stack of thread %d overflowed", (int)thread);
    }
    return !ffx_now->error;
}

static void ffx_stuck() {
    int counts[7] = {};
    for (ffx_u32 t = 0; t < blockDim.x; ++t) ++counts[ffx_fibers[t].state];
    ffx_now->error = FFX_DEADLOCK;
    ffx_now->block[0] = blockIdx.x;
    ffx_now->block[1] = blockIdx.y;
    ffx_now->block[2] = blockIdx.z;
    snprintf(ffx_now->message, sizeof ffx_now->message,
        "threads wait for each other: %d for the block, %d for their warps, %d at barriers of a part, %d at barriers in memory; %d have left",
        counts[FFX_BLOCK], counts[FFX_WARP], counts[FFX_PART], counts[FFX_PHASE], counts[FFX_DONE]);
}

// Threads run in turn, in alternating order, so that a dependence on the order shows.
static bool ffx_block() {
    ffx_u32 stack = 0, n = blockDim.x;
    ffx_waiting = ffx_finished = 0;
    for (auto &part : ffx_parts) part = {0, 0};
    for (auto &lanes : ffx_lanes_of) lanes = {0, 0, 0, 0};
    ffx_bulk_clear();
    for (ffx_u32 t = 0; t < n; ++t) {
        FfxFiber *f = ffx_fibers + t;
        ffx_put(f, FFX_NEW);
        f->copy_count = f->copy_group = 0;
    }
    for (bool back = ffx_now->backward; ffx_finished < n; back = !back) {
        bool moved = false;
        const ffx_u32 warps = (n + FFX_WAVE - 1) / FFX_WAVE;
        for (ffx_u32 i = 0; i < warps; ++i) {
            const ffx_u32 warp = back ? warps - 1 - i : i;
            // Lanes that this turn has not come to yet.
            ffx_u64 ahead = FFX_ALL;
            while (const ffx_u64 ready = ffx_lanes_of[warp].ready & ahead) {
                const int lane = back ? 63 - __builtin_clzll(ready) : __builtin_ctzll(ready);
                ahead = back ? (1ULL << lane) - 1 : ~((2ULL << lane) - 1);
                moved = true;
                if (!ffx_resume(warp * FFX_WAVE + (ffx_u32)lane, &stack)) return false;
            }
        }
        if (!moved) {
            ffx_stuck();
            return false;
        }
    }
    return ffx_bulk_ended();
}

static void ffx_run(FfxLaunch *launch, void (*kernel)(const ffx_u64 *)) {
    ffx_now = launch;
    ffx_kernel = kernel;
    blockDim = {launch->threads, 1, 1};
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    for (ffx_u32 z = 0; z < gridDim.z; ++z)
        for (ffx_u32 y = 0; y < gridDim.y; ++y)
            for (ffx_u32 x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                if (launch->backward) blockIdx = {gridDim.x - 1 - x, gridDim.y - 1 - y, gridDim.z - 1 - z};
                // Shared memory begins with anything: a pattern that is not a number.
                memset(__start_ffx_shared, 0xff, (ffx_u64)(__stop_ffx_shared - __start_ffx_shared));
                memset(launch->dynamic, 0xff, launch->shared);
                if (!ffx_block()) return;
            }
}
