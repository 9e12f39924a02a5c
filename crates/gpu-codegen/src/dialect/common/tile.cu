// Tiles of matrix products: how a block brings the parts of two operands into shared memory and multiplies them. The
// generated kernel says how an element's address is found (lambdas `row`, `inner`, `inside`), so that a convolution is
// the same product with another address; stands behind the instructions.
//
// An operand's tile has ROWS rows (of A: m; of B: n) and DEPTH inner points (k). How it comes into shared memory and lies there is the
// vendor's (`staging.cu`): `Tile` says how it lies, `Filler` brings it.

enum { ALONG_INNER, ALONG_ROWS, SINGLE_INNER, SINGLE_ROWS };

// What a row or an inner point adds to an address, and to the spatial coordinates that must lie within the input.
template <class I, int SPATIAL> struct Spot { I at; bool in; i32 x[SPATIAL ? SPATIAL : 1]; };
