// Attention of a tile of queries over the pages of one KV head. Keys and values come from the pages only.
//
// One numeric scheme serves prefill and decode: a score is one chain of fused multiply-adds over the head dimension in
// order, a value sum one chain over the split's tokens in order, and lanes of a vector are different tokens (scores) or
// different dimensions (values). So the bits of a query do not depend on which queries share its tile, and masked
// tokens, whose weight is 0, change nothing.
#pragma once

#include "vec.h"

namespace octavo::OCTAVO_TIER {

constexpr int kPanel = kTileVecs * W;  // tokens scored together
constexpr int kAhead = 64;                // most tokens between a prefetch and its use
static_assert(kPanel <= kMaxPanel && kSplit % kPanel == 0);

inline const float kInfinity = __builtin_inff();

// dst[d][j] = rows[j][d] for W rows; rows of dst are kPanel apart.
template <typename T>
inline void transpose_rows(float* dst, const void* const* rows, int64_t head_dim) {
  for_vectors(head_dim, [&](int64_t d, auto lanes) {
    F x[W];
    for (int j = 0; j < W; ++j) x[j] = load(static_cast<const T*>(rows[j]) + d, lanes);
    transpose(x);
    for (int i = 0; i < W; ++i) store(dst + (d + i) * kPanel, x[i]);
  });
}
// Two bf16 are moved as one lane, which halves the shuffles.
template <>
inline void transpose_rows<bf16>(float* dst, const void* const* rows, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim; d += 2 * W) {
    F x[W];
    int64_t left = head_dim - d;
    for (int j = 0; j < W; ++j) {
      const bf16* p = static_cast<const bf16*>(rows[j]) + d;
      x[j] = left >= 2 * W ? load_pairs(p) : load_pairs(p, static_cast<int>(left / 2));
    }
    transpose(x);
    for (int i = 0; i < W && 2 * i < left; ++i) {
      store(dst + (d + 2 * i) * kPanel, even_bf16(x[i]));
      store(dst + (d + 2 * i + 1) * kPanel, odd_bf16(x[i]));
    }
  }
}

// scores[r][j] = q[r] . k[j] for R queries and the panel's tokens.
template <int R>
inline void score_panel(float* scores, const float* q, int64_t q_stride, const float* k_panel, int64_t head_dim) {
  F acc[R][kTileVecs];
  for (auto& row : acc) {
    for (F& x : row) x = set(0);
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    F k[kTileVecs];
    for (int v = 0; v < kTileVecs; ++v) k[v] = load(k_panel + d * kPanel + v * W);
    for (int r = 0; r < R; ++r) {
      F x = set(q[r * q_stride + d]);
      for (int v = 0; v < kTileVecs; ++v) acc[r][v] = fma(x, k[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kTileVecs; ++v) store(scores + r * kSplit + v * W, acc[r][v]);
  }
}

// out[r] += sum over t of weights[r][t] * values[t], for R queries and V vectors of dimensions.
template <int R, int V, typename T, typename Lanes>
inline void add_values(float* out, int64_t stride, const float* weights, const void* const* values, int64_t d,
                       int64_t tokens, Lanes lanes) {
  F acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) acc[r][v] = load(out + r * stride + d + v * W);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const T* row = static_cast<const T*>(values[t]) + d;
    F x[V];
    for (int v = 0; v < V; ++v) x[v] = load(row + v * W, lanes);
    for (int r = 0; r < R; ++r) {
      F w = set(weights[r * kSplit + t]);
      for (int v = 0; v < V; ++v) acc[r][v] = fma(w, x[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(out + r * stride + d + v * W, acc[r][v]);
  }
}

template <typename T>
inline void add_values_of_tile(float* out, int64_t stride, const float* weights, const void* const* values,
                               int64_t rows, int64_t tokens, int64_t head_dim) {
  for (int64_t m = 0; m < rows; m += kTileRows) {
    with_rows(rows - m, [&]<int R>() {
      float* o = out + m * stride;
      const float* w = weights + m * kSplit;
      int64_t d = 0;
      for (; d + kTileVecs * W <= head_dim; d += kTileVecs * W) {
        add_values<R, kTileVecs, T>(o, stride, w, values, d, tokens, Full{});
      }
      for (; d + W <= head_dim; d += W) add_values<R, 1, T>(o, stride, w, values, d, tokens, Full{});
      if (d < head_dim) {
        add_values<R, 1, T>(o, stride, w, values, d, tokens, Part{static_cast<int>(head_dim - d)});
      }
    });
  }
}

// Scores of one query become weights relative to their maximum; tokens outside low .. high get weight 0. The vectors
// that hold begin .. end are written.
inline void softmax_row(float* scores, int low, int high, int begin, int end, float scale, float softcap, float& max_out,
                        float& sum_out) {
  begin = begin / W * W;
  int first_vec = low / W * W;
  for (int t = begin; t < first_vec; t += W) store(scores + t, set(0));
  F top = set(-kInfinity);
  int t = first_vec;
  for (; t < high; t += W) {
    F x = load(scores + t) * set(scale);
    if (softcap != 0) x = set(softcap) * tanh(x / set(softcap));
    if (t < low || t + W > high) {
      x = keep(x, low > t ? low - t : 0, high - t < W ? high - t : W, set(-kInfinity));
    }
    store(scores + t, x);
    top = max(x, top);
  }
  for (; t < end; t += W) store(scores + t, set(0));
  max_out = max_lane(top);
  F total = set(0);
  for (t = first_vec; t < high; t += W) {
    F w = exp(load(scores + t) - set(max_out));
    store(scores + t, w);
    total = total + w;
  }
  sum_out = sum(total);
}

inline void merge(Partial& total, const Partial& part, int64_t rows, int64_t head_dim) {
  for (int64_t m = 0; m < rows; ++m) {
    if (part.max[m] == -kInfinity) continue;  // this query sees nothing of the part
    float top = total.max[m] > part.max[m] ? total.max[m] : part.max[m];
    float keep_total = exp(total.max[m] - top), keep_part = exp(part.max[m] - top);
    total.sum[m] = total.sum[m] * keep_total + part.sum[m] * keep_part;
    total.max[m] = top;
    float* out = total.out + m * total.stride;
    const float* more = part.out + m * part.stride;
    for_vectors(head_dim, [&](int64_t d, auto lanes) {
      store(out + d, load(out + d, lanes) * set(keep_total) + load(more + d, lanes) * set(keep_part), lanes);
    });
  }
}

inline void clear(Partial& p, int64_t rows) {
  for (int64_t m = 0; m < rows; ++m) {
    p.max[m] = -kInfinity;
    p.sum[m] = 0;
  }
  for (int64_t i = 0; i < rows * p.stride; i += W) store(p.out + i, set(0));
}

template <typename T>
struct TileAttention {
  const AttentionArgs& a;
  const Tile& tile;
  AttentionScratch& s;
  int64_t rows = tile.tokens * tile.heads;

  // First token that the query at `position` sees.
  int64_t window_start(int64_t position) const {
    return a.window && position + 1 > a.window ? position + 1 - a.window : 0;
  }

  // visit(first row in the pages, its position, count) for the runs of positions begin .. end that lie in one page.
  template <typename Visit>
  void for_pages(const Tile& t, int64_t begin, int64_t end, Visit visit) const {
    const int32_t* table = a.block_table + t.row * a.table_stride;
    for (int64_t position = begin; position < end;) {
      int64_t offset = position % a.block_size;
      int64_t count = end - position < a.block_size - offset ? end - position : a.block_size - offset;
      int64_t head = table[position / a.block_size] * a.kv_heads + t.kv_head;
      visit(static_cast<const T*>(a.pages) + (head * a.block_size + offset) * a.head_dim, position, count);
      position += count;
    }
  }

  // s.keys[i], s.values[i] for tokens begin .. end of the split at `origin`; keys are zero around, to whole panels.
  void find_rows(int64_t origin, int begin, int end) {
    int64_t values = a.num_blocks * a.kv_heads * a.block_size * a.head_dim;
    for (int i = begin / kPanel * kPanel; i < begin; ++i) s.keys[i] = s.zero_row;
    for_pages(tile, origin + begin, origin + end, [&](const T* row, int64_t position, int64_t count) {
      for (int64_t i = position - origin; count > 0; ++i, --count, row += a.head_dim) {
        s.keys[i] = row;
        s.values[i] = row + values;
      }
    });
    for (int i = end; i % kPanel; ++i) s.keys[i] = s.zero_row;
  }

  int64_t row_bytes() const { return a.head_dim * static_cast<int64_t>(sizeof(T)); }

  void prefetch_keys(const Tile& t, int64_t begin, int64_t end) const {
    if (end > t.position + t.tokens) end = t.position + t.tokens;
    for_pages(t, begin, end, [&](const T* row, int64_t, int64_t count) { prefetch(row, count * row_bytes()); });
  }

  void score(int begin, int end) {
    int ahead = end - begin < kAhead ? end - begin : kAhead;
    for (int panel = begin / kPanel * kPanel; panel < end; panel += kPanel) {
      for (int t = panel; t < panel + kPanel; t += W) {
        for (int i = t + ahead; i < t + ahead + W; ++i) {  // after the keys come the values
          if (i < end) {
            prefetch(s.keys[i], row_bytes());
          } else if (i - end + begin < end) {
            prefetch(s.values[i - end + begin], row_bytes());
          }
        }
        transpose_rows<T>(s.k_panel + t - panel, s.keys + t, a.head_dim);
      }
      for (int64_t m = 0; m < rows; m += kTileRows) {
        with_rows(rows - m, [&]<int R>() {
          score_panel<R>(s.scores + m * kSplit + panel, s.q + m * s.part.stride, s.part.stride, s.k_panel, a.head_dim);
        });
      }
    }
  }

  // Few queries read the pages themselves, in short runs between prefetches; many share rows that were converted to
  // float once. After the values come the keys of `next` from position `next_begin`.
  void sum_values(int begin, int end, const Tile* next, int64_t next_begin) {
    bool as_they_lie = sizeof(T) == 4 || rows <= kTileRows;
    int run = as_they_lie ? 16 : kMaxPanel, ahead = end - begin < kAhead ? end - begin : kAhead;
    for (int t = begin; t < end; t += run) {
      int count = end - t < run ? end - t : run;
      for (int i = t + ahead; i < t + ahead + count && i < end; ++i) prefetch(s.values[i], row_bytes());
      int64_t past = t + ahead - end;
      if (next && past + count > 0) prefetch_keys(*next, next_begin + (past > 0 ? past : 0), next_begin + past + count);
      if (as_they_lie) {
        add_values_of_tile<T>(s.part.out, s.part.stride, s.scores + t, s.values + t, rows, count, a.head_dim);
        continue;
      }
      const void* converted[kMaxPanel];
      for (int i = 0; i < count; ++i) {
        float* row = s.v_rows + i * s.part.stride;
        const T* from = static_cast<const T*>(s.values[t + i]);
        for_vectors(a.head_dim, [&](int64_t d, auto lanes) { store(row + d, load(from + d, lanes), lanes); });
        converted[i] = row;
      }
      add_values_of_tile<float>(s.part.out, s.part.stride, s.scores + t, converted, rows, count, a.head_dim);
    }
  }

  // The tokens of one split into s.part; keys of `next` from position `next_begin` on will be read after it.
  void run_split(int64_t split, const Tile* next, int64_t next_begin) {
    int64_t origin = split * kSplit;
    int64_t low = window_start(tile.position) - origin, high = tile.position + tile.tokens - origin;
    int begin = static_cast<int>(low > 0 ? low : 0), end = static_cast<int>(high < kSplit ? high : kSplit);
    clear(s.part, rows);
    find_rows(origin, begin, end);
    score(begin, end);
    for (int64_t m = 0; m < rows; ++m) {
      int64_t position = tile.position + m / tile.heads;
      int64_t from = window_start(position) - origin, to = position + 1 - origin;
      int row_low = static_cast<int>(from > begin ? from : begin), row_high = static_cast<int>(to < end ? to : end);
      if (row_low >= row_high) row_low = row_high = begin;
      softmax_row(s.scores + m * kSplit, row_low, row_high, begin, end, a.scale, a.softcap, s.part.max[m],
                  s.part.sum[m]);
    }
    sum_values(begin, end, next, next_begin);
  }
};

inline void attend(const AttentionArgs& a, const Tile& tile, int64_t begin, int64_t end, const Tile* next,
                   AttentionScratch& s) {
  int64_t rows = tile.tokens * tile.heads;
  with_type(a.dtype, [&](auto type) {
    using Q = decltype(type);
    for (int64_t m = 0; m < rows; ++m) {
      const Q* q = static_cast<const Q*>(a.q) + (tile.token + m / tile.heads) * a.q_stride +
                   (tile.head + m % tile.heads) * a.head_dim;
      float* row = s.q + m * s.part.stride;
      for_vectors(a.head_dim, [&](int64_t d, auto lanes) { store(row + d, load(q + d, lanes), lanes); });
    }
  });
  clear(s.total, rows);
  with_type(a.kv_dtype, [&](auto type) {
    TileAttention<decltype(type)> attention{a, tile, s};
    for (int64_t split = begin; split < end; ++split) {
      bool last = split + 1 == end;
      int64_t next_begin = last && next ? attention.window_start(next->position) : (split + 1) * kSplit;
      attention.run_split(split, last ? next : &tile, next_begin);
      merge(s.total, s.part, rows, a.head_dim);
    }
  });
}

// out = total / sum, with the sink's share of the weight left out.
inline void finish(const AttentionArgs& a, const Tile& tile, const Partial& total) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t m = 0; m < tile.tokens * tile.heads; ++m) {
      int64_t head = tile.head + m % tile.heads;
      float weight = 1, sum = total.sum[m];
      if (a.sinks) {
        float top = total.max[m] > a.sinks[head] ? total.max[m] : a.sinks[head];
        weight = exp(total.max[m] - top);
        sum = sum * weight + exp(a.sinks[head] - top);
      }
      T* out = static_cast<T*>(a.out) + (tile.token + m / tile.heads) * a.out_stride + head * a.head_dim;
      const float* from = total.out + m * total.stride;
      for_vectors(a.head_dim, [&](int64_t d, auto lanes) {
        store(out + d, load(from + d, lanes) * set(weight) / set(sum) + set(0.0f), lanes);  // + 0: no negative zero
      });
    }
  });
}

}  // namespace octavo::OCTAVO_TIER
