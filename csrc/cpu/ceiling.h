// What this machine can do at most in one tier: loads that are only added up, and multiply-adds that never leave the
// registers. No model runs these; `octavo bench kernels` sets what it measures against them.
#pragma once

#include "vec.h"

namespace octavo::OCTAVO_TIER {

// Sum of x[begin .. end).
inline float read(const float* x, int64_t begin, int64_t end) {
  constexpr int kChains = 8;
  F chain[kChains];
  for (F& c : chain) c = set(0);
  int64_t k = begin;
  for (; k + kChains * W <= end; k += kChains * W) {
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] + load(x + k + i * W);
  }
  for (int i = 1; i < kChains; ++i) chain[0] = chain[0] + chain[i];
  float total = sum(chain[0]);
  for (; k < end; ++k) total += x[k];
  return total;
}

// kFmaChains vectors of multiply-adds per step; the sum makes the result needed.
inline float multiply_add(int64_t steps) {
  F chain[kFmaChains], scale = set(0.5f), term = set(0.25f);
  for (int i = 0; i < kFmaChains; ++i) chain[i] = set(static_cast<float>(i));
  for (int64_t step = 0; step < steps; ++step) {
    for (F& c : chain) c = fma(c, scale, term);
  }
  for (int i = 1; i < kFmaChains; ++i) chain[0] = chain[0] + chain[i];
  return sum(chain[0]);
}

}  // namespace octavo::OCTAVO_TIER
