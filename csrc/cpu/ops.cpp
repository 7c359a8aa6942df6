#include "ops.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "buffer.h"
#include "pool.h"

namespace octavo {
namespace {

// Elements that make a piece worth handing to another thread (some 5 us).
constexpr int64_t kPiece = 16384;

template <typename Body>
void over_rows(int64_t rows, int64_t row_size, const Body& body) {
  Pool::get().parallel_for(rows, std::max<int64_t>(1, kPiece / std::max<int64_t>(row_size, 1)), body);
}

int64_t stride_of(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
int64_t partial_floats(int64_t rows, int64_t stride) { return rows * (stride + 2); }

Partial partial_at(float* p, int64_t rows, int64_t stride) {
  return {p + rows * stride, p + rows * (stride + 1), p, stride};
}

AttentionScratch& thread_scratch(int64_t head_dim) {
  thread_local Buffer buffer;
  thread_local std::vector<const void*> pointers(2 * (kSplit + kMaxPanel));
  thread_local AttentionScratch scratch;
  int64_t stride = stride_of(head_dim), partial = partial_floats(kMaxTileRows, stride);
  int64_t tile = kMaxTileRows * stride, panel = kMaxPanel * stride, scores = kMaxTileRows * kSplit;
  float* p = buffer.get(tile + 2 * panel + scores + stride + 2 * partial);
  auto take = [&p](int64_t floats) { return std::exchange(p, p + floats); };
  scratch.q = take(tile);
  scratch.k_panel = take(panel);
  scratch.v_rows = take(panel);
  scratch.scores = take(scores);
  scratch.zero_row = take(stride);
  std::fill_n(scratch.zero_row, stride, 0.0f);
  scratch.total = partial_at(take(partial), kMaxTileRows, stride);
  scratch.part = partial_at(take(partial), kMaxTileRows, stride);
  scratch.keys = pointers.data();
  scratch.values = pointers.data() + kSplit + kMaxPanel;
  return scratch;
}

void zero_padding(const AttentionArgs& a) {
  size_t size = a.dtype == DType::f32 ? 4 : 2, row = static_cast<size_t>(a.heads * a.head_dim) * size;
  for (int64_t token = a.query_start[a.num_rows]; token < a.num_tokens; ++token) {
    std::memset(static_cast<char*>(a.out) + static_cast<size_t>(token * a.out_stride) * size, 0, row);
  }
}

// Tiles of the batch; of a row, the longest contexts first, so that no thread is left with one at the end.
void plan_tiles(const AttentionArgs& a, std::vector<Tile>& tiles) {
  tiles.clear();
  int64_t group = a.heads / a.kv_heads;
  int64_t heads = std::min<int64_t>(group, kMaxTileRows), tokens = std::max<int64_t>(1, kMaxTileRows / heads);
  for (int64_t row = 0; row < a.num_rows; ++row) {
    int64_t begin = a.query_start[row], end = a.query_start[row + 1], offset = a.seq_lens[row] - end;
    for (int64_t g = 0; g < a.kv_heads; ++g) {
      for (int64_t head = 0; head < group; head += heads) {
        for (int64_t past = end; past > begin; past -= tokens) {
          int64_t token = std::max(begin, past - tokens), count = past - token, position = token + offset;
          int64_t low = a.window ? std::max<int64_t>(0, position + 1 - a.window) : 0;
          tiles.push_back({row, g, g * group + head, std::min(heads, group - head), token, count, position, low / kSplit,
                           (position + count - 1) / kSplit + 1});
        }
      }
    }
  }
}

// Few tiles with long contexts: every split is a piece of work of its own, and the parts merge afterwards in order.
void attend_by_splits(const Kernels& kernels, const AttentionArgs& a, const std::vector<Tile>& tiles, int64_t splits) {
  struct Work {
    const Tile* tile;
    int64_t split;
    Partial part;
  };
  thread_local Buffer buffer;
  int64_t stride = stride_of(a.head_dim), room = partial_floats(kMaxTileRows, stride);
  std::vector<Work> work;
  float* p = buffer.get(room * splits);
  for (const Tile& tile : tiles) {
    for (int64_t split = tile.split_begin; split < tile.split_end; ++split, p += room) {
      work.push_back({&tile, split, partial_at(p, kMaxTileRows, stride)});
    }
  }
  Pool::get().parallel_for(splits, 1, [&](int64_t begin, int64_t end) {
    AttentionScratch& scratch = thread_scratch(a.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const Work& w = work[static_cast<size_t>(i)];
      AttentionScratch mine = scratch;
      mine.total = w.part;
      kernels.attend(a, *w.tile, w.split, w.split + 1, nullptr, mine);
    }
  });
  Work* w = work.data();
  for (const Tile& tile : tiles) {
    Partial& total = w++->part;
    for (int64_t split = tile.split_begin + 1; split < tile.split_end; ++split) {
      kernels.merge(total, w++->part, tile.tokens * tile.heads, a.head_dim);
    }
    kernels.finish(a, tile, total);
  }
}

}  // namespace

void norm(const Kernels& kernels, const NormArgs& args, int64_t rows) {
  over_rows(rows, args.hidden, [&](int64_t begin, int64_t end) { kernels.norm(args, begin, end); });
}

void rope(const Kernels& kernels, const RopeArgs& args, bool interleaved, int64_t tokens) {
  over_rows(tokens, (args.q_heads + args.k_heads) * args.rotary,
            [&](int64_t begin, int64_t end) { kernels.rope(args, interleaved, begin, end); });
}

void write_kv(const Kernels& kernels, const WriteKVArgs& args, int64_t tokens) {
  over_rows(tokens, 2 * args.kv_heads * args.head_dim,
            [&](int64_t begin, int64_t end) { kernels.write_kv(args, begin, end); });
}

void gated(void (*kernel)(const GatedArgs&, int64_t, int64_t), const GatedArgs& args, int64_t tokens) {
  over_rows(tokens, 4 * args.size, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

void scale(const Kernels& kernels, const ScaleArgs& args, int64_t tokens) {
  over_rows(tokens, args.size, [&](int64_t begin, int64_t end) { kernels.scale(args, begin, end); });
}

void paged_attention(const Kernels& kernels, const AttentionArgs& a) {
  zero_padding(a);
  thread_local std::vector<Tile> tiles;
  plan_tiles(a, tiles);
  Pool& pool = Pool::get();
  int64_t count = static_cast<int64_t>(tiles.size()), splits = 0;
  for (const Tile& tile : tiles) splits += tile.split_end - tile.split_begin;
  if (pool.size() > 1 && count < 4 * pool.size() && splits > count) return attend_by_splits(kernels, a, tiles, splits);
  const Tile* planned = tiles.data();  // other threads have their own `tiles`
  int64_t grain = std::max<int64_t>(1, count / (16 * pool.size()));
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    AttentionScratch& scratch = thread_scratch(a.head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = planned[i];
      const Tile* next = i + 1 < end ? &tile + 1 : nullptr;
      kernels.attend(a, tile, tile.split_begin, tile.split_end, next, scratch);
      kernels.finish(a, tile, scratch.total);
    }
  });
}

float read(const Kernels& kernels, const float* x, int64_t count) {
  std::atomic<float> total{0};
  Pool::get().parallel_for(count, int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    total.fetch_add(kernels.read(x, begin, end), std::memory_order_relaxed);
  });
  return total;
}

double multiply_add(const Kernels& kernels, int64_t steps) {
  constexpr int64_t kPieces = 16;  // per thread, so that one that begins late leaves its share to the others
  Pool& pool = Pool::get();
  int64_t count = kPieces * pool.size(), share = steps / kPieces;
  std::atomic<float> needed{0};
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    needed.fetch_add(kernels.multiply_add((end - begin) * share), std::memory_order_relaxed);
  });
  return 2.0 * kFmaChains * static_cast<double>(kernels.width * count * share);
}

}  // namespace octavo
