// Numbers, vectors and the two kinds of memory. No system header: NVRTC has none.
#pragma once

namespace prelude {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

// bfloat16: the upper half of an f32.
struct bf16 {
    u16 bits;
};

// fp8 with 4 exponent and 3 mantissa bits, largest 448, no infinities.
struct e4m3 {
    u8 bits;
};

// N values that move as one access; sizeof(Vec) is a power of two up to 16.
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
    T at[N];
    PRELUDE_DEVICE T& operator[](int i) { return at[i]; }
    PRELUDE_DEVICE const T& operator[](int i) const { return at[i]; }
};
using bf16x8 = Vec<bf16, 8>;
using bf16x2 = Vec<bf16, 2>;
using f32x4 = Vec<float, 4>;
using u32x4 = Vec<u32, 4>;

template <class T>
struct Plain {
    using type = T;
};
template <class T>
struct Plain<const T> {
    using type = T;
};
template <class T>
using plain = typename Plain<T>::type;

// A pointer into device memory (8 bytes in a parameter struct). Opened by load() and store().
template <class T>
struct Global {
    T* at;
    PRELUDE_DEVICE Global operator+(u64 n) const { return {at + n}; }
    PRELUDE_DEVICE operator Global<const T>() const { return {at}; }
    PRELUDE_DEVICE explicit operator bool() const { return at != nullptr; }
};
template <class T>
struct Global<const T> {
    const T* at;
    PRELUDE_DEVICE Global operator+(u64 n) const { return {at + n}; }
    PRELUDE_DEVICE explicit operator bool() const { return at != nullptr; }
};

// A pointer into the block's shared memory.
template <class T>
struct Shared {
    T* at;
    PRELUDE_DEVICE Shared operator+(u32 n) const { return {at + n}; }
    PRELUDE_DEVICE operator Shared<const T>() const { return {at}; }
};
template <class T>
struct Shared<const T> {
    const T* at;
    PRELUDE_DEVICE Shared operator+(u32 n) const { return {at + n}; }
};

// The same memory, looked at as another type.
template <class U, class T>
PRELUDE_DEVICE Global<U> as(Global<T> p) {
    return {reinterpret_cast<U*>(p.at)};
}
template <class U, class T>
PRELUDE_DEVICE Shared<U> as(Shared<T> p) {
    return {reinterpret_cast<U*>(p.at)};
}

struct Index3 {
    u32 x, y, z;
};

// The same bits as another type of equal size. Takes a value: a reference into memory would let
// the compiler copy from there byte by byte.
template <class To, class From>
PRELUDE_DEVICE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
    To to;
    PRELUDE_MEMCPY(&to, &from, sizeof(To));
    return to;
}

}  // namespace prelude
