// The generator of octavo/ops/random.py, whose docstring has its meaning: the same words and the same float64 bits. For
// sources that are compiled once, without fused multiply-add.
#pragma once

#include <cstdint>

namespace octavo {

struct DrawKey {
  int64_t seed;
  uint32_t sample_index, position;
};

enum class Domain : uint32_t { block = 0, token = 1 };

struct Words {
  uint32_t word[4];
};

// Philox 4x32-10.
inline Words draw_words(const DrawKey& key, int64_t index, Domain domain) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = key.position, c2 = key.sample_index, c3 = static_cast<uint32_t>(domain);
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(static_cast<uint64_t>(key.seed) >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
  }
  return {{c0, c1, c2, c3}};
}

// ln of a positive normal number to 1e-10.
inline double natural_log(double x) {
  constexpr int64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  int64_t bits = __builtin_bit_cast(int64_t, x) - kSqrtHalf;
  double mantissa = __builtin_bit_cast(double, (bits & ((int64_t{1} << 52) - 1)) + kSqrtHalf);
  double s = (mantissa - 1.0) / (mantissa + 1.0), square = s * s, series = 1.0 / 13;
  for (int odd = 11; odd > 0; odd -= 2) series = series * square + 1.0 / odd;
  return static_cast<double>(bits >> 52) * 0.6931471805599453 + series * s * 2.0;
}

// Exp(1) made of a word.
inline double exponential(uint32_t word) { return -natural_log((static_cast<double>(word) + 0.5) * 0x1p-32); }

}  // namespace octavo
