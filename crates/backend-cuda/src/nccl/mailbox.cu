// Sums of few elements over ranks whose devices reach each other's memory. Each rank writes its operand into a mailbox of every
// other rank, in lines of 16 bytes with the number of the exchange beside each half: a half whose number is right has come,
// so that readers need no other signal. All ranks add in the order of ranks and so have the same bits.
//
// A mailbox has two sides, which exchanges use in turn: who writes for the exchange after the next one has read what its reader sent
// for the next one, which that reader began after it had read this one.
//
// Not here: who has which mailbox (`mailbox.rs`).

typedef unsigned int u32;
typedef unsigned short u16;

struct Line {
    u32 low, low_number, high, high_number;
};

// One sum of several that are exchanged together.
struct Part {
    const void *send;
    void *receive;
    // The number of its first line, and its elements.
    u32 first, count;
};

struct Exchange {
    Line *boxes[8];
    // Number of exchanges before this one, and the blocks that have ended.
    u32 *state;
    // Of the host: not 0 once the exchanges were ended, because a rank is gone.
    const volatile u32 *ended;
    float scale;
    u32 room, ranks, rank, lines, parts;
    Part part[120];
};

struct F32 {
    typedef u32 Element;
    typedef float Sum;
    static const u32 PER = 2;
    static __device__ float get(u32 bits) { return __uint_as_float(bits); }
    static __device__ u32 put(float x) { return __float_as_uint(x); }
};

struct BF16 {
    typedef u16 Element;
    typedef float Sum;
    static const u32 PER = 4;
    static __device__ float get(u16 bits) { return __uint_as_float((u32)bits << 16); }
    static __device__ u16 put(float x) {
        u32 bits = __float_as_uint(x);
        return x != x ? 0x7fff : (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
};

struct F16 {
    typedef u16 Element;
    typedef float Sum;
    static const u32 PER = 4;
    static __device__ float get(u16 bits) {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
    static __device__ u16 put(float x) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
    }
};

// What a line carries, as elements of a type.
template <class T>
union Payload {
    struct {
        u32 low, high;
    } half;
    typename T::Element element[T::PER];
};

// The part that a line belongs to.
__device__ const Part &part_of(const Exchange &e, u32 line) {
    u32 low = 0, high = e.parts;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (e.part[middle].first <= line) low = middle;
        else high = middle;
    }
    return e.part[low];
}

template <class T>
__device__ Payload<T> own(const Part &part, u32 line) {
    const typename T::Element *from = (const typename T::Element *)part.send;
    const u32 at = (line - part.first) * T::PER;
    Payload<T> all;
    all.half.low = all.half.high = 0;
#pragma unroll
    for (u32 i = 0; i < T::PER; i++) {
        if (at + i < part.count) all.element[i] = from[at + i];
    }
    return all;
}

__device__ void write(Line *to, u32 low, u32 high, u32 number) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(low), "r"(number), "r"(high), "r"(number)
                 : "memory");
}

// Waits for a line; gives up where the exchanges were ended.
template <class T>
__device__ Payload<T> read(const Line *from, u32 number, const volatile u32 *ended) {
    Payload<T> all;
    for (u32 turn = 1;; turn++) {
        u32 first, second;
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(all.half.low), "=r"(first), "=r"(all.half.high), "=r"(second)
                     : "l"(from)
                     : "memory");
        if (first == number && second == number) return all;
        if (turn % 4096 == 0 && *ended) return all;
    }
}

// Lets the next launch begin, whose kernel waits for this one itself, and waits for the launches before (programmatic dependent
// launch).
__device__ void in_order() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class T>
__device__ void sum(const Exchange &e) {
    in_order();
    const u32 number = *(volatile u32 *)e.state + 1;
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const size_t side = (size_t)(number & 1) * e.ranks;
    for (u32 at = first; at < e.lines; at += step) {
        const Payload<T> mine = own<T>(part_of(e, at), at);
        for (u32 rank = 0; rank < e.ranks; rank++) {
            if (rank != e.rank) write(e.boxes[rank] + (side + e.rank) * e.room + at, mine.half.low, mine.half.high, number);
        }
    }
    for (u32 at = first; at < e.lines; at += step) {
        const Part &part = part_of(e, at);
        typename T::Sum total[T::PER];
        for (u32 rank = 0; rank < e.ranks; rank++) {
            const Payload<T> some = rank == e.rank
                ? own<T>(part, at)
                : read<T>(e.boxes[e.rank] + (side + rank) * e.room + at, number, e.ended);
#pragma unroll
            for (u32 i = 0; i < T::PER; i++) {
                const typename T::Sum x = T::get(some.element[i]);
                total[i] = rank == 0 ? x : total[i] + x;
            }
        }
        typename T::Element *to = (typename T::Element *)part.receive;
        const u32 element = (at - part.first) * T::PER;
#pragma unroll
        for (u32 i = 0; i < T::PER; i++) {
            if (element + i < part.count) to[element + i] = T::put(total[i] * e.scale);
        }
    }
    __syncthreads();
    // Every block has read the number before it ends, so the last one may change it.
    if (threadIdx.x == 0 && atomicAdd(e.state + 1, 1) == gridDim.x - 1) {
        e.state[1] = 0;
        __threadfence();
        *(volatile u32 *)e.state = number;
    }
}

extern "C" __global__ void __launch_bounds__(512) sum_f32(const __grid_constant__ Exchange e) { sum<F32>(e); }
extern "C" __global__ void __launch_bounds__(512) sum_bf16(const __grid_constant__ Exchange e) { sum<BF16>(e); }
extern "C" __global__ void __launch_bounds__(512) sum_f16(const __grid_constant__ Exchange e) { sum<F16>(e); }
