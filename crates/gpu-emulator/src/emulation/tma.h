// The tensor memory accelerator and the products of warpgroups: barriers that count arrivals and bytes, copies of boxes of
// tensors, products that are executed when they are waited for. What is undefined on a GPU is an error here: more arrivals
// than a barrier counts, a product or copy that is not waited for when the block ends. The target of a copy holds a NaN
// pattern until its barrier is waited for.

// ---- barriers in shared memory
struct FfxPhase { unsigned short expected, pending; int bytes : 31; ffx_u32 parity : 1; };
static_assert(sizeof(FfxPhase) == 8, "a barrier is 64 bits");

static void ffx_phase_init(void *bar, int count) {
    ffx_aligned(bar, 8);
    *(FfxPhase *)bar = {(unsigned short)count, (unsigned short)count, 0, 0};
}
// Wakes the threads that wait at a barrier.
static void ffx_phase_wake(void *bar) {
    for (ffx_u32 t = 0; t < blockDim.x; ++t)
        if (ffx_fibers[t].state == FFX_PHASE && ffx_fibers[t].operands == bar) ffx_put(ffx_fibers + t, FFX_READY);
}
static void ffx_phase_check(void *bar) {
    FfxPhase *p = (FfxPhase *)bar;
    if (p->pending || p->bytes) return;
    p->pending = p->expected;
    p->parity ^= 1;
    ffx_phase_wake(bar);
}
// Arrives; the phase waits for this many more bytes.
static __noinline__ void ffx_phase_arrive(void *bar, int bytes) {
    FfxPhase *p = (FfxPhase *)bar;
    if (p->pending == 0) ffx_fail(FFX_BAD_CALL, "more than %d arrivals at a barrier in shared memory", p->expected);
    p->bytes += bytes;
    --p->pending;
    ffx_phase_check(bar);
}

// ---- copies of boxes
// A tensor map, with the layout in `launch.rs`. Strides are in bytes.
struct FfxTensor { ffx_u64 address, size[5], stride[5]; ffx_u32 window[5], rank, width; };
struct FfxBox { char *to; FfxTensor map; void *bar; int at[5]; };
enum { FFX_BOXES = 256 };
static FfxBox ffx_boxes[FFX_BOXES];
static int ffx_box_count;

// The 128-byte swizzle: 16-byte pieces of a line are permuted by the number of the line.
static inline ffx_u64 ffx_swizzled(ffx_u64 at) { return at ^ (at >> 7 & 7) << 4; }
static int ffx_box_bytes(const FfxTensor *map) {
    int bytes = (int)map->width;
    for (ffx_u32 d = 0; d < map->rank; ++d) bytes *= (int)map->window[d];
    return bytes;
}
static __noinline__ void ffx_box_later(void *to, const FfxTensor &map, void *bar, const int *at, int rank) {
    ffx_aligned(to, 1024);
    if ((ffx_u32)rank != map.rank) ffx_fail(FFX_BAD_CALL, "%d coordinates of a tensor of %d dimensions", rank, (int)map.rank);
    if (map.window[0] * map.width != 128) ffx_fail(FFX_BAD_CALL, "a line of a box is %d bytes", (int)(map.window[0] * map.width));
    if (ffx_box_count == FFX_BOXES) ffx_fail(FFX_BAD_CALL, "more than %d copies of boxes are in flight", FFX_BOXES);
    FfxBox *box = ffx_boxes + ffx_box_count++;
    *box = {(char *)to, map, bar, {}};
    for (int d = 0; d < rank; ++d) box->at[d] = at[d];
    memset(to, 0xff, (ffx_u64)ffx_box_bytes(&map));
    ffx_phase_wake(bar);
}
static void ffx_box_copy(const FfxBox *box) {
    const FfxTensor *map = &box->map;
    int bytes = ffx_box_bytes(map), lines = bytes / (int)map->width;
    for (int n = 0; n < lines; ++n) {
        ffx_u64 from = map->address;
        bool inside = true;
        int rest = n;
        for (ffx_u32 d = 0; d < map->rank; ++d) {
            ffx_i64 at = box->at[d] + rest % (int)map->window[d];
            rest /= (int)map->window[d];
            inside &= at >= 0 && (ffx_u64)at < map->size[d];
            from += (ffx_u64)at * map->stride[d];
        }
        void *to = (void *)ffx_swizzled((ffx_u64)box->to + (ffx_u64)n * map->width);
        if (inside) memcpy(to, (const void *)from, map->width);
        else memset(to, 0, map->width);
    }
    ((FfxPhase *)box->bar)->bytes -= bytes;
}
// Executes the copies that a barrier counts, once it knows their total bytes.
static void ffx_box_arrive(void *bar) {
    if (((FfxPhase *)bar)->bytes == 0) return;
    int kept = 0;
    for (int i = 0; i < ffx_box_count; ++i) {
        if (ffx_boxes[i].bar == bar) ffx_box_copy(ffx_boxes + i);
        else ffx_boxes[kept++] = ffx_boxes[i];
    }
    ffx_box_count = kept;
    ffx_phase_check(bar);
}
// Waits until the phase of this parity has ended.
static __noinline__ void ffx_phase_wait(void *bar, ffx_u32 parity) {
    ffx_aligned(bar, 8);
    for (;;) {
        ffx_box_arrive(bar);
        if (((FfxPhase *)bar)->parity != parity) return;
        ffx_self->operands = bar;
        ffx_put(ffx_self, FFX_PHASE);
        ffx_yield();
    }
}

// ---- products
struct FfxProduct {
    float *d;
    const void *a, *b;
    int lead_a, lead_b;
    bool more;
    int group;
    void (*run)(FfxProduct);
    // The thread's two rows of a left operand in registers, two 16-bit numbers each.
    ffx_u32 rows[16];
};
enum { FFX_PRODUCTS = 64 };
static struct { FfxProduct list[FFX_PRODUCTS]; int count, group; } ffx_products[FFX_MOST_THREADS];

static __noinline__ void ffx_product_later(FfxProduct p) {
    auto &own = ffx_products[ffx_number()];
    ffx_aligned(p.a, 16);
    ffx_aligned(p.b, 16);
    if (own.count == FFX_PRODUCTS) ffx_fail(FFX_BAD_CALL, "more than %d products of a warpgroup are in flight", FFX_PRODUCTS);
    p.group = own.group;
    own.list[own.count++] = p;
}
static inline void ffx_product_commit() { ++ffx_products[ffx_number()].group; }
// Executes all groups but the latest `pending` ones, in order.
static __noinline__ void ffx_product_wait(int pending) {
    auto &own = ffx_products[ffx_number()];
    int kept = 0;
    for (int i = 0; i < own.count; ++i) {
        if (own.list[i].group < own.group - pending) own.list[i].run(own.list[i]);
        else own.list[kept++] = own.list[i];
    }
    own.count = kept;
}

// The initial state of a block, and the check at its end.
static void ffx_bulk_clear() {
    ffx_box_count = 0;
    for (ffx_u32 t = 0; t < blockDim.x; ++t) ffx_products[t].count = ffx_products[t].group = 0;
}
static __noinline__ bool ffx_bulk_ended() {
    int products = 0;
    for (ffx_u32 t = 0; t < blockDim.x; ++t) products += ffx_products[t].count;
    if (!products && !ffx_box_count) return true;
    ffx_now->error = FFX_BAD_CALL;
    ffx_now->block[0] = blockIdx.x;
    ffx_now->block[1] = blockIdx.y;
    ffx_now->block[2] = blockIdx.z;
    snprintf(ffx_now->message, sizeof ffx_now->message, "a block ends with %d boxes and %d products in flight", ffx_box_count, products);
    return false;
}
