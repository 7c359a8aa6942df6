// How a vector of weights, or of keys, enters sums: `kDepth` columns of each row at a time, multiplied by as many values
// of a token. `Factor<float>` takes what was made a float; `Factor<bf16>` takes pairs, in one instruction where there is.
#pragma once

#include "vec.h"

namespace octavo::OCTAVO_TIER {

#if defined(__AVX512BF16__)
constexpr bool kMultipliesPairs = true;
#else
constexpr bool kMultipliesPairs = false;
#endif

template <typename T>
struct Factor {
  using Token = float;
  using Values = F;
  using Weights = F;
  static constexpr int kDepth = 1, kRows = kTileRows;
  static Values values(const float* x) { return set(x[0]); }
  static Weights weights(const T* p) { return load(p); }
  static Weights of(F words) { return words; }
  static F add(F sum, Values x, Weights w) { return fma(x, w, sum); }
};
template <>
struct Factor<bf16> {
  static constexpr int kDepth = 2;
#if defined(__AVX512BF16__)
  static constexpr int kRows = kTileRows;
  using Token = bf16;
  using Values = __m512bh;
  using Weights = __m512bh;
  static Values values(const bf16* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    __m512i all = _mm512_set1_epi32(pair);
    asm("" : "+v"(all));  // in a register: with the broadcast as its operand the product takes three times as long
    return (__m512bh)all;
  }
  static Weights weights(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static Weights of(F words) { return (__m512bh)words; }
  static F add(F sum, Values x, Weights w) { return _mm512_dpbf16_ps(sum, x, w); }
#else
  static constexpr int kRows = kPairRows;
  using Token = float;
  struct Values {
    F even, odd;
  };
  using Weights = Values;
  static Values values(const float* x) { return {set(x[0]), set(x[1])}; }
  static Weights weights(const bf16* p) { return of(load_pairs(p)); }
  static Weights of(F words) { return {even_bf16(words), odd_bf16(words)}; }
  static F add(F sum, Values x, Weights w) { return fma(x.odd, w.odd, fma(x.even, w.even, sum)); }
#endif
};

}  // namespace octavo::OCTAVO_TIER
