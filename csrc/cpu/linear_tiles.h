// Tokens times a packed bf16 matrix with AMX tiles. A panel of weights is two B tiles side by side; tokens are A tiles as
// they lie, or packed. Every output is one chain of tiles per shard of K, whatever the blocking: the rules of linear.h.
#pragma once

#include "sums.h"

namespace octavo::OCTAVO_TIER {

// Tokens of a block are two A tiles of about as many rows, so that one configuration serves a whole call: blocks are of one
// size, and the last one may overlap the one before, which costs work but no bits.
template <typename Tiles>
class TileLinear {
 public:
  TileLinear(const LinearArgs& a, Room room) : a_(a), room_(room) {}

  void run(int64_t begin, int64_t end) {
    int64_t most = outer_ ? kOuterTokens : kChunkTokens, chunks = (a_.tokens + most - 1) / most;
    for (int64_t i = 0; i < chunks; ++i) {
      begin_chunk(a_.tokens * i / chunks, a_.tokens * (i + 1) / chunks, begin, end);
      tokens_ <= 16 ? run_few(begin, end) : run_many(begin, end);
    }
    tiles_.release();
  }

 private:
  static constexpr int64_t kChunkTokens = 384, kOuterTokens = 256, kOuterSteps = 512;
  static constexpr int64_t kPackRows = 4096;    // outputs from which packing tokens pays
  static constexpr int64_t kAheadTiles = 4;     // 8 KB of a panel between a prefetch and its use
  static constexpr int64_t kStepBytes = kPanelRows * 4, kBlock = 32;
  static constexpr int64_t kPanelTileBytes = kTileSteps * kStepBytes;

  const LinearArgs& a_;
  Room room_;
  Tiles tiles_;
  int64_t steps_ = a_.weight.steps;
  bool outer_ = steps_ >= 4096 && a_.tokens >= 128;  // K as the outer loop: tokens must stay in the L2 cache
  bool pack_ = steps_ * 2 != a_.weight.columns || (a_.weight.rows >= kPackRows && a_.tokens > 16);

  // The chunk: blocks of `rows_` tokens, the first `low_` of them in one A tile.
  int64_t token_ = 0, tokens_ = 0, blocks_ = 0, rows_ = 0, low_ = 0;
  const char* x_ = nullptr;  // as it lies, or packed: [block][step / 16][tile][16 rows][32 columns]
  int64_t x_stride_ = 0;     // bytes, as it lies
  float* waiting_ = nullptr;
  int64_t slot_size_ = 0;

  int64_t block_token(int64_t block) const { return block * rows_ + rows_ <= tokens_ ? block * rows_ : tokens_ - rows_; }

  void begin_chunk(int64_t first, int64_t last, int64_t begin, int64_t end) {
    token_ = first;
    tokens_ = last - first;
    blocks_ = (tokens_ + kBlock - 1) / kBlock;
    rows_ = (tokens_ + blocks_ - 1) / blocks_;
    low_ = tokens_ <= 16 ? rows_ : (rows_ + 1) / 2;
    int64_t panel_sums = blocks_ * kBlock * 2 * kPanelRows;
    slot_size_ = outer_ ? (end - begin) * panel_sums : panel_sums;
    int64_t sums = slots_of(a_.shards) * slot_size_;
    waiting_ = room_(sums + (pack_ ? blocks_ * kBlock * steps_ : 0));
    const uint16_t* from = static_cast<const uint16_t*>(a_.x) + token_ * a_.x_stride;
    x_ = reinterpret_cast<const char*>(from);
    x_stride_ = a_.x_stride * 2;
    if (pack_) pack(from, reinterpret_cast<uint16_t*>(waiting_ + sums));
    uint8_t low = static_cast<uint8_t>(low_), high = static_cast<uint8_t>(rows_ - low_);
    tokens_ <= 16 ? tiles_.configure({low, low, low, low, low, 16, 16, 16})
                  : tiles_.configure({low, low, high, high, low, high, 16, 16});
  }

  void pack(const uint16_t* from, uint16_t* to) {
    x_ = reinterpret_cast<const char*>(to);
    for (int64_t block = 0; block < blocks_; ++block) {
      for (int64_t r = 0; r < rows_; ++r) {
        const uint16_t* row = from + (block_token(block) + r) * a_.x_stride;
        uint16_t* tile = to + block * kBlock * steps_ * 2 + (r < low_ ? r : 16 + r - low_) * 32;
        for (int64_t k = 0; k < a_.weight.columns; k += 32, tile += kBlock * 32) {
          int64_t left = a_.weight.columns - k;
          if (left < 32) __builtin_memset(tile, 0, 64);
          __builtin_memcpy(tile, row + k, static_cast<uint64_t>(left < 32 ? left * 2 : 64));
        }
      }
    }
  }

  // A tile of the block's first or other rows, and where its next 32 columns are.
  struct Walk {
    const char* p;
    int64_t stride, step;
  };
  Walk tokens_of(int64_t block, bool high, int64_t begin) const {
    if (pack_) return {x_ + block * kBlock * steps_ * 4 + begin / kTileSteps * 2048 + (high ? 1024 : 0), 64, 2048};
    return {x_ + (block_token(block) + (high ? low_ : 0)) * x_stride_ + begin * 4, x_stride_, 64};
  }

  const char* panel_at(int64_t panel) const {
    return static_cast<const char*>(a_.weight.data) + panel * steps_ * kStepBytes;
  }

  // At most 16 tokens: an A tile, and two panels of weights, which stream through once.
  void run_few(int64_t begin, int64_t end) {
    auto at = [&](int64_t panel) { return panel_at(panel < end ? panel : end - 1); };
    for (int64_t panel = begin; panel < end; panel += 2) {
      int panels = panel + 1 < end ? 2 : 1;
      const char *w[2] = {at(panel), at(panel + 1)}, *next[2] = {at(panel + 2), at(panel + 3)};
      for_segments(steps_, a_.shards, steps_, [&](const Segment& segment) {
        multiply_few(segment, w, next, panels);
        leave(segment, waiting_, 0, panel * kPanelRows, 2 * panels);
      });
    }
  }

  void multiply_few(const Segment& segment, const char* const (&w)[2], const char* const (&next)[2], int panels) {
    zero_all();
    Walk x = tokens_of(0, false, segment.begin);
    for (int64_t step = segment.begin; step < segment.begin + segment.count; step += kTileSteps, x.p += x.step) {
      int64_t ahead = step + kAheadTiles * kTileSteps;
      for (int i = 0; i < panels; ++i) {
        prefetch(ahead < steps_ ? w[i] + ahead * kStepBytes : next[i] + (ahead - steps_) * kStepBytes, kPanelTileBytes);
      }
      const char *first = w[0] + step * kStepBytes, *second = w[1] + step * kStepBytes;
      tiles_.template load<4>(x.p, x.stride);
      tiles_.template load<5>(first, kStepBytes);
      tiles_.template load<6>(first + 64, kStepBytes);
      if (panels == 2) tiles_.template load<7>(second, kStepBytes);
      tiles_.template dot<0, 4, 5>();
      tiles_.template dot<1, 4, 6>();
      if (panels == 1) continue;
      tiles_.template dot<2, 4, 7>();
      tiles_.template load<5>(second + 64, kStepBytes);
      tiles_.template dot<3, 4, 5>();
    }
    int64_t stride = panels * kPanelRows * 4;
    char* sums = reinterpret_cast<char*>(waiting_);
    tiles_.template store<0>(sums, stride);
    tiles_.template store<1>(sums + 64, stride);
    if (panels == 1) return;
    tiles_.template store<2>(sums + 128, stride);
    tiles_.template store<3>(sums + 192, stride);
  }

  // Two A tiles times the two halves of a panel.
  void run_many(int64_t begin, int64_t end) {
    constexpr int64_t kBlockSums = kBlock * kPanelRows;
    auto run_panel = [&](const Segment& segment, int64_t panel, float* sums) {
      for (int64_t block = 0; block < blocks_; ++block, sums += kBlockSums) {
        multiply_many(segment, panel_at(panel), panel_at(panel + 1 < end ? panel + 1 : panel), block, sums);
        leave(segment, sums, block_token(block), panel * kPanelRows, 2);
      }
    };
    if (outer_) {
      for_segments(steps_, a_.shards, kOuterSteps, [&](const Segment& segment) {
        for (int64_t i = begin; i < end; ++i) run_panel(segment, i, waiting_ + (i - begin) * blocks_ * kBlockSums);
      });
    } else {
      for (int64_t i = begin; i < end; ++i) {
        for_segments(steps_, a_.shards, steps_, [&](const Segment& segment) { run_panel(segment, i, waiting_); });
      }
    }
  }

  void multiply_many(const Segment& segment, const char* w, const char* next, int64_t block, float* sums) {
    char* to = reinterpret_cast<char*>(sums);
    constexpr int64_t kStride = kPanelRows * 4;
    char* to_high = to + low_ * kStride;
    if (segment.starts) {
      zero_all();
    } else {
      tiles_.template load<0>(to, kStride);
      tiles_.template load<1>(to + 64, kStride);
      tiles_.template load<2>(to_high, kStride);
      tiles_.template load<3>(to_high + 64, kStride);
    }
    Walk low = tokens_of(block, false, segment.begin), high = tokens_of(block, true, segment.begin);
    // Of the 32 lines of a tile of the next panel every block fetches its part: DRAM must not idle in any.
    constexpr int64_t kLines = kPanelTileBytes / 64;
    int64_t line = kLines * block / blocks_, last_line = kLines * (block + 1) / blocks_;
    for (int64_t step = segment.begin; step < segment.begin + segment.count; step += kTileSteps) {
      int64_t at = step * kStepBytes;
      for (int64_t i = line; i < last_line; ++i) prefetch_line_l2(next + at + i * 64);
      tiles_.template load<4>(low.p, low.stride);
      tiles_.template load<5>(high.p, high.stride);
      tiles_.template load<6>(w + at, kStepBytes);
      tiles_.template load<7>(w + at + 64, kStepBytes);
      tiles_.template dot<0, 4, 6>();
      tiles_.template dot<1, 4, 7>();
      tiles_.template dot<2, 5, 6>();
      tiles_.template dot<3, 5, 7>();
      low.p += low.step;
      high.p += high.step;
    }
    tiles_.template store<0>(to, kStride);
    tiles_.template store<1>(to + 64, kStride);
    tiles_.template store<2>(to_high, kStride);
    tiles_.template store<3>(to_high + 64, kStride);
  }

  void zero_all() {
    tiles_.template zero<0>();
    tiles_.template zero<1>();
    tiles_.template zero<2>();
    tiles_.template zero<3>();
  }

  // The sums of a block over a segment, `halves` times 16 per token, are in memory.
  void leave(const Segment& segment, float* sums, int64_t first, int64_t column, int halves) const {
    if (!segment.ends) return;
    if (a_.shards > 1) add_shard(sums, slot_size_, rows_ * halves * 16, segment.shard, a_.shards);
    if (segment.shard + 1 == a_.shards) {
      finish_sums<bf16>(a_, sums, token_ + first, rows_, column, halves * (16 / W));
    }
  }
};

}  // namespace octavo::OCTAVO_TIER
