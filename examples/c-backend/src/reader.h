// A reader of MessagePack over a block of bytes, as much of it as programs use. A reader that met something wrong stays
// `failed` and gives zeros from then on, so callers check once at the end.
#ifndef READER_H
#define READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Reader {
  const uint8_t *at, *end;
  bool failed;
} Reader;

// Text inside of the bytes; not closed by a NUL.
typedef struct Text {
  const char *data;
  size_t len;
} Text;

typedef enum Kind { NIL, BOOLEAN, INTEGER, FLOATING, TEXT, ARRAY, MAP } Kind;

// One value; of arrays and maps only the number of elements or pairs, which follow.
typedef struct Item {
  Kind kind;
  int64_t integer;  // also 0 or 1 of a boolean, and the count of arrays and maps
  double floating;
  Text text;
} Item;

// Reads one item.
Item read_item(Reader *r);
// Passes over one value with all that is in it.
void skip_value(Reader *r);
// Read an item of a kind; another kind is a failure.
size_t read_array(Reader *r);
size_t read_map(Reader *r);
int64_t read_integer(Reader *r);
Text read_text(Reader *r);
// Reads nil (-1) or a number that is not negative.
int64_t read_optional(Reader *r);
// Whether the next item is text; nothing is read.
bool next_is_text(const Reader *r);

bool text_is(Text text, const char *wanted);
// A copy with a closing NUL, to be freed; NULL without memory.
char *text_copy(Text text);

#endif
