// Vectors of 4 floats in the compiler's own vector type: any machine, no intrinsics. Products are rounded before they
// are added (no fused multiply-add), so bits differ from the other tiers but never within this one.
#pragma once

#include "kernels.h"

namespace octavo::OCTAVO_TIER {

typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
constexpr int W = 4;
constexpr int kTileRows = 4;
constexpr int kTileVecs = 2;
constexpr int kPairRows = 3;  // rows of a tile whose loads fill two registers each

inline F set(float x) { return F{x, x, x, x}; }
inline F fma(F a, F b, F c) { return a * b + c; }
inline F max(F a, F b) { return a > b ? a : b; }  // b where either is NaN
inline F min(F a, F b) { return a < b ? a : b; }
inline F round(F x) { return (x + 12582912.0f) - 12582912.0f; }  // |x| < 2^22
inline F abs(F x) { return (F)((I)x & 0x7fffffff); }
inline F select_less(F a, F b, F yes, F no) { return a < b ? yes : no; }
// x in lanes begin .. end, `other` elsewhere.
inline F keep(F x, int begin, int end, F other) {
  I lane = {0, 1, 2, 3};
  return ((lane >= begin) & (lane < end)) ? x : other;
}
// 2^n for whole n in -126 .. 127.
inline F exp2_whole(F n) { return (F)((__builtin_convertvector(n, I) + 127) << 23); }

inline float bits_to_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t float_to_bits(float x) { return __builtin_bit_cast(uint32_t, x); }

inline float widen(float x) { return x; }
inline float widen(bf16 x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(f16 x) {
  uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, rest = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  // Scaling by 2^112 moves the exponent bias from 15 to 127 and normalizes subnormals on the way.
  float scaled = bits_to_float(rest) * bits_to_float(0x77800000);
  uint32_t bits = rest >= 0x0f800000 ? (rest | 0x7f800000) : float_to_bits(scaled);
  return bits_to_float(sign | bits);
}
inline void narrow(float& out, float x) { out = x; }
inline void narrow(bf16& out, float x) {  // to nearest, ties to even; NaN stays a NaN
  uint32_t bits = float_to_bits(x);
  out.bits = static_cast<uint16_t>((x != x ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline void narrow(f16& out, float x) {
  uint32_t sign = (float_to_bits(x) >> 16) & 0x8000, bits = float_to_bits(x) & 0x7fffffff;
  if (bits > 0x7f800000) {
    out.bits = static_cast<uint16_t>(sign | 0x7e00);
  } else if (bits >= 0x477ff000) {  // rounds to 65536 or more
    out.bits = static_cast<uint16_t>(sign | 0x7c00);
  } else if (bits < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    out.bits = static_cast<uint16_t>(sign | (float_to_bits(bits_to_float(bits) + 0.5f) - 0x3f000000));
  } else {
    out.bits = static_cast<uint16_t>(sign | ((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13));
  }
}

template <typename T>
inline F load(const T* p, int n) {
  F x = {};
  for (int i = 0; i < n; ++i) x[i] = widen(p[i]);
  return x;
}
template <typename T>
inline F load(const T* p) {
  return F{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])};
}
template <typename T>
inline void store(T* p, F x, int n = W) {
  for (int i = 0; i < n; ++i) narrow(p[i], x[i]);
}

inline float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float max_lane(F x) {
  float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}

// Bit i: a < b in lane i.
inline uint32_t less(F a, F b) {
  I mask = a < b;
  return static_cast<uint32_t>((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8));
}

// Sums in float64, one per lane.
typedef double Wide __attribute__((vector_size(32)));
inline void add(Wide& sum, F x) { sum = sum + __builtin_convertvector(x, Wide); }
inline double sum(const Wide& x) { return (x[0] + x[2]) + (x[1] + x[3]); }

// columns[c] holds, of each of W rows, the 32-bit word c behind `offset` bytes; c = 0 .. 3.
inline void load_columns(F (&columns)[4], const void* const* rows, int64_t offset) {
  F x[4];
  for (int i = 0; i < 4; ++i) __builtin_memcpy(&x[i], static_cast<const char*>(rows[i]) + offset, sizeof(F));
  for (int c = 0; c < 4; ++c) columns[c] = F{x[0][c], x[1][c], x[2][c], x[3][c]};
}

// Vectors that hold two halves per lane: the even ones as floats, and the odd ones.
inline F load_pairs(const bf16* p, int n = W) {
  I x = {};
  for (int i = 0; i < n; ++i) x[i] = static_cast<int32_t>(p[2 * i].bits | static_cast<uint32_t>(p[2 * i + 1].bits) << 16);
  return (F)x;
}
inline F even_bf16(F x) { return (F)((I)x << 16); }
inline F odd_bf16(F x) { return (F)((I)x & static_cast<int32_t>(0xffff0000u)); }
inline F words_f16(I x) {
  auto at = [&](int i) { return widen(f16{static_cast<uint16_t>(x[i])}); };
  return F{at(0), at(1), at(2), at(3)};
}
inline F even_f16(F x) { return words_f16((I)x & 0xffff); }
inline F odd_f16(F x) { return words_f16((I)x >> 16 & 0xffff); }
// Lanes of both by turns, into the first and then the second.
inline void interleave(F& even, F& odd) {
  F lo = {even[0], odd[0], even[1], odd[1]};
  odd = F{even[2], odd[2], even[3], odd[3]};
  even = lo;
}

}  // namespace octavo::OCTAVO_TIER
