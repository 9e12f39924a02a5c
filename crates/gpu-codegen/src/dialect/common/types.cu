// The names of number types and functions that all helpers and kernels share. No header is included, so that a run-time
// compiler needs no search path.
//
// How these files are read (`dialect/mod.rs`): an item is the text between two empty lines outside of braces; a kernel
// gets the items whose names it mentions, and those that they mention.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
struct alignas(2) f16 { u16 bits; };
struct alignas(2) bf16 { u16 bits; };

#define DEV static __device__ __forceinline__

// A member function: `DEV` is static.
#define MEMBER __device__ __forceinline__

#define UNLIKELY(x) __builtin_expect(x, 0)
// What always holds, from which the compiler may conclude.
#define ASSUME(x) __builtin_assume(x)

#define INF32 as_float(0x7f800000u)

#define NAN32 as_float(0x7fc00000u)

#define INF64 as_double(0x7ff0000000000000LL)

#define NAN64 as_double(0x7ff8000000000000LL)
