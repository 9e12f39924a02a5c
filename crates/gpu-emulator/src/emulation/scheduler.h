// The threads of a block as fibers of one operating-system thread. A fiber runs until it waits: for the block, for a part
// of it, or for the lanes of a collective; the last one to arrive executes a collective for all and goes on. What hangs or
// is undefined on a GPU is an error here: threads that exit while others wait, lanes that reach different collectives,
// threads that wait for each other.

enum { FFX_NEW, FFX_READY, FFX_BLOCK, FFX_WARP, FFX_PART, FFX_PHASE, FFX_DONE };
enum { FFX_MOST_THREADS = 1024, FFX_BARRIERS = 16 };
// The error codes, which the launcher knows.
enum { FFX_OK, FFX_DIVERGED, FFX_DEADLOCK, FFX_STACK, FFX_MISALIGNED, FFX_BAD_CALL, FFX_TRAP };

// The number of lanes per warp is defined before this: FFX_WAVE, 32 or 64.
static const ffx_u64 FFX_ALL = ~0ULL >> (64 - FFX_WAVE);
typedef void (*FfxWork)(void **lanes, ffx_u64 mask);

struct FfxCopy { void *to; const void *from; int bytes, read, group; };

struct FfxFiber {
    void *sp;
    char *bottom;
    int state, line;
    // A warp collective: the participants, the operation, each lane's operands.
    ffx_u64 mask;
    FfxWork work;
    void *operands;
    int barrier;
    // Asynchronous copies that were not waited for.
    FfxCopy *copies;
    int copy_count, copy_room, copy_group;
};

// The launcher's side of this is `launch.rs`.
struct FfxLaunch {
    ffx_u32 grid[3], threads, shared, entry;
    const ffx_u64 *arguments;
    char *stacks;
    ffx_u64 stack_bytes;
    char *dynamic;
    // The result.
    ffx_u32 error, block[3], thread;
    // Asked: whether blocks and threads run from the last to the first.
    ffx_u32 backward;
    char message[236];
};

static FfxLaunch *ffx_now;
static FfxFiber ffx_fibers[FFX_MOST_THREADS];
static FfxFiber *ffx_self;
static void *ffx_scheduler_sp;
static ffx_u32 ffx_waiting, ffx_finished;
// The lanes of each warp that wait for a collective, that wait for the block, that have left, and that may go on: what a lane looks
// at when it arrives, and the scheduler after each, since looking at each of the others would make a collective's cost grow as the
// square of the lanes.
static struct FfxLanes { ffx_u64 warp, block, left, ready; } ffx_lanes_of[FFX_MOST_THREADS / FFX_WAVE];
// The votes of the barrier that threads have reached so far, and the result of the last one.
static struct FfxVotes { int all, any, count; } ffx_votes, ffx_voted;
static struct { int here, threads; } ffx_parts[FFX_BARRIERS];
static void (*ffx_kernel)(const ffx_u64 *);
static ffx_dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = FFX_WAVE;

// Saves the callee-saved registers on the stack, stores the stack pointer in `*from` and continues at `to`.
extern "C" void ffx_switch(void **from, void *to) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
asm(".text\n.hidden ffx_switch\n.globl ffx_switch\n.type ffx_switch,@function\nffx_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size ffx_switch,.-ffx_switch\n");
enum { FFX_SAVED = 6 };
#elif defined(__aarch64__)
asm(".text\n.hidden ffx_switch\n.globl ffx_switch\n.type ffx_switch,%function\nffx_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\n"
    "ldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
enum { FFX_SAVED = 20 };
#else
#error "the emulator switches contexts on x86-64 and aarch64 alone"
#endif

static inline ffx_u32 ffx_number() { return (ffx_u32)(ffx_self - ffx_fibers); }

static inline void ffx_put(FfxFiber *f, int state) {
    const ffx_u32 number = (ffx_u32)(f - ffx_fibers);
    const ffx_u64 lane = 1ULL << number % FFX_WAVE;
    ffx_u64 &ready = ffx_lanes_of[number / FFX_WAVE].ready;
    ready = state <= FFX_READY ? ready | lane : ready & ~lane;
    f->state = state;
}

// Ends the launch with an error: the calling fiber never runs again.
static __noinline__ void ffx_fail(ffx_u32 error, const char *what, int a = 0, int b = 0) {
    if (!ffx_now->error) {
        ffx_now->error = error;
        ffx_now->block[0] = blockIdx.x;
        ffx_now->block[1] = blockIdx.y;
        ffx_now->block[2] = blockIdx.z;
        ffx_now->thread = ffx_number();
        snprintf(ffx_now->message, sizeof ffx_now->message, what, a, b);
    }
    for (;;) ffx_switch(&ffx_self->sp, ffx_scheduler_sp);
}
static inline void ffx_yield() { ffx_switch(&ffx_self->sp, ffx_scheduler_sp); }
static inline void ffx_aligned(const void *p, int bytes) {
    if ((ffx_u64)p % (ffx_u64)bytes) ffx_fail(FFX_MISALIGNED, "an access of %d bytes is not aligned", bytes);
}
static inline void __trap() { ffx_fail(FFX_TRAP, "the kernel called __trap"); }
static inline void __nanosleep(ffx_u32) { ffx_yield(); }

// ---- asynchronous copies
static __noinline__ void ffx_copy_later(void *to, const void *from, int bytes, int read) {
    ffx_aligned(to, bytes);
    ffx_aligned(from, bytes);
    if (read < 0 || read > bytes) ffx_fail(FFX_BAD_CALL, "cp.async of %d bytes reads %d", bytes, read);
    FfxFiber *f = ffx_self;
    if (f->copy_count == f->copy_room) {
        f->copy_room = f->copy_room ? 2 * f->copy_room : 16;
        f->copies = (FfxCopy *)realloc(f->copies, sizeof(FfxCopy) * (ffx_u64)f->copy_room);
    }
    f->copies[f->copy_count++] = {to, from, bytes, read, f->copy_group};
    memset(to, 0xff, (ffx_u64)bytes);
}
static inline void ffx_copy_commit() { ++ffx_self->copy_group; }
// Completes all groups but the latest `pending` ones.
static __noinline__ void ffx_copy_wait(int pending) {
    FfxFiber *f = ffx_self;
    int kept = 0;
    for (int i = 0; i < f->copy_count; ++i) {
        FfxCopy c = f->copies[i];
        if (c.group < f->copy_group - pending) {
            memcpy(c.to, c.from, (ffx_u64)c.read);
            memset((char *)c.to + c.read, 0, (ffx_u64)(c.bytes - c.read));
        } else f->copies[kept++] = c;
    }
    f->copy_count = kept;
}

// ---- barriers
static void ffx_release(int state, int barrier) {
    for (ffx_u32 t = 0; t < blockDim.x; ++t)
        if (ffx_fibers[t].state == state && ffx_fibers[t].barrier == barrier) ffx_put(ffx_fibers + t, FFX_READY);
    if (state == FFX_BLOCK)
        for (auto &lanes : ffx_lanes_of) lanes.block = 0;
}
static __noinline__ void ffx_sync(int line, int value) {
    FfxFiber *f = ffx_self;
    if (ffx_finished) ffx_fail(FFX_DIVERGED, "%d threads left the kernel before a barrier of the block", (int)ffx_finished);
    if (ffx_waiting == 0) ffx_votes = {1, 0, 0};
    f->line = line;
    f->barrier = 0;
    ffx_votes.all &= value != 0;
    ffx_votes.any |= value != 0;
    ffx_votes.count += value != 0;
    if (++ffx_waiting < blockDim.x) {
        ffx_put(f, FFX_BLOCK);
        ffx_lanes_of[ffx_number() / FFX_WAVE].block |= 1ULL << ffx_number() % FFX_WAVE;
        ffx_yield();
        return;
    }
    for (ffx_u32 t = 0; t < blockDim.x; ++t)
        if (ffx_fibers[t].line != line)
            ffx_fail(FFX_DIVERGED, "threads wait at different barriers of the block, in lines %d and %d", line, ffx_fibers[t].line);
    ffx_waiting = 0;
    ffx_voted = ffx_votes;
    ffx_release(FFX_BLOCK, 0);
}
#define __syncthreads() ffx_sync(__LINE__, 0)
#define __syncthreads_and(x) (ffx_sync(__LINE__, (x) != 0), ffx_voted.all)
#define __syncthreads_or(x) (ffx_sync(__LINE__, (x) != 0), ffx_voted.any)
#define __syncthreads_count(x) (ffx_sync(__LINE__, (x) != 0), ffx_voted.count)

// A barrier of `threads` threads of the block, with or without waiting.
static __noinline__ void ffx_barrier(int number, int threads, bool wait) {
    if (number < 0 || number >= FFX_BARRIERS || threads <= 0 || threads % FFX_WAVE || threads > (int)blockDim.x)
        ffx_fail(FFX_BAD_CALL, "barrier %d of %d threads", number, threads);
    if (ffx_parts[number].here && ffx_parts[number].threads != threads)
        ffx_fail(FFX_DIVERGED, "barrier %d is waited at for another number of threads than %d", number, threads);
    ffx_parts[number].threads = threads;
    if (++ffx_parts[number].here == threads) {
        ffx_parts[number].here = 0;
        ffx_release(FFX_PART, number);
    } else if (wait) {
        ffx_self->barrier = number;
        ffx_put(ffx_self, FFX_PART);
        ffx_yield();
    }
}

// ---- collectives of a warp
static __noinline__ void ffx_collective(ffx_u64 mask, void *operands, FfxWork work) {
    ffx_u32 me = ffx_number(), lane = me % FFX_WAVE, first = me - lane;
    FfxFiber *warp = ffx_fibers + first;
    ffx_u64 there = blockDim.x - first < FFX_WAVE ? (1ULL << (blockDim.x - first)) - 1ULL : FFX_ALL;
    if (!(mask >> lane & 1ULL)) ffx_fail(FFX_DIVERGED, "lane %d is not in the mask of its own collective", (int)lane);
    mask &= there;
    FfxFiber *f = ffx_self;
    f->mask = mask;
    f->work = work;
    f->operands = operands;
    FfxLanes &lanes_of = ffx_lanes_of[first / FFX_WAVE];
    if (ffx_u64 left = lanes_of.left & mask)
        ffx_fail(FFX_DIVERGED, "lane %d left the kernel before a collective of its warp", __builtin_ctzll(left));
    if (ffx_u64 block = lanes_of.block & mask)
        ffx_fail(FFX_DIVERGED, "lane %d waits for the block, lane %d for its warp", __builtin_ctzll(block), (int)lane);
    ffx_u64 others = mask & ~(1ULL << lane), waiting = others & lanes_of.warp;
    // The last one compares itself with all others, those before it with one.
    bool all = waiting == others;
    for (ffx_u64 left = waiting; left; left = all ? left & (left - 1) : 0) {
        int i = __builtin_ctzll(left);
        if (warp[i].mask != mask || warp[i].work != work)
            ffx_fail(FFX_DIVERGED, "lanes %d and %d wait at different collectives", i, (int)lane);
    }
    if (!all) {
        ffx_put(f, FFX_WARP);
        lanes_of.warp |= 1ULL << lane;
        ffx_yield();
        return;
    }
    lanes_of.warp &= ~mask;
    void *lanes[FFX_WAVE];
    for (ffx_u32 i = 0; i < FFX_WAVE; ++i) lanes[i] = mask >> i & 1ULL ? warp[i].operands : 0;
    work(lanes, mask);
    for (ffx_u32 i = 0; i < FFX_WAVE; ++i)
        if (i != lane && mask >> i & 1ULL) warp[i].state = FFX_READY;
    lanes_of.ready |= mask;
}

static void ffx_nothing(void **, ffx_u64) {}
static inline void __syncwarp(ffx_u64 mask = FFX_ALL) { ffx_collective(mask, 0, ffx_nothing); }
static inline ffx_u64 __activemask() {
    ffx_u32 me = ffx_number(), first = me - me % FFX_WAVE;
    ffx_u64 mask = 0;
    for (ffx_u32 i = 0; i < FFX_WAVE && first + i < blockDim.x; ++i) mask |= (ffx_u64)(ffx_fibers[first + i].state != FFX_DONE) << i;
    return mask;
}

// A lane that does not exist gives a NaN pattern.
template <class T> struct FfxShuffle { T give, get; int from; };
template <class T> static void ffx_shuffle(void **lanes, ffx_u64) {
    for (int i = 0; i < FFX_WAVE; ++i) {
        FfxShuffle<T> *s = (FfxShuffle<T> *)lanes[i];
        if (!s) continue;
        FfxShuffle<T> *from = (FfxShuffle<T> *)lanes[s->from];
        if (from) s->get = from->give;
        else memset(&s->get, 0xff, sizeof(T));
    }
}
template <class T> static inline T ffx_shuffled(ffx_u64 mask, T x, int from) {
    FfxShuffle<T> s = {x, x, from};
    ffx_collective(mask, &s, ffx_shuffle<T>);
    return s.get;
}
static inline int ffx_lane() { return (int)(ffx_number() % FFX_WAVE); }
template <class T> static inline T __shfl_sync(ffx_u64 mask, T x, int from, int width = FFX_WAVE) {
    int lane = ffx_lane();
    return ffx_shuffled(mask, x, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T> static inline T __shfl_down_sync(ffx_u64 mask, T x, ffx_u32 by, int width = FFX_WAVE) {
    int lane = ffx_lane(), from = lane + (int)by;
    return ffx_shuffled(mask, x, (from ^ lane) & ~(width - 1) ? lane : from);
}
template <class T> static inline T __shfl_up_sync(ffx_u64 mask, T x, ffx_u32 by, int width = FFX_WAVE) {
    int lane = ffx_lane(), from = lane - (int)by;
    return ffx_shuffled(mask, x, from < (lane & ~(width - 1)) ? lane : from);
}
template <class T> static inline T __shfl_xor_sync(ffx_u64 mask, T x, int by, int width = FFX_WAVE) {
    int lane = ffx_lane(), from = lane ^ by;
    return ffx_shuffled(mask, x, (from & ~(width - 1)) > (lane & ~(width - 1)) ? lane : from);
}
struct FfxVote { int value; ffx_u64 yes; };
static void ffx_vote(void **lanes, ffx_u64) {
    ffx_u64 yes = 0;
    for (int i = 0; i < FFX_WAVE; ++i)
        if (lanes[i] && ((FfxVote *)lanes[i])->value) yes |= 1ULL << i;
    for (int i = 0; i < FFX_WAVE; ++i)
        if (lanes[i]) ((FfxVote *)lanes[i])->yes = yes;
}
static inline ffx_u64 ffx_ballot(ffx_u64 mask, int x) {
    FfxVote v = {x, 0};
    ffx_collective(mask, &v, ffx_vote);
    return v.yes;
}
static inline ffx_u32 __ballot_sync(ffx_u64 mask, int x) { return (ffx_u32)ffx_ballot(mask, x); }
static inline int __any_sync(ffx_u64 mask, int x) { return ffx_ballot(mask, x) != 0; }
static inline int __all_sync(ffx_u64 mask, int x) { return ffx_ballot(mask, !x) == 0; }
template <class T> struct FfxMatch { T value; ffx_u64 same; };
template <class T> static void ffx_match(void **lanes, ffx_u64) {
    for (int i = 0; i < FFX_WAVE; ++i) {
        if (!lanes[i]) continue;
        FfxMatch<T> *m = (FfxMatch<T> *)lanes[i];
        m->same = 0;
        for (int j = 0; j < FFX_WAVE; ++j)
            if (lanes[j] && ((FfxMatch<T> *)lanes[j])->value == m->value) m->same |= 1ULL << j;
    }
}
template <class T> static inline ffx_u64 __match_any_sync(ffx_u64 mask, T x) {
    FfxMatch<T> m = {x, 0};
    ffx_collective(mask, &m, ffx_match<T>);
    return m.same;
}

// ---- the same for HIP: every lane takes part
template <class T> static inline T __shfl(T x, int from, int width = FFX_WAVE) { return __shfl_sync(FFX_ALL, x, from, width); }
template <class T> static inline T __shfl_down(T x, ffx_u32 by, int width = FFX_WAVE) { return __shfl_down_sync(FFX_ALL, x, by, width); }
template <class T> static inline T __shfl_up(T x, ffx_u32 by, int width = FFX_WAVE) { return __shfl_up_sync(FFX_ALL, x, by, width); }
template <class T> static inline T __shfl_xor(T x, int by, int width = FFX_WAVE) { return __shfl_xor_sync(FFX_ALL, x, by, width); }
static inline ffx_u64 __ballot(int x) { return ffx_ballot(FFX_ALL, x); }
#define __builtin_amdgcn_wave_barrier() __syncwarp()
#define __builtin_amdgcn_fence(order, scope) ((void)0)
#define __HIP_MEMORY_SCOPE_AGENT 0
#define __hip_atomic_load(p, order, scope) (*(p))
#define __builtin_nontemporal_load(p) (*(p))
#define __builtin_nontemporal_store(x, p) (*(p) = (x))
#define HIP_DYNAMIC_SHARED(type, name) type *name = (type *)ffx_dynamic_shared();
