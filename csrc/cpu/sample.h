// Passes over a row of logits for `sample` and `rank_tokens` (octavo/ops). Every tier gives the same bits here, and the
// references too: products and sums are never fused, and masses are whole numbers, whose sum has no order.
#pragma once

#include "token.h"
#include "vec.h"

namespace octavo::OCTAVO_TIER {

// Mass of tokens at x <= 0: e^x in units of 2^-40, a whole number; 0 from -29 down. See `octavo.ops.mass`, which takes
// the same steps (range reduction and polynomial of the Cephes library).
inline F mass_at(F x) {
  F y = max(x, set(-29.0f));
  F n = round(y * set(1.44269504088896341f));
  F r = (y - n * set(0.693359375f)) - n * set(-2.12194440e-4f);
  F p = set(1.9875691500e-4f) * r + set(1.3981999507e-3f);
  p = p * r + set(8.3334519073e-3f);
  p = p * r + set(4.1665795894e-2f);
  p = p * r + set(1.6666665459e-1f);
  p = p * r + set(5.0000001201e-1f);
  F m = (p * (r * r) + (r + set(1.0f))) * exp2_whole(n + set(40.0f));
  F unit = set(8388608.0f);  // 2^23: at and above it floats are whole, below it adding it rounds them
  return select_less(m, unit, (m + unit) - unit, m);
}

// body(k, Full or Part) for the vectors of a block; the last block may be short.
template <typename Body>
inline void for_block(const LogitsRow& row, int64_t block, Body body) {
  const int64_t begin = block * kBlock, size = row.vocab - begin;
  if (size >= kBlock) {
    for (int64_t k = 0; k < kBlock; k += W) body(begin + k, Full{});
  } else {
    for_vectors(size, [&](int64_t k, auto lanes) { body(begin + k, lanes); });
  }
}
inline F keep(F x, Full, F) { return x; }
inline F keep(F x, Part part, F other) { return keep(x, 0, part.n, other); }
inline uint32_t mask(Full) { return (1u << W) - 1; }
inline uint32_t mask(Part part) { return (1u << part.n) - 1; }

inline bool find_peaks(const LogitsRow& row, int64_t begin, int64_t end) {
  const F infinity = set(__builtin_inff());
  F bad = set(0.0f);
  for (int64_t block = begin; block < end; ++block) {
    F peak = set(-__builtin_inff());
    for_block(row, block, [&](int64_t k, auto lanes) {
      F x = keep(load(row.logits + k, lanes), lanes, set(-__builtin_inff()));
      bad = select_less(x, infinity, bad, infinity);
      peak = max(x, peak);
    });
    row.peaks[block] = max_lane(peak);
  }
  return max_lane(bad) == 0.0f;
}

inline F distance(const LogitsRow& row, F x) { return x / set(row.temperature) - set(row.top); }

inline int64_t mass(const LogitsRow& row, int64_t begin, int64_t end) {
  constexpr int64_t kExact = 64;  // blocks whose sum is exact in float64: 64 * 64 * 2^40 = 2^52
  int64_t total = 0;
  for (; begin < end; begin += kExact) {
    Wide part{};
    for (int64_t block = begin; block < end && block < begin + kExact; ++block) {
      if (row.peaks[block] / row.temperature - row.top < -29.0f) continue;
      for_block(row, block, [&](int64_t k, auto lanes) {
        add(part, keep(mass_at(distance(row, load(row.logits + k, lanes))), lanes, set(0.0f)));
      });
    }
    total += static_cast<int64_t>(sum(part));
  }
  return total;
}

inline Token* collect(const LogitsRow& row, float low, float high, Token* out) {
  const int64_t blocks = (row.vocab + kBlock - 1) / kBlock;
  // Smaller logits are below `low`, whatever was rounded; which saves nearly all divisions.
  const double margin = (__builtin_fabs(low) + __builtin_fabs(row.top)) * 0x1p-20;
  const float reach = static_cast<float>((double{low} + row.top - margin) * row.temperature);
  for (int64_t block = 0; block < blocks; ++block) {
    if (row.peaks[block] < reach) continue;
    for_block(row, block, [&](int64_t k, auto lanes) {
      F logits = load(row.logits + k, lanes);
      if (!(~less(logits, set(reach)) & mask(lanes))) return;
      F x = distance(row, logits);
      uint32_t found = less(x, set(high)) & ~less(x, set(low)) & mask(lanes);
      if (found == 0) return;
      float masses[W];
      store(masses, mass_at(x));
      for (; found != 0; found &= found - 1) {
        int lane = __builtin_ctz(found);
        *out++ = {token_key(row.logits[k + lane], k + lane), static_cast<int64_t>(masses[lane])};
      }
    });
  }
  return out;
}

}  // namespace octavo::OCTAVO_TIER
