// The ops on logits: `sample`, `rank_tokens` and `mask_logits`. Rows are shared out over the pool.
#pragma once

#include "kernels.h"

namespace octavo {

// See octavo.ops.sample.
struct SampleArgs {
  int64_t* out;         // [rows]
  float* processed;     // [rows, vocab] or null
  const float* logits;  // [rows, vocab]
  int64_t stride, rows, vocab;
  const float* temperature;  // [rows] each
  const int64_t* top_k;
  const double *top_p, *min_p;
  const int64_t *seed, *sample_index, *position;
};
void sample(const Kernels& kernels, const SampleArgs& args);

// See octavo.ops.rank_tokens.
struct RankArgs {
  int64_t* out_ids;     // [rows, 1 + num_top]
  float* out_values;    // [rows, 1 + num_top]
  int64_t* out_ranks;   // [rows]
  double* out_log_sums; // [rows]
  const float* logits;  // [rows, vocab]
  int64_t stride, rows, vocab;
  const int64_t* token_ids;  // [rows]
  int64_t num_top;
  bool normalized;
};
void rank_tokens(const Kernels& kernels, const RankArgs& args);

// See octavo.ops.mask_logits. Moves no number, so there is one for all tiers.
struct MaskArgs {
  float* logits;  // [any, vocab]
  int64_t stride, rows, vocab;
  const int64_t* index;  // [rows]
  const uint32_t* bits;  // [rows, (vocab + 31) / 32]
};
void mask_logits(const MaskArgs& args);

}  // namespace octavo
