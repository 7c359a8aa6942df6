// The ops: one tier's kernels, spread over the pool. Every row's bits are the kernel's; nothing here adds or rounds.
#pragma once

#include "kernels.h"

namespace octavo {

void norm(const Kernels& kernels, const NormArgs& args, int64_t rows);
void rope(const Kernels& kernels, const RopeArgs& args, bool interleaved, int64_t tokens);
void write_kv(const Kernels& kernels, const WriteKVArgs& args, int64_t tokens);
void gated(void (*kernel)(const GatedArgs&, int64_t, int64_t), const GatedArgs& args, int64_t tokens);
void scale(const Kernels& kernels, const ScaleArgs& args, int64_t tokens);
void paged_attention(const Kernels& kernels, const AttentionArgs& args);

// Ceilings of the machine, all threads of the pool at work. The sum of x [count]; the flops of `steps` per thread.
float read(const Kernels& kernels, const float* x, int64_t count);
double multiply_add(const Kernels& kernels, int64_t steps);

}  // namespace octavo
