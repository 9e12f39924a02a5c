// See reader.h. Numbers are big-endian in MessagePack.
#include "reader.h"

#include <stdlib.h>
#include <string.h>

static uint64_t read_bytes(Reader *r, size_t n) {
  uint64_t value = 0;
  if (r->failed || (size_t)(r->end - r->at) < n) {
    r->failed = true;
    return 0;
  }
  for (size_t i = 0; i < n; i++) value = value << 8 | r->at[i];
  r->at += n;
  return value;
}

static Item of_integer(int64_t value) {
  Item item = {INTEGER, value, 0, {NULL, 0}};
  return item;
}

// Elements take at least a byte each: a larger count is a lie.
static Item of_count(Reader *r, Kind kind, uint64_t count) {
  Item item = {kind, 0, 0, {NULL, 0}};
  if (count > (uint64_t)(r->end - r->at)) r->failed = true;
  if (!r->failed) item.integer = (int64_t)count;
  return item;
}

static Item of_text(Reader *r, uint64_t len) {
  Item item = of_count(r, TEXT, len);
  item.text.data = (const char *)r->at;
  item.text.len = (size_t)item.integer;
  r->at += item.text.len;
  return item;
}

static Item of_floating(Reader *r, size_t bytes) {
  Item item = {FLOATING, 0, 0, {NULL, 0}};
  uint64_t bits = read_bytes(r, bytes);
  if (bytes == 4) {
    uint32_t half = (uint32_t)bits;
    float narrow;
    memcpy(&narrow, &half, sizeof narrow);
    item.floating = narrow;
  } else {
    memcpy(&item.floating, &bits, sizeof bits);
  }
  return item;
}

// Signed numbers of fewer than eight bytes have their sign extended.
static int64_t signed_of(uint64_t bits, size_t bytes) {
  uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
  uint64_t wide = (bits ^ sign) - sign;
  int64_t value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

Item read_item(Reader *r) {
  Item nothing = {NIL, 0, 0, {NULL, 0}};
  uint8_t tag = (uint8_t)read_bytes(r, 1);
  if (r->failed) return nothing;
  if (tag < 0x80) return of_integer(tag);
  if (tag < 0x90) return of_count(r, MAP, tag & 0x0f);
  if (tag < 0xa0) return of_count(r, ARRAY, tag & 0x0f);
  if (tag < 0xc0) return of_text(r, tag & 0x1f);
  if (tag >= 0xe0) return of_integer((int64_t)tag - 256);
  switch (tag) {
    case 0xc0: return nothing;
    case 0xc2:
    case 0xc3:
      nothing.kind = BOOLEAN;
      nothing.integer = tag == 0xc3;
      return nothing;
    case 0xca: return of_floating(r, 4);
    case 0xcb: return of_floating(r, 8);
    case 0xcc: return of_integer((int64_t)read_bytes(r, 1));
    case 0xcd: return of_integer((int64_t)read_bytes(r, 2));
    case 0xce: return of_integer((int64_t)read_bytes(r, 4));
    case 0xcf: return of_integer(signed_of(read_bytes(r, 8), 8));
    case 0xd0: return of_integer(signed_of(read_bytes(r, 1), 1));
    case 0xd1: return of_integer(signed_of(read_bytes(r, 2), 2));
    case 0xd2: return of_integer(signed_of(read_bytes(r, 4), 4));
    case 0xd3: return of_integer(signed_of(read_bytes(r, 8), 8));
    case 0xd9: return of_text(r, read_bytes(r, 1));
    case 0xda: return of_text(r, read_bytes(r, 2));
    case 0xdb: return of_text(r, read_bytes(r, 4));
    case 0xdc: return of_count(r, ARRAY, read_bytes(r, 2));
    case 0xdd: return of_count(r, ARRAY, read_bytes(r, 4));
    case 0xde: return of_count(r, MAP, read_bytes(r, 2));
    case 0xdf: return of_count(r, MAP, read_bytes(r, 4));
    default: r->failed = true; return nothing;
  }
}

void skip_value(Reader *r) {
  // Counted rather than nested: bytes from outside must not decide how deep the stack grows.
  uint64_t left = 1;
  while (left > 0 && !r->failed) {
    Item item = read_item(r);
    left -= 1;
    if (item.kind == ARRAY) left += (uint64_t)item.integer;
    if (item.kind == MAP) left += 2 * (uint64_t)item.integer;
  }
}

static Item read_kind(Reader *r, Kind kind) {
  Item item = read_item(r);
  if (item.kind != kind) {
    Item nothing = {NIL, 0, 0, {"", 0}};
    r->failed = true;
    return nothing;
  }
  return item;
}

size_t read_array(Reader *r) { return (size_t)read_kind(r, ARRAY).integer; }
size_t read_map(Reader *r) { return (size_t)read_kind(r, MAP).integer; }
int64_t read_integer(Reader *r) { return read_kind(r, INTEGER).integer; }
Text read_text(Reader *r) { return read_kind(r, TEXT).text; }

int64_t read_optional(Reader *r) {
  Item item = read_item(r);
  if (item.kind == NIL) return -1;
  if (item.kind != INTEGER || item.integer < 0) r->failed = true;
  return item.integer;
}

bool next_is_text(const Reader *r) {
  if (r->failed || r->at == r->end) return false;
  uint8_t tag = *r->at;
  return (tag >= 0xa0 && tag < 0xc0) || (tag >= 0xd9 && tag <= 0xdb);
}

bool text_is(Text text, const char *wanted) {
  return text.len == strlen(wanted) && memcmp(text.data, wanted, text.len) == 0;
}

char *text_copy(Text text) {
  char *copy = malloc(text.len + 1);
  if (copy == NULL) return NULL;
  if (text.len > 0) memcpy(copy, text.data, text.len);
  copy[text.len] = '\0';
  return copy;
}
