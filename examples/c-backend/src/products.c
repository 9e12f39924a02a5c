// See run.h. Matrix products and convolutions, one element of the result at a time, added up in double precision. Their
// epilogues are run as loops are (run.c).
#include "run.h"

// Sizes below this can be multiplied with strides and dilations of windows (program.c) without overflow.
#define MAX_SIZE ((int64_t)1 << 40)

static bool open_factor(Call *call, const Kernel *k, const Port *port, Place *place) {
  const Buffer *b = &call->program->buffers[port->buf];
  const Place *root = &call->places[b->storage == VIEW ? b->of : port->buf];
  if (!place_evaluate(call, place, &port->sizes, &port->strides, &port->offset, k->name)) return false;
  if (place->span > 0 && (uint64_t)place->offset + place->span > root->span)
    return call_fail(call, "a factor reaches out of its buffer", k->name);
  place->data = root->data;
  place->dtype = root->dtype;
  return true;
}

static bool fits_matmul(const Factors *f, size_t rank) {
  const int64_t *a = f->a.sizes, *b = f->b.sizes;
  for (size_t d = 0; d + 2 < rank; d++)
    if (a[d] != f->ranges[d] || b[d] != f->ranges[d]) return false;
  return a[rank - 2] == f->ranges[rank - 2] && b[rank - 1] == f->ranges[rank - 1] && a[rank - 1] == b[rank - 2];
}

static bool fits_conv(const Kernel *k, const Factors *f, size_t rank) {
  const int64_t *x = f->a.sizes, *w = f->b.sizes, *out = f->ranges;
  // Of the two channels the weight has one whole and one within a group.
  int64_t whole = k->transposed ? x[1] : out[1], grouped = k->transposed ? out[1] : x[1];
  for (size_t d = 0; d < rank; d++)
    if (x[d] > MAX_SIZE || w[d] > MAX_SIZE || out[d] > MAX_SIZE) return false;
  return x[0] == out[0] && w[0] == whole && whole % k->groups == 0 && grouped % k->groups == 0 &&
         w[1] == grouped / k->groups;
}

bool factors_open(Call *call, const Kernel *k, const int64_t *ranges, Factors *factors) {
  factors->ranges = ranges;
  if (!open_factor(call, k, &k->a, &factors->a) || !open_factor(call, k, &k->b, &factors->b)) return false;
  size_t rank = k->outer.n;
  bool fits = k->kind == MATMUL ? fits_matmul(factors, rank) : fits_conv(k, factors, rank);
  return fits || call_fail(call, "the sizes of a product do not fit each other", k->name);
}

static double times(const Place *a, int64_t at_a, const Place *b, int64_t at_b) {
  return (double)((const float *)a->data)[at_a] * (double)((const float *)b->data)[at_b];
}

// `Σ_k a[…, m, k] * b[…, k, n]` at the point `[…, m, n]`.
static double matmul_at(const Factors *f, const int64_t *point, size_t rank) {
  int64_t at_a = f->a.offset, at_b = f->b.offset;
  double sum = 0;
  for (size_t d = 0; d < rank; d++) {
    if (d != rank - 1) at_a += point[d] * f->a.strides[d];
    if (d != rank - 2) at_b += point[d] * f->b.strides[d];
  }
  for (int64_t i = 0; i < f->a.sizes[rank - 1]; i++) {
    sum += times(&f->a, at_a, &f->b, at_b);
    at_a += f->a.strides[rank - 1];
    at_b += f->b.strides[rank - 2];
  }
  return sum;
}

// The position in the input that a position of the result meets at one of the window; false where there is none.
static bool source(const Window *w, bool transposed, int64_t point, int64_t tap, int64_t size, int64_t *found) {
  if (!transposed) {
    *found = point * w->stride + tap * w->dilation - w->before;
  } else {
    int64_t spread = point + w->before - tap * w->dilation;
    if (spread % w->stride != 0) return false;
    *found = spread / w->stride;
  }
  return *found >= 0 && *found < size;
}

// The sum over the channels of a group at one point of the window.
static double channels_at(const Kernel *k, const Factors *f, const int64_t *point, int64_t at_x, int64_t at_w) {
  int64_t in = f->a.sizes[1] / k->groups, out = f->ranges[1] / k->groups, group = point[1] / out;
  size_t inner = k->transposed ? 0 : 1;  // the dimension of the weight that counts input channels
  double sum = 0;
  at_x += group * in * f->a.strides[1];
  at_w += k->transposed ? group * in * f->b.strides[0] + point[1] % out * f->b.strides[1] : point[1] * f->b.strides[0];
  for (int64_t c = 0; c < in; c++)
    sum += times(&f->a, at_x + c * f->a.strides[1], &f->b, at_w + c * f->b.strides[inner]);
  return sum;
}

// At the point `[n, o, spatial…]`.
static double conv_at(const Kernel *k, const Factors *f, const int64_t *point) {
  size_t n = k->outer.n - 2;
  int64_t taps[MAX_SPATIAL] = {0};
  double sum = 0;
  if (f->b.span == 0 || f->a.span == 0) return 0;
  for (bool more = true; more;) {
    int64_t at_x = f->a.offset + point[0] * f->a.strides[0], at_w = f->b.offset;
    bool there = true;
    for (size_t d = 0; d < n; d++) {
      int64_t position;
      there = there && source(&k->windows[d], k->transposed, point[d + 2], taps[d], f->a.sizes[d + 2], &position);
      if (there) at_x += position * f->a.strides[d + 2];
      at_w += taps[d] * f->b.strides[d + 2];
    }
    if (there) sum += channels_at(k, f, point, at_x, at_w);
    more = false;
    for (size_t d = n; d-- > 0 && !more;) {
      more = ++taps[d] < f->b.sizes[d + 2];
      if (!more) taps[d] = 0;
    }
  }
  return sum;
}

float product_at(const Kernel *k, const Factors *factors, const int64_t *point) {
  return (float)(k->kind == MATMUL ? matmul_at(factors, point, k->outer.n) : conv_at(k, factors, point));
}
