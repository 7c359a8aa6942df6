// Vectors of 16 floats in AVX-512 (F, BW, DQ, VL) registers.
#pragma once

#include <immintrin.h>

#include "kernels.h"

namespace octavo::OCTAVO_TIER {

using F = __m512;
constexpr int W = 16;
constexpr int kTileRows = 6;  // 6 x 4 accumulators, 4 loads and 1 broadcast fill 29 of 32 registers
constexpr int kTileVecs = 4;
constexpr int kPairRows = 5;  // rows of a tile whose loads fill two registers each

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

inline F set(float x) { return _mm512_set1_ps(x); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F abs(F x) { return _mm512_abs_ps(x); }
inline F select_less(F a, F b, F yes, F no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes); }
// x in lanes begin .. end, `other` elsewhere.
inline F keep(F x, int begin, int end, F other) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(first(end) & ~first(begin)), other, x);
}
// 2^n for whole n in -126 .. 127.
inline F exp2_whole(F n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline F load(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline void store(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }

inline F widen_bf16(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
inline __m256i narrow_bf16(F x) {  // to nearest, ties to even; NaN stays a NaN
  __m512i bits = _mm512_castps_si512(x);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
inline __m256i narrow_f16(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m256i load_half(const void* p, int n) { return _mm256_maskz_loadu_epi16(first(n), p); }
inline F load(const bf16* p) { return widen_bf16(load_half(p)); }
inline F load(const bf16* p, int n) { return widen_bf16(load_half(p, n)); }
inline F load(const f16* p) { return _mm512_cvtph_ps(load_half(p)); }
inline F load(const f16* p, int n) { return _mm512_cvtph_ps(load_half(p, n)); }
inline void store(bf16* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x)); }
inline void store(bf16* p, F x, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow_bf16(x)); }
inline void store(f16* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_f16(x)); }
inline void store(f16* p, F x, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow_f16(x)); }

// Halves are folded onto each other: lanes i and i + 8, then i and i + 4, ...
inline float sum(F x) {
  __m256 y = _mm512_castps512_ps256(x) + _mm512_extractf32x8_ps(x, 1);
  __m128 z = _mm256_castps256_ps128(y) + _mm256_extractf128_ps(y, 1);
  z = z + _mm_movehl_ps(z, z);
  return z[0] + z[1];
}
inline float max_lane(F x) { return _mm512_reduce_max_ps(x); }

// Bit i: a < b in lane i.
inline uint32_t less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

// Sums in float64, one per lane.
struct Wide {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
};
inline void add(Wide& sum, F x) {
  sum.low = sum.low + _mm512_cvtps_pd(_mm512_castps512_ps256(x));
  sum.high = sum.high + _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}
inline double sum(const Wide& x) { return _mm512_reduce_add_pd(x.low + x.high); }

// columns[c] holds, of each of W rows, the 32-bit word c behind `offset` bytes; c = 0 .. 3.
inline void load_columns(F (&columns)[4], const void* const* rows, int64_t offset) {
  F a[4];
  for (int i = 0; i < 4; ++i) {
    auto quarter = [&](int row) { return _mm_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(rows[row]) + offset)); };
    a[i] = _mm512_castps128_ps512(quarter(i));
    a[i] = _mm512_insertf32x4(a[i], quarter(i + 4), 1);
    a[i] = _mm512_insertf32x4(a[i], quarter(i + 8), 2);
    a[i] = _mm512_insertf32x4(a[i], quarter(i + 12), 3);
  }
  F ab = _mm512_unpacklo_ps(a[0], a[1]), ab2 = _mm512_unpackhi_ps(a[0], a[1]);
  F cd = _mm512_unpacklo_ps(a[2], a[3]), cd2 = _mm512_unpackhi_ps(a[2], a[3]);
  columns[0] = _mm512_shuffle_ps(ab, cd, 0x44);
  columns[1] = _mm512_shuffle_ps(ab, cd, 0xee);
  columns[2] = _mm512_shuffle_ps(ab2, cd2, 0x44);
  columns[3] = _mm512_shuffle_ps(ab2, cd2, 0xee);
}

// Vectors that hold two halves per lane: the even ones as floats, and the odd ones.
inline F load_pairs(const bf16* p) { return _mm512_loadu_ps(p); }
inline F load_pairs(const bf16* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline F even_bf16(F x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16)); }
inline F odd_bf16(F x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline F even_f16(F x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_castps_si512(x))); }
inline F odd_f16(F x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16))); }
// Lanes of both by turns, into the first and then the second.
inline void interleave(F& even, F& odd) {
  __m512i lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  F first_half = _mm512_permutex2var_ps(even, lo, odd);
  odd = _mm512_permutex2var_ps(even, _mm512_add_epi32(lo, _mm512_set1_epi32(8)), odd);
  even = first_half;
}

}  // namespace octavo::OCTAVO_TIER
