// Tiles of matrix products: how a block copies parts of two operands to shared memory and multiplies them. The generated
// kernel provides the addresses of elements (lambdas `row`, `inner`, `inside`), so that a convolution is the same product
// with other addresses. Included after the instructions.
//
// An operand's tile has ROWS rows (of A: m; of B: n) and DEPTH inner points (k). How it comes into shared memory and lies there is the
// vendor's (`staging.cu`): `Tile` says how it lies, `Filler` brings it.

enum { ALONG_INNER, ALONG_ROWS, SINGLE_INNER, SINGLE_ROWS };

// What a row or an inner point adds to an address, and to the spatial coordinates that must be within the input.
template <class I, int SPATIAL> struct Spot { I at; bool in; i32 x[SPATIAL ? SPATIAL : 1]; };
