// Vectors of 8 floats in AVX2 registers, with FMA and F16C.
#pragma once

#include <immintrin.h>

#include "kernels.h"

namespace octavo::OCTAVO_TIER {

using F = __m256;
constexpr int W = 8;
constexpr int kTileRows = 6;  // 6 x 2 accumulators, 2 loads and 1 broadcast fill 15 of 16 registers
constexpr int kTileVecs = 2;
constexpr int kPairRows = 4;  // rows of a tile whose loads fill two registers each

inline __m256i lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline __m256i first(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes()); }

inline F set(float x) { return _mm256_set1_ps(x); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F abs(F x) { return _mm256_andnot_ps(set(-0.0f), x); }
inline F select_less(F a, F b, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
// x in lanes begin .. end, `other` elsewhere.
inline F keep(F x, int begin, int end, F other) {
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_andnot_si256(first(begin), first(end))));
}
// 2^n for whole n in -126 .. 127.
inline F exp2_whole(F n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}

inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline F load(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline void store(float* p, F x, int n) { _mm256_maskstore_ps(p, first(n), x); }

inline F widen_bf16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
inline __m128i narrow_bf16(F x) {  // to nearest, ties to even; NaN stays a NaN
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  rounded = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
inline __m128i narrow_f16(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m128i load_half(const void* p, int n) {
  uint16_t room[8] = {};
  __builtin_memcpy(room, p, static_cast<size_t>(n) * 2);
  return load_half(room);
}
inline void store_half(void* p, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
inline void store_half(void* p, __m128i x, int n) {
  uint16_t room[8];
  store_half(room, x);
  __builtin_memcpy(p, room, static_cast<size_t>(n) * 2);
}
inline F load(const bf16* p) { return widen_bf16(load_half(p)); }
inline F load(const bf16* p, int n) { return widen_bf16(load_half(p, n)); }
inline F load(const f16* p) { return _mm256_cvtph_ps(load_half(p)); }
inline F load(const f16* p, int n) { return _mm256_cvtph_ps(load_half(p, n)); }
inline void store(bf16* p, F x) { store_half(p, narrow_bf16(x)); }
inline void store(bf16* p, F x, int n) { store_half(p, narrow_bf16(x), n); }
inline void store(f16* p, F x) { store_half(p, narrow_f16(x)); }
inline void store(f16* p, F x, int n) { store_half(p, narrow_f16(x), n); }

// Halves are folded onto each other: lanes i and i + 4, then i and i + 2, ...
inline float sum(F x) {
  __m128 z = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
  z = z + _mm_movehl_ps(z, z);
  return z[0] + z[1];
}
inline float max_lane(F x) {
  __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  z = _mm_max_ps(z, _mm_movehl_ps(z, z));
  return z[0] > z[1] ? z[0] : z[1];
}

// Bit i: a < b in lane i.
inline uint32_t less(F a, F b) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ))); }

// Sums in float64, one per lane.
struct Wide {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
};
inline void add(Wide& sum, F x) {
  sum.low = sum.low + _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  sum.high = sum.high + _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}
inline double sum(const Wide& x) {
  __m256d z = x.low + x.high;
  return (z[0] + z[2]) + (z[1] + z[3]);
}

// columns[c] holds, of each of W rows, the 32-bit word c behind `offset` bytes; c = 0 .. 3.
inline void load_columns(F (&columns)[4], const void* const* rows, int64_t offset) {
  F a[4];
  for (int i = 0; i < 4; ++i) {
    auto quarter = [&](int row) { return _mm_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(rows[row]) + offset)); };
    a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(quarter(i)), quarter(i + 4), 1);
  }
  F ab = _mm256_unpacklo_ps(a[0], a[1]), ab2 = _mm256_unpackhi_ps(a[0], a[1]);
  F cd = _mm256_unpacklo_ps(a[2], a[3]), cd2 = _mm256_unpackhi_ps(a[2], a[3]);
  columns[0] = _mm256_shuffle_ps(ab, cd, 0x44);
  columns[1] = _mm256_shuffle_ps(ab, cd, 0xee);
  columns[2] = _mm256_shuffle_ps(ab2, cd2, 0x44);
  columns[3] = _mm256_shuffle_ps(ab2, cd2, 0xee);
}

// Vectors that hold two halves per lane: the even ones as floats, and the odd ones.
inline F load_pairs(const bf16* p) { return load(reinterpret_cast<const float*>(p)); }
inline F load_pairs(const bf16* p, int n) { return load(reinterpret_cast<const float*>(p), n); }
inline F even_bf16(F x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16)); }
inline F odd_bf16(F x) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline F low_f16(__m256i x) {  // of lanes below 2^16
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
inline F even_f16(F x) { return low_f16(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0xffff))); }
inline F odd_f16(F x) { return low_f16(_mm256_srli_epi32(_mm256_castps_si256(x), 16)); }
// Lanes of both by turns, into the first and then the second.
inline void interleave(F& even, F& odd) {
  F lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
  even = _mm256_permute2f128_ps(lo, hi, 0x20);
  odd = _mm256_permute2f128_ps(lo, hi, 0x31);
}

}  // namespace octavo::OCTAVO_TIER
