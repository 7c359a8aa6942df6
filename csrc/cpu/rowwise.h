// Ops whose every row (token, or token and head) stands alone: norms, gated activations, scales, rope, writes to
// KV pages.
#pragma once

#include "vec.h"

namespace octavo::OCTAVO_TIER {

// out = x / sqrt(mean(x^2) + eps) * weight in float32, rounded once; out may be x.
template <typename T, typename Wt>
inline void norm_row(T* out, const T* x, const Wt* weight, float eps, int64_t hidden) {
  float squares = sum_vectors(hidden, [&](int64_t k, auto lanes) {
    F v = load(x + k, lanes);
    return v * v;
  });
  F scale = set(1.0f / __builtin_sqrtf(squares / static_cast<float>(hidden) + eps));
  for_vectors(hidden, [&](int64_t k, auto lanes) {
    store(out + k, load(x + k, lanes) * scale * load(weight + k, lanes), lanes);
  });
}

// With a residual: residual += x, rounded, and then the norm of the residual.
inline void norm(const NormArgs& a, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    with_type(a.weight_dtype, [&](auto weight_type) {
      auto* weight = static_cast<const decltype(weight_type)*>(a.weight);
      for (int64_t i = begin; i < end; ++i) {
        T* x = row_of<T>(a.x, i);
        if (a.residual.data) {
          T* residual = row_of<T>(a.residual, i);
          for_vectors(a.hidden, [&](int64_t k, auto lanes) {
            store(residual + k, load(residual + k, lanes) + load(x + k, lanes), lanes);
          });
          x = residual;
        }
        norm_row(row_of<T>(a.out, i), x, weight, a.eps, a.hidden);
      }
    });
  });
}

template <typename Act>
inline void gated(const GatedArgs& a, int64_t begin, int64_t end, Act act) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t t = begin; t < end; ++t) {
      const T* gate = static_cast<const T*>(a.x) + t * a.x_stride;
      T* out = static_cast<T*>(a.out) + t * a.out_stride;
      for_vectors(a.size, [&](int64_t k, auto lanes) {
        store(out + k, act(load(gate + k, lanes)) * load(gate + a.size + k, lanes), lanes);
      });
    }
  });
}
inline void silu_mul(const GatedArgs& a, int64_t begin, int64_t end) {
  gated(a, begin, end, [](F x) { return silu(x); });
}
inline void gelu_tanh_mul(const GatedArgs& a, int64_t begin, int64_t end) {
  gated(a, begin, end, [](F x) { return gelu_tanh(x); });
}
inline void gelu_mul(const GatedArgs& a, int64_t begin, int64_t end) {
  gated(a, begin, end, [](F x) { return gelu(x); });
}

// x *= factor, rounded once.
inline void scale(const ScaleArgs& a, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    F factor = set(a.factor);
    for (int64_t t = begin; t < end; ++t) {
      T* x = static_cast<T*>(a.x) + t * a.x_stride;
      for_vectors(a.size, [&](int64_t k, auto lanes) { store(x + k, load(x + k, lanes) * factor, lanes); });
    }
  });
}

// Pairs (i, i + rotary / 2).
template <typename T>
inline void rotate_halves(T* x, const float* cos, int64_t half) {
  for_vectors(half, [&](int64_t i, auto lanes) {
    F a = load(x + i, lanes), b = load(x + half + i, lanes);
    F c = load(cos + i, lanes), s = load(cos + half + i, lanes);
    store(x + i, a * c - b * s, lanes);
    store(x + half + i, b * c + a * s, lanes);
  });
}
// Pairs (2 i, 2 i + 1), through a buffer that holds them apart.
template <typename T>
inline void rotate_neighbours(T* x, const float* cos, int64_t half) {
  float even[W], odd[W], both[2 * W];
  for (int64_t i = 0; i < half; i += W) {
    int n = static_cast<int>(half - i < W ? half - i : W);
    for_vectors(2 * n, [&](int64_t k, auto lanes) { store(both + k, load(x + 2 * i + k, lanes), lanes); });
    for (int j = 0; j < n; ++j) even[j] = both[2 * j], odd[j] = both[2 * j + 1];
    F a = load(even, n), b = load(odd, n), c = load(cos + i, n), s = load(cos + half + i, n);
    store(even, a * c - b * s);
    store(odd, b * c + a * s);
    for (int j = 0; j < n; ++j) both[2 * j] = even[j], both[2 * j + 1] = odd[j];
    for_vectors(2 * n, [&](int64_t k, auto lanes) { store(x + 2 * i + k, load(both + k, lanes), lanes); });
  }
}

inline void rope(const RopeArgs& a, bool interleaved, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t t = begin; t < end; ++t) {
      const float* cos = a.cos_sin + a.positions[t] * a.rotary;
      auto rotate = [&](void* data, int64_t stride, int64_t heads) {
        for (int64_t h = 0; h < heads; ++h) {
          T* x = static_cast<T*>(data) + t * stride + h * a.head_dim;
          interleaved ? rotate_neighbours(x, cos, a.rotary / 2) : rotate_halves(x, cos, a.rotary / 2);
        }
      };
      rotate(a.q, a.q_stride, a.q_heads);
      rotate(a.k, a.k_stride, a.k_heads);
    }
  });
}

inline void write_kv(const WriteKVArgs& a, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    with_type(a.kv_dtype, [&](auto kv_type) {
      using P = decltype(kv_type);
      for (int64_t t = begin; t < end; ++t) {
        int64_t slot = a.slot_mapping[t];
        if (slot < 0) continue;
        for (int64_t g = 0; g < a.kv_heads; ++g) {
          int64_t place = g * a.head_stride + slot % a.block_size * a.head_dim;
          P* key = static_cast<P*>(a.pages) + slot / a.block_size * a.page_stride + place;
          P* value = key + a.value_offset;
          const T* k = static_cast<const T*>(a.k) + t * a.k_stride + g * a.head_dim;
          const T* v = static_cast<const T*>(a.v) + t * a.v_stride + g * a.value_dim;
          for_vectors(a.head_dim, [&](int64_t d, auto lanes) { store(key + d, load(k + d, lanes), lanes); });
          for_vectors(a.value_dim, [&](int64_t d, auto lanes) { store(value + d, load(v + d, lanes), lanes); });
        }
      }
    });
  });
}

}  // namespace octavo::OCTAVO_TIER
