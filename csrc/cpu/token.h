// The order of tokens: the most likely first, the lowest id first on ties.
#pragma once

#include "kernels.h"

namespace octavo {

// Static: a copy per tier, see kernels.h.
static inline uint64_t token_key(float logit, int64_t token_id) {
  uint32_t bits = __builtin_bit_cast(uint32_t, logit + 0.0f);  // -0 is no smaller than 0
  uint32_t descending = bits >> 31 ? bits : bits ^ 0x7fffffffu;
  return static_cast<uint64_t>(descending) << 32 | static_cast<uint64_t>(token_id);
}

}  // namespace octavo
