// Tokens times a packed weight matrix. Every output is one chain of additions over the steps of a shard in order,
// whichever tokens, panels and threads share the work: blocking only decides which chains advance together, and sums
// that wait in memory between two blocks of steps are not rounded.
#pragma once

#include "factor.h"
#include "sums.h"

namespace octavo::OCTAVO_TIER {

constexpr int kPanelVecs = kPanelRows / W;
constexpr int64_t kBlockSteps = 1024;  // steps of a tile's weights that stay in the L2 cache while tokens pass
constexpr int64_t kAheadSteps = 128;    // between a prefetch and its use
constexpr int64_t kChunkBytes = 1 << 19;  // of tokens: half of an L2 cache
constexpr int64_t kMinChunk = 96, kMaxChunk = 384;

// A pass of a tile over some steps of its weights.
template <typename T, int V>
struct Pass {
  const typename Factor<T>::Token* x;
  int64_t x_stride;
  const T* weights[V];
  int64_t steps;
  const T* next[V];  // weights of the pass that follows
  // Where `sharers` > 1 tiles use the weights, each fetches a part of `next`, from step `spread` on; else a pass fetches
  // its own weights and the first ones of `next`.
  int64_t sharers, spread;
};

// A step's V vectors, a line at a time.
template <typename T, int V>
inline void fetch_row(const T* const (&vectors)[V], int64_t offset) {
  constexpr int kVecBytes = W * Factor<T>::kDepth * sizeof(T), kPerLine = kVecBytes < 64 ? 64 / kVecBytes : 1;
  for (int v = 0; v < V; v += kPerLine) {
    const char* p = reinterpret_cast<const char*>(vectors[v] + offset);
    for (int byte = 0; byte < kVecBytes; byte += 64) prefetch_line_l2(p + byte);
  }
}

template <int R, int V, typename T, typename Fetch>
inline void run_steps(F (&total)[R][V], const Pass<T, V>& p, int64_t begin, int64_t end, Fetch fetch) {
  F sums[R][V];  // a copy, so that it stays in registers
  auto each_sum = [&](auto fn) __attribute__((always_inline)) {
    unrolled<R>([&](auto r) __attribute__((always_inline)) {
      unrolled<V>([&](auto v) __attribute__((always_inline)) { fn(r, v); });
    });
  };
  each_sum([&](auto r, auto v) __attribute__((always_inline)) { sums[r][v] = total[r][v]; });
  constexpr int64_t kDepth = Factor<T>::kDepth, kRow = kPanelRows * kDepth;
  const auto* x = p.x + begin * kDepth;
  const T* base[V];
  unrolled<V>([&](auto v) { base[v] = p.weights[v]; });
  int64_t offset = begin * kRow;
  for (int64_t step = begin; step < end; ++step, x += kDepth, offset += kRow) {
    fetch(step);
    if constexpr (R < V) {  // what is fewer waits in registers
      typename Factor<T>::Values values[R];
      unrolled<R>([&](auto r) { values[r] = Factor<T>::values(x + r * p.x_stride); });
      unrolled<V>([&](auto v) __attribute__((always_inline)) {
        auto w = Factor<T>::weights(base[v] + offset);
        unrolled<R>([&](auto r) { sums[r][v] = Factor<T>::add(sums[r][v], values[r], w); });
      });
    } else {
      typename Factor<T>::Weights w[V];
      unrolled<V>([&](auto v) { w[v] = Factor<T>::weights(base[v] + offset); });
      unrolled<R>([&](auto r) __attribute__((always_inline)) {
        auto values = Factor<T>::values(x + r * p.x_stride);
        unrolled<V>([&](auto v) { sums[r][v] = Factor<T>::add(sums[r][v], values, w[v]); });
      });
    }
  }
  each_sum([&](auto r, auto v) __attribute__((always_inline)) { total[r][v] = sums[r][v]; });
}

template <int R, int V, typename T>
inline void run_pass(F (&sums)[R][V], const Pass<T, V>& p) {
  constexpr int64_t kRow = kPanelRows * Factor<T>::kDepth;
  if (p.sharers > 1) {
    int64_t at = p.spread * kRow, wait = 0;
    return run_steps(sums, p, 0, p.steps, [&](int64_t) {
      if (--wait > 0) return;
      wait = p.sharers;
      fetch_row<T, V>(p.next, at);
      at += kRow;
    });
  }
  int64_t near = p.steps > kAheadSteps ? p.steps - kAheadSteps : 0;
  run_steps(sums, p, 0, near, [&](int64_t step) { fetch_row<T, V>(p.weights, (step + kAheadSteps) * kRow); });
  run_steps(sums, p, near, p.steps, [&](int64_t step) { fetch_row<T, V>(p.next, (step - near) * kRow); });
}

template <typename T>
struct Linear {
  using Fa = Factor<T>;
  using Token = typename Fa::Token;
  static constexpr int64_t kDepth = Fa::kDepth;
  static constexpr int kRows = Fa::kRows, kWideRows = kRows / 3;
  static constexpr int kMaxWidth = 2 * kTileVecs * W;  // outputs of a tile
  static constexpr bool kAsTheyLie = sizeof(Token) == sizeof(T);

  const LinearArgs& a;
  Room room;
  int64_t columns = a.weight.steps * kDepth;  // zeros beyond the last one included
  int64_t panel_size = columns * kPanelRows;
  int64_t chunk = chunk_of(a.tokens, columns);
  int64_t end_vec = 0;
  const Token* x = nullptr;
  int64_t x_stride = 0;
  int64_t token = 0, tokens = 0;  // the chunk
  float* waiting = nullptr;       // [slots][chunk, outputs of a tile]
  Token* packed_x = nullptr;      // [chunk, columns]

  // Tokens that go through all weights before the next ones: as many as stay in the L2 cache, in equal parts.
  static int64_t chunk_of(int64_t tokens, int64_t columns) {
    int64_t limit = kChunkBytes / (columns * static_cast<int64_t>(sizeof(Token)) + 1);
    limit = limit < kMinChunk ? kMinChunk : limit > kMaxChunk ? kMaxChunk : limit;
    int64_t chunks = (tokens + limit - 1) / limit;
    return chunks > 1 ? (tokens + chunks - 1) / chunks : tokens;
  }

  void begin_chunk(int64_t first) {
    token = first;
    tokens = a.tokens - first < chunk ? a.tokens - first : chunk;
    const T* from = static_cast<const T*>(a.x) + token * a.x_stride;
    if constexpr (kAsTheyLie) {
      if (a.weight.columns == columns) {
        x = from;
        x_stride = a.x_stride;
        return;
      }
    }
    x_stride = columns;
    Token* to = packed_x;
    x = to;
    for (int64_t t = 0; t < tokens; ++t, from += a.x_stride, to += columns) {
      for_vectors(a.weight.columns, [&](int64_t k, auto lanes) { store(to + k, load(from + k, lanes), lanes); });
      for (int64_t k = a.weight.columns; k < columns; ++k) to[k] = Token{};
    }
  }

  // The vectors of a tile that starts with output vector `vec`.
  template <int V>
  void point(const T* (&vectors)[V], int64_t vec, int64_t step) const {
    for (int v = 0; v < V; ++v) {
      int64_t at = vec + v;
      int64_t in_panel = (step * kPanelVecs + at % kPanelVecs) * W * kDepth;
      vectors[v] = static_cast<const T*>(a.weight.data) + at / kPanelVecs * panel_size + in_panel;
    }
  }

  // Tokens first .. first + R of the chunk.
  template <int R, int V>
  void run_tile(Pass<T, V>& pass, const Segment& segment, int64_t first, int64_t vec) const {
    F sums[R][V];
    float* wait = waiting + first * V * W;
    pass.x = x + first * x_stride + segment.begin * kDepth;
    pass.x_stride = x_stride;
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[r][v] = segment.starts ? set(0) : load(wait + (r * V + v) * W);
    }
    run_pass(sums, pass);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) store(wait + (r * V + v) * W, sums[r][v]);
    }
    if (!segment.ends) return;
    if (a.shards > 1) add_shard(wait, chunk * V * W, R * V * W, segment.shard, a.shards);
    if (segment.shard + 1 == a.shards) finish_sums<T>(a, wait, token + first, R, vec * W, V);
  }

  // The chunk times V vectors of weights, at most Rows tokens at a time.
  template <int Rows, int V>
  void run_vectors(int64_t vec) const {
    int64_t tiles = (tokens + Rows - 1) / Rows, after = vec + V;
    int64_t block = tiles == 1 ? a.weight.steps : kBlockSteps;
    for_segments(a.weight.steps, a.shards, block, [&](const Segment& segment) {
      int64_t end = segment.begin + segment.count;
      Pass<T, V> pass;
      pass.steps = segment.count;
      pass.sharers = tiles;
      point(pass.weights, vec, segment.begin);
      if (end < a.weight.steps) {
        point(pass.next, vec, end);
      } else {
        point(pass.next, after < end_vec ? after : vec, 0);
      }
      for (int64_t i = 0; i < tiles; ++i) {
        int64_t first = tokens * i / tiles, rows = tokens * (i + 1) / tiles - first;
        pass.spread = segment.count * i / tiles;
        with_rows<Rows>(rows, [&]<int R>() { run_tile<R, V>(pass, segment, first, vec); });
      }
    });
  }

  // Output vectors from vec on with tiles of V vectors, while there are enough. Returns where it stopped.
  template <int Rows, int V>
  int64_t run_range(int64_t vec) const {
    for (; vec + V <= end_vec; vec += V) run_vectors<Rows, V>(vec);
    return vec;
  }

  void run(int64_t begin, int64_t end) {
    constexpr bool kNarrowPanel = kPanelVecs < kTileVecs;
    end_vec = end * kPanelVecs;
    int64_t sums = slots_of(a.shards) * chunk * kMaxWidth;
    waiting = room(sums + chunk * columns);
    packed_x = reinterpret_cast<Token*>(waiting + sums);
    for (int64_t first = 0; first < a.tokens; first += chunk) {
      begin_chunk(first);
      int64_t vec = begin * kPanelVecs;
      if (tokens <= kWideRows) vec = run_range<kWideRows, 2 * kTileVecs>(vec);
      vec = run_range<kRows, kTileVecs>(vec);
      if constexpr (kNarrowPanel) run_range<kRows, kPanelVecs>(vec);
    }
  }
};

inline void linear(const LinearArgs& a, Room room, int64_t begin, int64_t end) {
  with_type(a.weight.dtype, [&](auto type) { Linear<decltype(type)>{a, room}.run(begin, end); });
}

}  // namespace octavo::OCTAVO_TIER
