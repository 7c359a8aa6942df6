// Tokens times a packed weight matrix. Every output is one chain of additions over the steps in order, whichever
// tokens, panels and threads share the work: blocking only decides which chains advance together, and sums that wait in
// memory between two blocks of steps are not rounded. (Shards of K for several ranks would be chains too, added in a
// tree.)
#pragma once

#include "vec.h"

namespace octavo::OCTAVO_TIER {

constexpr int kPanelVecs = kPanelRows / W;
constexpr int64_t kBlockSteps = 1024;  // steps of a tile's weights that stay in the L2 cache while tokens pass
constexpr int64_t kAheadSteps = 48;  // between a prefetch and its use

// How a vector of weights enters the sums: of `kDepth` columns each, multiplied by as many values of a token.
template <typename T>
struct Factor {
  using Token = float;
  using Values = F;
  using Weights = F;
  static constexpr int kDepth = 1, kRows = kTileRows;
  static Values values(const float* x) { return set(x[0]); }
  static Weights weights(const T* p) { return load(p); }
  static F add(F sum, Values x, Weights w) { return fma(x, w, sum); }
};
template <>
struct Factor<bf16> {
  static constexpr int kDepth = 2;
#if defined(__AVX512BF16__)
  static constexpr int kRows = kTileRows;
  using Token = bf16;
  using Values = __m512bh;
  using Weights = __m512bh;
  static Values values(const bf16* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    __m512i all = _mm512_set1_epi32(pair);
    asm("" : "+v"(all));  // in a register: with the broadcast as its operand the product takes three times as long
    return (__m512bh)all;
  }
  static Weights weights(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static F add(F sum, Values x, Weights w) { return _mm512_dpbf16_ps(sum, x, w); }
#else
  static constexpr int kRows = kPairRows;
  using Token = float;
  struct Values {
    F even, odd;
  };
  using Weights = Values;
  static Values values(const float* x) { return {set(x[0]), set(x[1])}; }
  static Weights weights(const bf16* p) {
    F pairs = load_pairs(p);
    return {even_bf16(pairs), odd_bf16(pairs)};
  }
  static F add(F sum, Values x, Weights w) { return fma(x.odd, w.odd, fma(x.even, w.even, sum)); }
#endif
};

// A pass of a tile over some steps of its weights.
template <typename T>
struct Pass {
  const typename Factor<T>::Token* x;
  int64_t x_stride;
  const T* weights;  // of the first vector
  int64_t panel_size, steps;
  const T* next;  // weights of the pass that follows
  // Where other tiles share the weights, `next` comes in bit by bit: this tile fetches from `spread` on, `spread_step`
  // bytes in a step. Else spread_step is 0, and a pass fetches its own weights and the first ones of `next`.
  const T* spread;
  int64_t spread_step;
};

template <int R, int V, typename T, typename Fetch>
inline void run_steps(F (&total)[R][V], const Pass<T>& p, int64_t begin, int64_t end, Fetch fetch) {
  F sums[R][V];  // a copy, so that it stays in registers
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sums[r][v] = total[r][v];
  }
  constexpr int64_t kDepth = Factor<T>::kDepth, kRow = kPanelRows * kDepth;
  const auto* x = p.x + begin * kDepth;
  const T* weights = p.weights + begin * kRow;
  for (int64_t step = begin; step < end; ++step, x += kDepth, weights += kRow) {
    fetch(step);
    auto at = [&](int v) { return weights + v / kPanelVecs * p.panel_size + v % kPanelVecs * W * kDepth; };
    if constexpr (R < V) {  // what is fewer waits in registers
      typename Factor<T>::Values values[R];
      for (int r = 0; r < R; ++r) values[r] = Factor<T>::values(x + r * p.x_stride);
      for (int v = 0; v < V; ++v) {
        auto w = Factor<T>::weights(at(v));
        for (int r = 0; r < R; ++r) sums[r][v] = Factor<T>::add(sums[r][v], values[r], w);
      }
    } else {
      typename Factor<T>::Weights w[V];
      for (int v = 0; v < V; ++v) w[v] = Factor<T>::weights(at(v));
      for (int r = 0; r < R; ++r) {
        auto values = Factor<T>::values(x + r * p.x_stride);
        for (int v = 0; v < V; ++v) sums[r][v] = Factor<T>::add(sums[r][v], values, w[v]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) total[r][v] = sums[r][v];
  }
}

template <int R, int V, typename T>
inline void run_pass(F (&sums)[R][V], const Pass<T>& p) {
  constexpr int64_t kRow = kPanelRows * Factor<T>::kDepth, kVecBytes = W * Factor<T>::kDepth * sizeof(T);
  if (p.spread_step) {
    const char* spread = reinterpret_cast<const char*>(p.spread);
    return run_steps(sums, p, 0, p.steps, [&](int64_t) {
      prefetch_line(spread);
      prefetch_line(spread + 64);
      spread += p.spread_step;
    });
  }
  auto fetch_row = [&](const T* row) {
    for (int v = 0; v < V; ++v) {
      if (v * kVecBytes % 64 == 0) {
        prefetch_line(reinterpret_cast<const char*>(row + v / kPanelVecs * p.panel_size) + v % kPanelVecs * kVecBytes);
      }
    }
  };
  int64_t near = p.steps > kAheadSteps ? p.steps - kAheadSteps : 0;
  run_steps(sums, p, 0, near, [&](int64_t step) { fetch_row(p.weights + (step + kAheadSteps) * kRow); });
  run_steps(sums, p, near, p.steps, [&](int64_t step) { fetch_row(p.next + (step - near) * kRow); });
}

template <typename T>
struct Linear {
  using Fa = Factor<T>;
  using Token = typename Fa::Token;
  static constexpr int64_t kDepth = Fa::kDepth;
  static constexpr int kRows = Fa::kRows, kWideRows = kRows / 3;
  static constexpr bool kAsTheyLie = sizeof(Token) == sizeof(T);

  const LinearArgs& a;
  LinearScratch& scratch;
  const Token* x = nullptr;
  int64_t x_stride = 0;
  int64_t token = 0, tokens = 0;  // the chunk
  int64_t panel_size = a.weight.steps * kDepth * kPanelRows;
  int64_t end_vec = 0;

  void begin_chunk(int64_t first) {
    token = first;
    tokens = a.tokens - first < a.chunk ? a.tokens - first : a.chunk;
    const T* from = static_cast<const T*>(a.x) + token * a.x_stride;
    int64_t columns = a.weight.columns;
    if constexpr (kAsTheyLie) {
      if (columns % kDepth == 0) {
        x = from;
        x_stride = a.x_stride;
        return;
      }
    }
    x_stride = a.weight.steps * kDepth;
    Token* to = reinterpret_cast<Token*>(scratch.x);
    x = to;
    for (int64_t t = 0; t < tokens; ++t, from += a.x_stride, to += x_stride) {
      for_vectors(columns, [&](int64_t k, auto lanes) { store(to + k, load(from + k, lanes), lanes); });
      if (columns % kDepth) to[columns] = Token{};
    }
  }

  template <int R, int V>
  void finish(const F (&sums)[R][V], int64_t first, int64_t vec) const {
    for (int v = 0; v < V; ++v) {
      int64_t row = (vec + v) * W, left = a.weight.rows - row;
      auto put = [&](auto lanes) {
        F bias = a.bias ? load(static_cast<const T*>(a.bias) + row, lanes) : set(0);
        for (int r = 0; r < R; ++r) {
          F y = a.bias ? sums[r][v] + bias : sums[r][v];
          int64_t at = (token + first + r) * a.out_stride + row;
          a.float_out ? store(static_cast<float*>(a.out) + at, y, lanes) : store(static_cast<T*>(a.out) + at, y, lanes);
        }
      };
      if (left >= W) {
        put(Full{});
      } else if (left > 0) {
        put(Part{static_cast<int>(left)});
      }
    }
  }

  // Tokens first .. first + R of the chunk, over steps of the pass; sums wait in the scratch between passes.
  template <int R, int V>
  void run_tile(Pass<T> pass, int64_t first, int64_t vec, int64_t step) const {
    F sums[R][V];
    float* room = scratch.out + first * kMaxOutputs;
    pass.x = x + first * x_stride + step * kDepth;
    pass.x_stride = x_stride;
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[r][v] = step ? load(room + r * kMaxOutputs + v * W) : set(0);
    }
    run_pass(sums, pass);
    if (step + pass.steps == a.weight.steps) return finish(sums, first, vec);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) store(room + r * kMaxOutputs + v * W, sums[r][v]);
    }
  }

  // The chunk times V vectors of outputs, at most Rows tokens at a time.
  template <int Rows, int V>
  void run_vectors(int64_t vec) const {
    const T* weights = static_cast<const T*>(a.weight.data);
    weights += vec / kPanelVecs * panel_size + vec % kPanelVecs * W * kDepth;
    int64_t tiles = (tokens + Rows - 1) / Rows, steps = tiles == 1 ? a.weight.steps : kBlockSteps;
    bool more = vec + V < end_vec;
    for (int64_t step = 0; step < a.weight.steps; step += steps) {
      int64_t left = a.weight.steps - step, count = left < steps ? left : steps;
      const T* here = weights + step * kPanelRows * kDepth;
      const T* after = more ? weights + (V + kPanelVecs - 1) / kPanelVecs * panel_size : here;
      if (count < left) after = here + count * kPanelRows * kDepth;
      int64_t block = count * kPanelRows * kDepth, size = sizeof(T);
      int64_t share = tiles > 1 ? V * block * W / kPanelRows / tiles : 0;  // of what is next, for each tile to fetch
      for (int64_t i = 0; i < tiles; ++i) {
        int64_t first = tokens * i / tiles, rows = tokens * (i + 1) / tiles - first;
        const T* spread = after + i * share / block * panel_size + i * share % block;
        with_rows<Rows>(rows, [&]<int R>() {
          Pass<T> pass{nullptr, 0, here, panel_size, count, after, spread, share * size / count};
          run_tile<R, V>(pass, first, vec, step);
        });
      }
    }
  }

  void run(int64_t begin, int64_t end) {
    end_vec = end * kPanelVecs;
    for (int64_t first = 0; first < a.tokens; first += a.chunk) {
      begin_chunk(first);
      for (int64_t vec = begin * kPanelVecs; vec < end_vec;) {
        int64_t left = end_vec - vec;
        if (tokens <= kWideRows && left >= 2 * kTileVecs) {
          run_vectors<kWideRows, 2 * kTileVecs>(vec);
          vec += 2 * kTileVecs;
        } else if (left >= kTileVecs) {
          run_vectors<kRows, kTileVecs>(vec);
          vec += kTileVecs;
        } else {
          run_vectors<kRows, kPanelVecs < kTileVecs ? kPanelVecs : kTileVecs>(vec);
          vec += kPanelVecs;
        }
      }
    }
  }
};

inline void linear(const LinearArgs& a, LinearScratch& scratch, int64_t begin, int64_t end) {
  with_type(a.weight.dtype, [&](auto type) { Linear<decltype(type)>{a, scratch}.run(begin, end); });
}

}  // namespace octavo::OCTAVO_TIER
