// What becomes of the sums of a tile: they wait in memory between two blocks of columns, add up over the shards of K in
// a balanced tree, and leave through the epilogue. Shared by all product kernels of a tier.
#pragma once

#include "vec.h"

namespace octavo::OCTAVO_TIER {

// Consecutive columns of K for the tokens of a tile. Each shard is a chain of additions of its own; blocks only cut it.
struct Segment {
  int64_t begin, count;  // steps
  int64_t shard;
  bool starts, ends;  // its shard
};

// fn(Segment) for all steps in order; no segment is longer than `block` or crosses into the next shard.
template <typename Fn>
inline void for_segments(int64_t steps, int64_t shards, int64_t block, Fn fn) {
  int64_t shard_steps = steps / shards;
  for (int64_t shard = 0; shard < shards; ++shard) {
    int64_t first = shard * shard_steps, last = first + shard_steps;
    for (int64_t begin = first; begin < last; begin += block) {
      int64_t count = last - begin < block ? last - begin : block;
      fn(Segment{begin, count, shard, begin == first, begin + count == last});
    }
  }
}

// Where sums wait: [slots][size]. Slot 0 is the shard at work; slot i the sum of 2^(i - 1) shards, until as many follow.
inline int64_t slots_of(int64_t shards) { return shards == 1 ? 1 : 2 + (shards > 2) + (shards > 4); }

// A shard has ended: add `count` sums of slot 0 to what waits for them. After the last shard slot 0 holds the total.
inline void add_shard(float* sums, int64_t slot_size, int64_t count, int64_t shard, int64_t shards) {
  float* slot = sums + slot_size;
  for (; shard & 1; shard >>= 1, slot += slot_size, shards >>= 1) {
    for (int64_t k = 0; k < count; k += W) store(sums + k, load(slot + k) + load(sums + k));
  }
  if (shards == 1) return;
  for (int64_t k = 0; k < count; k += W) store(slot + k, load(sums + k));
}

// Sums [rows, vecs * W] of tokens from `token` on and outputs from `column` on become outputs.
template <typename T>
__attribute__((noinline)) void finish_sums(const LinearArgs& a, const float* sums, int64_t token, int64_t rows,
                                           int64_t column, int vecs) {
  const T* bias = static_cast<const T*>(a.bias);
  for (int64_t r = 0; r < rows; ++r, sums += vecs * W) {
    int64_t at = (token + r) * a.out_stride;
    for (int v = 0; v < vecs; ++v) {
      int64_t row = column + v * W, left = a.weight.rows - row;
      auto put = [&](auto lanes) {
        F y = load(sums + v * W);
        if (bias) y = y + load(bias + row, lanes);
        a.float_out ? store(static_cast<float*>(a.out) + at + row, y, lanes) : store(static_cast<T*>(a.out) + at + row, y, lanes);
      };
      if (left >= W) {
        put(Full{});
      } else if (left > 0) {
        put(Part{static_cast<int>(left)});
      }
    }
  }
}

}  // namespace octavo::OCTAVO_TIER
