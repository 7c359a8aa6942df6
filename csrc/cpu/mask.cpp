// The op `mask_logits`. Most words of a grammar's mask allow all of their tokens, or none: those are not looked into.
#include <algorithm>
#include <limits>

#include "pool.h"
#include "sampling.h"

namespace octavo {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

void mask_row(float* logits, const uint32_t* bits, int64_t vocab) {
  for (int64_t first = 0; first < vocab; first += 32, ++bits) {
    const uint32_t word = *bits;
    if (word == ~uint32_t{0}) continue;
    const int64_t count = std::min<int64_t>(32, vocab - first);
    float* x = logits + first;
    if (word == 0) {
      std::fill_n(x, count, kExcluded);
    } else {
      for (int64_t i = 0; i < count; ++i) x[i] = word >> i & 1 ? x[i] : kExcluded;
    }
  }
}

}  // namespace

void mask_logits(const MaskArgs& a) {
  const int64_t words = (a.vocab + 31) / 32;
  Pool::get().parallel_for(a.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) mask_row(a.logits + a.index[i] * a.stride, a.bits + i * words, a.vocab);
  });
}

}  // namespace octavo
