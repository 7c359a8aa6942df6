// How a call of paged attention is cut into tiles and spread over the pool. Every row's bits are the kernel's.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "buffer.h"
#include "ops.h"
#include "pool.h"

namespace octavo {
namespace {

int64_t stride_of(int64_t dims) { return (dims + 31) / 32 * 32; }
int64_t partial_floats(int64_t stride) { return kMaxTileRows * (stride + 2); }

Partial partial_at(float* p, int64_t stride, int64_t row = 0) {
  return {p + kMaxTileRows * stride + row, p + kMaxTileRows * (stride + 1) + row, p + row * stride, stride};
}

AttentionScratch& thread_scratch(const AttentionArgs& a) {
  thread_local Buffer buffer;
  thread_local std::vector<const void*> pointers(3 * kSplit + kMaxPanel);
  thread_local AttentionScratch scratch;
  int64_t q_stride = stride_of(a.head_dim), stride = stride_of(a.value_dim), partial = partial_floats(stride);
  int64_t tile = kMaxTileRows * q_stride, scores = kMaxTileRows * kSplit;
  float* p = buffer.get(tile + kMaxPanel * (q_stride + stride) + scores + q_stride + 2 * partial);
  auto take = [&p](int64_t floats) { return std::exchange(p, p + floats); };
  scratch.q = take(tile);
  scratch.q_stride = q_stride;
  scratch.k_panel = take(kMaxPanel * q_stride);
  scratch.v_rows = take(kMaxPanel * stride);
  scratch.scores = take(scores);
  scratch.zero_row = take(q_stride);
  std::fill_n(scratch.zero_row, q_stride, 0.0f);
  scratch.total = partial_at(take(partial), stride);
  scratch.part = partial_at(take(partial), stride);
  scratch.rows = pointers.data();
  return scratch;
}

void zero_padding(const AttentionArgs& a) {
  size_t size = a.dtype == DType::f32 ? 4 : 2, row = static_cast<size_t>(a.heads * a.value_dim) * size;
  for (int64_t token = a.query_start[a.num_rows]; token < a.num_tokens; ++token) {
    std::memset(static_cast<char*>(a.out) + static_cast<size_t>(token * a.out_stride) * size, 0, row);
  }
}

// How the heads of a KV head, and tokens, are cut into tiles.
struct Cut {
  int64_t group, heads, tokens;
  explicit Cut(const AttentionArgs& a)
      : group(a.heads / a.kv_heads), heads(std::min<int64_t>(group, kMaxTileRows)), tokens(kMaxTileRows / heads) {}
};

// Requests with one token each whose first pages are the same, in so many whole splits before the split of any token.
struct Sharing {
  std::vector<int32_t> rows;    // of all groups, one after the other
  std::vector<int32_t> tokens;  // theirs
  struct Group {
    int64_t begin, end, splits;
  };
  std::vector<Group> groups;

  // A reading of pages that serves several rows must pay for holding their sums until the rest of each is done.
  void find(const AttentionArgs& a) {
    rows.clear();
    tokens.clear();
    groups.clear();
    if (a.window || a.alibi_slopes || Cut(a).tokens < 2) return;  // a row's place would matter
    auto splits = [&](int32_t row) { return (a.seq_lens[row] - 1) / kSplit; };
    auto columns = [&](int32_t row) { return splits(row) * kSplit / a.block_size; };
    auto table = [&](int32_t row) { return a.block_table + row * a.table_stride; };
    for (int32_t row = 0; row < a.num_rows; ++row) {
      if (a.query_start[row + 1] - a.query_start[row] == 1 && splits(row) > 0) rows.push_back(row);
    }
    std::sort(rows.begin(), rows.end(), [&](int32_t x, int32_t y) {  // equal beginnings lie side by side
      int64_t nx = columns(x), ny = columns(y);
      int order = std::memcmp(table(x), table(y), static_cast<size_t>(std::min(nx, ny)) * sizeof(int32_t));
      return order != 0 ? order < 0 : nx != ny ? nx < ny : x < y;
    });
    for (int32_t row : rows) tokens.push_back(a.query_start[row]);
    auto common = [&](size_t i) {  // splits that rows i and i + 1 share
      const int32_t *x = table(rows[i]), *y = table(rows[i + 1]);
      const int32_t* end = x + std::min(columns(rows[i]), columns(rows[i + 1]));
      return (std::mismatch(x, end, y).first - x) * a.block_size / kSplit;
    };
    for (size_t i = 0; i + 1 < rows.size(); ++i) {
      int64_t shared = common(i);
      if (shared == 0) continue;
      Group group{static_cast<int64_t>(i), static_cast<int64_t>(i) + 2, shared};
      while (++i + 1 < rows.size()) {  // one row more, unless that saves fewer reads
        int64_t others = group.end - group.begin, fewer = std::min(group.splits, common(i));
        if (others * fewer < (others - 1) * group.splits) break;
        group.splits = fewer;
        ++group.end;
      }
      groups.push_back(group);
    }
  }
};

// What the shared splits of a row gave: sums of the row's tokens in all tiles of its part of the group.
struct Carried {
  float* parts = nullptr;  // of each KV head and cut of its heads, one after the other
  int64_t token = 0;       // of a tile
  int64_t splits = 0;
};

using Tiles = std::vector<Tile>;

// visit(kv head, first query head, heads, index) for each cut of each KV head.
template <typename Visit>
void for_heads(const AttentionArgs& a, const Cut& cut, Visit visit) {
  int64_t index = 0;
  for (int64_t g = 0; g < a.kv_heads; ++g) {
    for (int64_t head = 0; head < cut.group; head += cut.heads) {
      visit(g, g * cut.group + head, std::min(cut.heads, cut.group - head), index++);
    }
  }
}

// Tiles of what rows share, and for each row where its sums will lie.
void plan_shared(const AttentionArgs& a, const Sharing& sharing, Tiles& tiles, std::vector<Carried>& carried) {
  thread_local Buffer buffer;
  Cut cut(a);
  int64_t stride = stride_of(a.value_dim), room = partial_floats(stride), parts = 0;
  int64_t heads = a.kv_heads * ((cut.group + cut.heads - 1) / cut.heads);
  for (const auto& group : sharing.groups) parts += (group.end - group.begin + cut.tokens - 1) / cut.tokens;
  float* p = buffer.get(parts * heads * room);
  for (const auto& group : sharing.groups) {
    for (int64_t i = group.begin; i < group.end; i += cut.tokens, p += heads * room) {
      int64_t count = std::min(cut.tokens, group.end - i);
      for (int64_t k = 0; k < count; ++k) {
        carried[static_cast<size_t>(sharing.rows[static_cast<size_t>(i + k)])] = {p, k, group.splits};
      }
      for_heads(a, cut, [&](int64_t g, int64_t head, int64_t num_heads, int64_t index) {
        const int32_t* tokens = sharing.tokens.data() + i;
        tiles.push_back({sharing.rows[static_cast<size_t>(i)], g, head, num_heads, *tokens, count,
                         group.splits * kSplit - 1, 0, group.splits, tokens, partial_at(p + index * room, stride)});
      });
    }
  }
}

// Tiles of the batch; of a row, the longest contexts first, so that no thread is left with one at the end.
void plan_tiles(const AttentionArgs& a, const std::vector<Carried>& carried, Tiles& tiles) {
  Cut cut(a);
  int64_t stride = stride_of(a.value_dim), room = partial_floats(stride);
  for (int64_t row = 0; row < a.num_rows; ++row) {
    int64_t begin = a.query_start[row], end = a.query_start[row + 1], offset = a.seq_lens[row] - end;
    const Carried& before = carried[static_cast<size_t>(row)];
    for_heads(a, cut, [&](int64_t g, int64_t head, int64_t heads, int64_t index) {
      Partial sums{};
      if (before.parts) sums = partial_at(before.parts + index * room, stride, before.token * heads);
      for (int64_t past = end; past > begin; past -= cut.tokens) {
        int64_t token = std::max(begin, past - cut.tokens), count = past - token, position = token + offset;
        int64_t low = a.window ? std::max<int64_t>(0, position + 1 - a.window) : 0;
        tiles.push_back({row, g, head, heads, token, count, position, std::max(low / kSplit, before.splits),
                         (position + count - 1) / kSplit + 1, nullptr, sums});
      }
    });
  }
}

// Few tiles with long contexts: every split is a piece of work of its own, and the parts merge afterwards in order.
void attend_by_splits(const Kernels& kernels, const AttentionArgs& a, const Tiles& tiles, int64_t splits) {
  struct Work {
    const Tile* tile;
    int64_t split;
    Partial part;
  };
  thread_local Buffer buffer;
  int64_t stride = stride_of(a.value_dim), room = partial_floats(stride);
  std::vector<Work> work;
  float* p = buffer.get(room * splits);
  for (const Tile& tile : tiles) {
    for (int64_t split = tile.split_begin; split < tile.split_end; ++split, p += room) {
      bool into_carried = tile.shared_by && split == tile.split_begin;
      work.push_back({&tile, split, into_carried ? tile.carried : partial_at(p, stride)});
    }
  }
  Pool::get().parallel_for(splits, 1, [&](int64_t begin, int64_t end) {
    AttentionScratch mine = thread_scratch(a);
    for (int64_t i = begin; i < end; ++i) {
      const Work& w = work[static_cast<size_t>(i)];
      mine.total = w.part;
      kernels.attend(a, *w.tile, w.split, w.split + 1, false, nullptr, mine);
    }
  });
  Work* w = work.data();
  for (const Tile& tile : tiles) {
    bool resumes = tile.carried.out && !tile.shared_by;
    Partial total = resumes ? tile.carried : w++->part;
    for (int64_t split = tile.split_begin + !resumes; split < tile.split_end; ++split) {
      kernels.merge(total, w++->part, tile.tokens * tile.heads);
    }
    if (!tile.shared_by) kernels.finish(a, tile, total);
  }
}

void attend(const Kernels& kernels, const AttentionArgs& a, const Tiles& tiles) {
  Pool& pool = Pool::get();
  int64_t count = static_cast<int64_t>(tiles.size()), splits = 0;
  for (const Tile& tile : tiles) splits += tile.split_end - tile.split_begin;
  if (pool.size() > 1 && count < 4 * pool.size() && splits > count) return attend_by_splits(kernels, a, tiles, splits);
  int64_t grain = std::max<int64_t>(1, count / (16 * pool.size()));
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    AttentionScratch mine = thread_scratch(a);
    Partial room = mine.total;
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = tiles[static_cast<size_t>(i)];
      const Tile* next = i + 1 < end ? &tile + 1 : nullptr;
      mine.total = tile.carried.out ? tile.carried : room;
      kernels.attend(a, tile, tile.split_begin, tile.split_end, tile.carried.out && !tile.shared_by, next, mine);
      if (!tile.shared_by) kernels.finish(a, tile, mine.total);
    }
  });
}

}  // namespace

void paged_attention(const Kernels& kernels, const AttentionArgs& a) {
  thread_local Sharing sharing;
  thread_local Tiles tiles;  // other threads have their own: they get this one by reference
  thread_local std::vector<Carried> carried;
  zero_padding(a);
  carried.assign(static_cast<size_t>(a.num_rows), {});
  sharing.find(a);
  if (!sharing.groups.empty()) {
    tiles.clear();
    plan_shared(a, sharing, tiles, carried);
    attend(kernels, a, tiles);
  }
  tiles.clear();
  plan_tiles(a, carried, tiles);
  attend(kernels, a, tiles);
}

}  // namespace octavo
