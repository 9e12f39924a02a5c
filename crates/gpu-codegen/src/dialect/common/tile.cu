// Tiles of matrix products: how a block copies parts of two operands to shared memory and multiplies them. The generated
// kernel provides the addresses of elements (lambdas `row`, `inner`, `inside`), so that a convolution is the same product
// with other addresses. Included after the instructions.
//
// An operand's tile has ROWS rows (of A: m; of B: n) and DEPTH inner points (k). How it comes into shared memory and lies there is the
// vendor's (`staging.cu`): `Tile` says how it lies, `Filler` brings it.

enum { ALONG_INNER, ALONG_ROWS, SINGLE_INNER, SINGLE_ROWS };

// What a row or an inner point adds to an address, and to the spatial coordinates that must be within the input.
template <class I, int SPATIAL> struct Spot { I at; bool in; i32 x[SPATIAL ? SPATIAL : 1]; };

// Places of a group: its number, and from where to where it has them.
template <class I> struct GroupPlaces { I group, first, end; };

// The places of a group of `places` in total, whatever numbers the ends are: groups lie one behind the other.
template <class I, class E> DEV GroupPlaces<I> group_places(const E *ends, I step, I count, I places, I group) {
    i64 first = 0, end = 0;
    #pragma unroll 8
    for (I g = 0; g <= group; ++g) {
        first = end;
        end = imax<i64>(end, imin<i64>((i64)ends[g * step], (i64)places));
    }
    return {group, (I)first, (I)end};
}

// The rows of tile number `tile` and all later ones of its group, where a tile has at most `high` rows of one group. What is in no
// group comes last, as group `count`; tiles behind that have no row.
template <class I, class E> DEV GroupPlaces<I> group_tile(const E *ends, I step, I count, I rows, I high, I tile) {
    GroupPlaces<I> found = {count, rows, rows};
    i64 first = 0;
    #pragma unroll 8
    for (I g = 0; g <= count; ++g) {
        const i64 end = g < count ? imax<i64>(first, imin<i64>((i64)ends[g * step], (i64)rows)) : (i64)rows;
        const I tiles = (I)((end - first + high - 1) / high);
        if (tile >= 0 && tile < tiles) found = {g, (I)(first + tile * high), (I)end};
        tile -= tiles;
        first = end;
    }
    return found;
}

// The group of a place: the first that ends behind it, `count` where none does.
template <class I, class E> DEV I group_of(const E *ends, I step, I count, I place) {
    I found = count;
    #pragma unroll 8
    for (I g = count - 1; g >= 0; --g) if ((i64)ends[g * step] > (i64)place) found = g;
    return found;
}
