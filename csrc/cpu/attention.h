// Attention of a tile of queries over the pages of one KV head. Keys and values come from the pages only.
//
// One numeric scheme serves prefill and decode: a score is one chain of fused multiply-adds over the head dimension in
// order, a value sum one chain over the split's tokens in order, and lanes of a vector are different tokens (scores) or
// different dimensions (values). So the bits of a query do not depend on which queries share its tile, and masked
// tokens, whose weight is 0, change nothing.
#pragma once

#include <algorithm>
#include <type_traits>

#include "factor.h"

namespace octavo::OCTAVO_TIER {

constexpr int kPanel = kTileVecs * W;  // tokens scored together
constexpr int kAhead = 128;            // most tokens between a prefetch and its use
static_assert(kPanel <= kMaxPanel && kSplit % kPanel == 0);

inline const float kInfinity = __builtin_inff();
alignas(64) inline const float kCount[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// A row in memory is read in words of 32 bits: one dimension of a float row, two of the others.
template <typename T>
constexpr int kWordDims = 4 / sizeof(T);

template <typename T>
inline F even_dim(F words) {
  if constexpr (std::is_same_v<T, bf16>) return even_bf16(words);
  if constexpr (std::is_same_v<T, f16>) return even_f16(words);
  return words;
}
template <typename T>
inline F odd_dim(F words) {
  return std::is_same_v<T, bf16> ? odd_bf16(words) : odd_f16(words);
}

// Into the L2 cache: a core has far fewer places for lines on their way to its L1 cache.
inline void fetch_row(const void* row, int64_t begin, int64_t end) {
  for (; begin < end; begin += 64) prefetch_line_l2(static_cast<const char*>(row) + begin);
}

// visit(d, vectors) for each dimension d of V * W rows: its values of all the rows; or, for queries Q of bf16, for each
// pair of dimensions, as it lies. Up to 14 bytes behind a row may be read, and are not used. Meanwhile the rows of `ahead`
// come near: a few lines at a time, as more would block the loads.
template <int V, typename T, typename Q, typename Visit>
inline void for_dims(const void* const* rows, const void* const* ahead, int64_t head_dim, Visit visit) {
  const int64_t row_bytes = head_dim * static_cast<int64_t>(sizeof(T));
  int64_t due = 0;  // bytes to fetch until as much is near as was read
  auto words = [&](int64_t d, int count) __attribute__((always_inline)) {
    int64_t offset = d * static_cast<int64_t>(sizeof(T));
    for (due += V * W * 16; due >= row_bytes; due -= row_bytes) fetch_row(*ahead++, 0, row_bytes);
    F x[V][4];
    for (int v = 0; v < V; ++v) load_columns(x[v], rows + v * W, offset);
    for (int c = 0; c < count; ++c) {
      F dims[V];
      for (int v = 0; v < V; ++v) dims[v] = std::is_same_v<Q, bf16> ? x[v][c] : even_dim<T>(x[v][c]);
      visit(d + c * kWordDims<T>, dims);
      if constexpr (kWordDims<T> == 2 && !std::is_same_v<Q, bf16>) {
        for (int v = 0; v < V; ++v) dims[v] = odd_dim<T>(x[v][c]);
        visit(d + c * 2 + 1, dims);
      }
    }
  };
  constexpr int kStep = 4 * kWordDims<T>;
  int64_t d = 0;
  for (; d + kStep <= head_dim; d += kStep) words(d, 4);
  if (d < head_dim) words(d, static_cast<int>((head_dim - d) / kWordDims<T>));
}

// acc[r][v] += the product of query r and the keys' vector v, at the dimension or pair of them that `q` points to.
template <int R, int V, typename Q>
__attribute__((always_inline)) inline void add_products(F (&acc)[R][V], const Q* q, int64_t q_stride, const F (&k)[V]) {
  unrolled<R>([&](auto r) __attribute__((always_inline)) {
    auto x = Factor<Q>::values(q + r * q_stride);
    unrolled<V>([&](auto v) { acc[r][v] = Factor<Q>::add(acc[r][v], x, Factor<Q>::of(k[v])); });
  });
}

template <int R, int V>
__attribute__((always_inline)) inline void clear_sums(F (&acc)[R][V]) {
  unrolled<R * V>([&](auto i) { acc[i / V][i % V] = set(0); });
}
template <int R, int V>
__attribute__((always_inline)) inline void store_scores(float* scores, const F (&acc)[R][V]) {
  unrolled<R * V>([&](auto i) { store(scores + i / V * kSplit + i % V * W, acc[i / V][i % V]); });
}

// scores[r][j] = q[r] . k[j] for R queries and the tokens of V vectors, as their keys lie.
template <int R, int V, typename T, typename Q>
inline void score_rows(float* scores, const Q* q, int64_t q_stride, const void* const* keys,
                       const void* const* ahead, int64_t head_dim) {
  F acc[R][V];
  clear_sums(acc);
  for_dims<V, T, Q>(keys, ahead, head_dim, [&](int64_t d, const F(&k)[V]) __attribute__((always_inline)) {
    add_products(acc, q + d, q_stride, k);
  });
  store_scores(scores, acc);
}

// The same for the panel's tokens, from k_panel[d][token], where bf16 queries have a pair of dimensions at each place.
template <int R, typename Q>
inline void score_panel(float* scores, const Q* q, int64_t q_stride, const float* k_panel, int64_t head_dim) {
  F acc[R][kTileVecs];
  clear_sums(acc);
  for (int64_t d = 0; d < head_dim; d += Factor<Q>::kDepth, k_panel += kPanel) {
    F k[kTileVecs];
    unrolled<kTileVecs>([&](auto v) { k[v] = load(k_panel + v * W); });
    add_products(acc, q + d, q_stride, k);
  }
  store_scores(scores, acc);
}

// Value sums of bf16 pages hold each 2 W dimensions as W even and then W odd ones, as a vector of pairs comes apart;
// `finish` brings them back into order. A unit is what one load gives: so many vectors of sums.
template <typename T>
constexpr int kUnit = std::is_same_v<T, bf16> ? 2 : 1;

template <typename T, typename Lanes>
inline void load_unit(F (&x)[kUnit<T>], const T* p, Lanes lanes) {
  if constexpr (std::is_same_v<T, bf16>) {
    F pairs;
    if constexpr (std::is_same_v<Lanes, Full>) {
      pairs = load_pairs(p);
    } else {
      pairs = load_pairs(p, lanes.n / 2);
    }
    x[0] = even_bf16(pairs);
    x[1] = odd_bf16(pairs);
  } else {
    x[0] = load(p, lanes);
  }
}

// out[r] += sum over t of weights[r][t] * values[t], for R queries and U units of dimensions. The same dimensions of
// the rows `ahead` come near.
template <int R, int U, typename T, typename Lanes>
inline void add_values(float* out, int64_t stride, const float* weights, const void* const* values,
                       const void* const* ahead, int64_t d, int64_t tokens, Lanes lanes) {
  constexpr int kVecs = kUnit<T>;
  constexpr int64_t kBytes = U * kVecs * W * sizeof(T);
  int64_t offset = d * static_cast<int64_t>(sizeof(T)), fetch_end = offset % 64 ? offset : offset + kBytes;
  F acc[R][U * kVecs];
  auto each_sum = [&](auto fn) __attribute__((always_inline)) {
    unrolled<R * U * kVecs>([&](auto i) __attribute__((always_inline)) {
      constexpr int r = i / (U * kVecs), v = i % (U * kVecs);
      fn(acc[r][v], out + r * stride + d + v * W);
    });
  };
  each_sum([](F& sum, const float* p) { sum = load(p); });
  for (int64_t t = 0; t < tokens; ++t) {
    const T* row = static_cast<const T*>(values[t]) + d;
    fetch_row(ahead[t], offset, fetch_end);
    unrolled<U>([&](auto u) __attribute__((always_inline)) {
      F x[kVecs];
      load_unit(x, row + u * kVecs * W, lanes);
      unrolled<R>([&](auto r) __attribute__((always_inline)) {
        F w = set(weights[r * kSplit + t]);
        unrolled<kVecs>([&](auto v) { acc[r][u * kVecs + v] = fma(w, x[v], acc[r][u * kVecs + v]); });
      });
    });
  }
  each_sum([](F& sum, float* p) { store(p, sum); });
}

// Rows of a tile that are computed together: as even parts of it as there can be.
inline int64_t even_rows(int64_t rows) {
  int64_t parts = (rows + kTileRows - 1) / kTileRows;
  return (rows + parts - 1) / parts;
}

template <typename T>
inline void add_values_of_tile(float* out, int64_t stride, const float* weights, const void* const* values,
                               const void* const* ahead, int64_t rows, int64_t tokens, int64_t value_dim) {
  for (int64_t m = 0, step = even_rows(rows); m < rows; m += step) {
    with_rows(rows - m < step ? rows - m : step, [&]<int R>() {
      constexpr int kUnits = (R * 2 <= kTileRows && kTileVecs < 4 ? 4 : kTileVecs) / kUnit<T>, kDims = kUnit<T> * W;
      float* o = out + m * stride;
      const float* w = weights + m * kSplit;
      const void* const* near = m == 0 ? ahead : values;  // which are here already
      int64_t d = 0;
      for (; d + kUnits * kDims <= value_dim; d += kUnits * kDims) {
        add_values<R, kUnits, T>(o, stride, w, values, near, d, tokens, Full{});
      }
      for (; d + kDims <= value_dim; d += kDims) add_values<R, 1, T>(o, stride, w, values, near, d, tokens, Full{});
      if (d < value_dim) {
        add_values<R, 1, T>(o, stride, w, values, near, d, tokens, Part{static_cast<int>(value_dim - d)});
      }
    });
  }
}

// What makes a score of q . k.
struct Scoring {
  float scale, softcap, slope;  // softcap, slope: 0 for none
  float offset;                 // of the split's first token from the query's position
};

// Scores of one query become weights relative to their maximum; tokens outside low .. high get weight 0. The vectors
// that hold begin .. end are written.
inline void softmax_row(float* scores, int low, int high, int begin, int end, const Scoring& s, float& max_out,
                        float& sum_out) {
  begin = begin / W * W;
  if (low >= high) low = high = begin;  // it sees nothing here
  int first_vec = low / W * W;
  for (int t = begin; t < first_vec; t += W) store(scores + t, set(0));
  F top = set(-kInfinity);
  int t = first_vec;
  for (; t < high; t += W) {
    F x = load(scores + t) * set(s.scale);
    if (s.softcap != 0) x = set(s.softcap) * tanh(x / set(s.softcap));
    if (s.slope != 0) x = fma(set(s.slope), set(s.offset + static_cast<float>(t)) + load(kCount), x);
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

inline void merge(Partial& total, const Partial& part, int64_t rows) {
  for (int64_t m = 0; m < rows; ++m) {
    if (part.max[m] == -kInfinity) continue;  // this query sees nothing of the part
    float top = total.max[m] > part.max[m] ? total.max[m] : part.max[m];
    F keep_total = set(exp(total.max[m] - top)), keep_part = set(exp(part.max[m] - top));
    total.sum[m] = total.sum[m] * keep_total[0] + part.sum[m] * keep_part[0];
    total.max[m] = top;
    float* out = total.out + m * total.stride;
    const float* more = part.out + m * part.stride;
    for (int64_t d = 0; d < total.stride; d += W) {
      store(out + d, load(out + d) * keep_total + load(more + d) * keep_part);
    }
  }
}

inline void clear(Partial& p, int64_t rows) {
  for (int64_t m = 0; m < rows; ++m) {
    p.max[m] = -kInfinity;
    p.sum[m] = 0;
  }
  for (int64_t i = 0; i < rows * p.stride; i += W) store(p.out + i, set(0));
}

// Queries of type Q, as `s.q` holds them, and pages of type T.
template <typename T, typename Q>
struct TileAttention {
  const AttentionArgs& a;
  const Tile& tile;
  AttentionScratch& s;
  int64_t rows = tile.tokens * tile.heads;
  Q* q = reinterpret_cast<Q*>(s.q);
  int64_t q_stride = s.q_stride * static_cast<int64_t>(sizeof(float) / sizeof(Q));
  // Few queries read the pages as they lie; many share keys and values that were brought into shape once.
  bool as_they_lie = rows <= kTileRows;

  // First token that the query at `position` sees.
  int64_t window_start(int64_t position) const {
    return a.window && position + 1 > a.window ? position + 1 - a.window : 0;
  }

  // visit(first row in the pages, its position, count) for the runs of positions begin .. end that lie in one page.
  template <typename Visit>
  void for_pages(const Tile& t, int64_t begin, int64_t end, Visit visit) const {
    const int32_t* block = a.block_table + t.row * a.table_stride + begin / a.block_size;
    for (int64_t position = begin, offset = begin % a.block_size; position < end; ++block, offset = 0) {
      int64_t left = a.block_size - offset, count = end - position < left ? end - position : left;
      int64_t first = *block * a.page_stride + t.kv_head * a.head_stride + offset * a.head_dim;
      visit(static_cast<const T*>(a.pages) + first, position, count);
      position += count;
    }
  }

  // Rows of a split in the order in which they are read, so that what will be read some rows later is found by adding to
  // a pointer: keys of tokens begin .. end, zero around to whole panels, values, and keys of what comes next.
  struct Reading {
    const void** keys;    // of token i of the split, as those below
    const void** values;  // of token i
    int64_t ahead;        // from a row to the one that should come near meanwhile
  };

  // Of the split at `origin`. What comes next is `next` from position `next_begin` on, if anything.
  Reading find_rows(int64_t origin, int begin, int end, const Tile* next, int64_t next_begin) {
    const int first = begin / kPanel * kPanel, last = (end + kPanel - 1) / kPanel * kPanel, size = end - begin;
    const int ahead = size < kAhead ? size : kAhead;
    const void** const keys = s.rows;
    const void** const values = keys + last - begin;
    std::fill(keys + first, keys + begin, s.zero_row);
    std::fill(keys + end, keys + last, s.zero_row);
    for_pages(tile, origin + begin, origin + end, [&](const T* row, int64_t position, int64_t count) {
      list_rows(keys + position - origin, row, count);
      list_rows(values + position - origin, row + a.value_offset, count);
    });
    const void **to = values + end, **stop = to + ahead;
    if (next) {
      int64_t next_end = next->position + next->tokens;
      if (next_end > next_begin + ahead) next_end = next_begin + ahead;
      for_pages(*next, next_begin, next_end, [&](const T* row, int64_t, int64_t count) {
        list_rows(to, row, count);
        to += count;
      });
    }
    std::fill(to, stop, s.zero_row);
    return {keys, values, ahead};
  }

  void list_rows(const void** to, const T* row, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) to[i] = row + i * a.head_dim;
  }

  void score(const Reading& reading, int begin, int end) {
    for (int t = begin / kPanel * kPanel; t < end; t += kPanel) {
      const void *const *keys = reading.keys + t, *const *ahead = keys + reading.ahead;
      if (as_they_lie) {
        with_rows(rows, [&]<int R>() {
          constexpr int V = R * 2 <= kTileRows ? 2 : 1;  // what leaves room for the words of the keys
          for (int v = 0; v < kTileVecs * W; v += V * W) {
            score_rows<R, V, T>(s.scores + t + v, q, q_stride, keys + v, ahead + v, a.head_dim);
          }
        });
        continue;
      }
      for (int v = 0; v < kTileVecs * W; v += W) {
        for_dims<1, T, Q>(keys + v, ahead + v, a.head_dim, [&](int64_t d, const F(&k)[1]) {
          store(s.k_panel + d / Factor<Q>::kDepth * kPanel + v, k[0]);
        });
      }
      for (int64_t m = 0, step = even_rows(rows); m < rows; m += step) {
        with_rows(rows - m < step ? rows - m : step, [&]<int R>() {
          score_panel<R>(s.scores + m * kSplit + t, q + m * q_stride, q_stride, s.k_panel, a.head_dim);
        });
      }
    }
  }

  // One value row as floats, in the order of the sums.
  void convert(float* row, const T* from) const {
    auto unit = [&](int64_t d, auto lanes) {
      F x[kUnit<T>];
      load_unit(x, from + d, lanes);
      for (int v = 0; v < kUnit<T>; ++v) store(row + d + v * W, x[v]);
    };
    int64_t d = 0;
    for (; d + kUnit<T> * W <= a.value_dim; d += kUnit<T> * W) unit(d, Full{});
    if (d < a.value_dim) unit(d, Part{static_cast<int>(a.value_dim - d)});
  }

  void sum_values(Partial& sums, const Reading& reading, int begin, int end) {
    constexpr int kRun = kMaxPanel;
    for (int t = begin; t < end; t += kRun) {
      int count = end - t < kRun ? end - t : kRun;
      const void *const *values = reading.values + t, *const *ahead = values + reading.ahead;
      if (as_they_lie || sizeof(T) == 4) {
        add_values_of_tile<T>(sums.out, sums.stride, s.scores + t, values, ahead, rows, count, a.value_dim);
        continue;
      }
      const void* converted[kRun];
      for (int i = 0; i < count; ++i) {
        fetch_row(ahead[i], 0, a.value_dim * static_cast<int64_t>(sizeof(T)));
        float* row = s.v_rows + i * sums.stride;
        convert(row, static_cast<const T*>(values[i]));
        converted[i] = row;
      }
      int64_t dims = (a.value_dim + kUnit<T> * W - 1) / (kUnit<T> * W) * (kUnit<T> * W);
      add_values_of_tile<float>(sums.out, sums.stride, s.scores + t, converted, converted, rows, count, dims);
    }
  }

  // The tokens of one split into `part`; keys of `next` from position `next_begin` on will be read after it.
  void run_split(Partial& part, int64_t split, const Tile* next, int64_t next_begin) {
    int64_t origin = split * kSplit;
    int64_t low = window_start(tile.position) - origin, high = tile.position + tile.tokens - origin;
    int begin = static_cast<int>(low > 0 ? low : 0), end = static_cast<int>(high < kSplit ? high : kSplit);
    Reading reading = find_rows(origin, begin, end, next, next_begin);
    score(reading, begin, end);
    for (int64_t m = 0; m < rows; ++m) {
      int64_t position = tile.position + m / tile.heads;
      int64_t from = window_start(position) - origin, to = position + 1 - origin;
      int row_low = static_cast<int>(from > begin ? from : begin), row_high = static_cast<int>(to < end ? to : end);
      float slope = a.alibi_slopes ? a.alibi_slopes[tile.head + m % tile.heads] : 0;
      softmax_row(s.scores + m * kSplit, row_low, row_high, begin, end,
                  {a.scale, a.softcap, slope, static_cast<float>(origin - position)}, part.max[m], part.sum[m]);
    }
    sum_values(part, reading, begin, end);
  }
};

inline int64_t token_of(const Tile& tile, int64_t i) { return tile.shared_by ? tile.shared_by[i] : tile.token + i; }

template <typename T, typename Q>
inline void attend_with(const AttentionArgs& a, const Tile& tile, int64_t begin, int64_t end, bool resume,
                        const Tile* next, AttentionScratch& s) {
  TileAttention<T, Q> attention{a, tile, s};
  int64_t rows = attention.rows;
  with_type(a.dtype, [&](auto type) {
    using From = decltype(type);
    for (int64_t m = 0; m < rows; ++m) {
      const From* q = static_cast<const From*>(a.q) + token_of(tile, m / tile.heads) * a.q_stride +
                      (tile.head + m % tile.heads) * a.head_dim;
      Q* row = attention.q + m * attention.q_stride;
      for_vectors(a.head_dim, [&](int64_t d, auto lanes) { store(row + d, load(q + d, lanes), lanes); });
    }
  });
  for (int64_t split = begin; split < end; ++split) {
    bool first = split == begin && !resume, last = split + 1 == end;
    int64_t next_begin = last && next ? attention.window_start(next->position) : (split + 1) * kSplit;
    if (last && next && next->split_begin * kSplit > next_begin) next_begin = next->split_begin * kSplit;
    Partial& part = first ? s.total : s.part;
    clear(part, rows);
    attention.run_split(part, split, last ? next : &tile, next_begin);
    if (!first) merge(s.total, part, rows);
  }
}

inline void attend(const AttentionArgs& a, const Tile& tile, int64_t begin, int64_t end, bool resume, const Tile* next,
                   AttentionScratch& s) {
  with_type(a.kv_dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (kMultipliesPairs && std::is_same_v<T, bf16>) {
      if (a.dtype == DType::bf16) return attend_with<T, bf16>(a, tile, begin, end, resume, next, s);
    }
    attend_with<T, float>(a, tile, begin, end, resume, next, s);
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
      T* out = static_cast<T*>(a.out) + (tile.token + m / tile.heads) * a.out_stride + head * a.value_dim;
      const float* from = total.out + m * total.stride;
      auto value = [&](int64_t d) { return load(from + d) * set(weight) / set(sum) + set(0.0f); };  // + 0: no negative zero
      auto write = [&](int64_t d, F x) {
        int64_t left = a.value_dim - d;
        left >= W ? store(out + d, x) : left > 0 ? store(out + d, x, static_cast<int>(left)) : void();
      };
      for (int64_t d = 0; d < a.value_dim; d += 2 * W) {
        F x = value(d), y = value(d + W);
        if (a.kv_dtype == DType::bf16) interleave(x, y);
        write(d, x);
        write(d + W, y);
      }
    }
  });
}

}  // namespace octavo::OCTAVO_TIER
