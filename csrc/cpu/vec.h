// The vector type of the tier being compiled, loops over rows of it, and the functions of one variable that ops need.
// Every loop does the same operations in the same order for a given row length, whatever else is in the batch.
#pragma once

#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
#include "vec_avx512.h"
#elif defined(__AVX2__)
#include "vec_avx2.h"
#else
#include "vec_portable.h"
#endif

namespace octavo::OCTAVO_TIER {

struct Full {};
struct Part {
  int n;
};
template <typename T>
inline F load(const T* p, Full) {
  return load(p);
}
template <typename T>
inline F load(const T* p, Part part) {
  return load(p, part.n);
}
template <typename T>
inline void store(T* p, F x, Full) {
  store(p, x);
}
template <typename T>
inline void store(T* p, F x, Part part) {
  store(p, x, part.n);
}

// body(k, Full or Part) for each vector of 0 .. size.
template <typename Body>
inline void for_vectors(int64_t size, Body body) {
  int64_t k = 0;
  for (; k + W <= size; k += W) body(k, Full{});
  if (k < size) body(k, Part{static_cast<int>(size - k)});
}

// Sum of term(k, Full or Part) over the vectors of 0 .. size: four chains, then a fixed tree.
template <typename Term>
inline float sum_vectors(int64_t size, Term term) {
  F chain[4] = {set(0), set(0), set(0), set(0)};
  int64_t k = 0;
  for (; k + 4 * W <= size; k += 4 * W) {
    for (int i = 0; i < 4; ++i) chain[i] = chain[i] + term(k + i * W, Full{});
  }
  for (; k + W <= size; k += W) chain[0] = chain[0] + term(k, Full{});
  if (k < size) chain[1] = chain[1] + term(k, Part{static_cast<int>(size - k)});
  return sum((chain[0] + chain[1]) + (chain[2] + chain[3]));
}

// fn(T{}) with the C++ type of a dtype.
template <typename Fn>
inline void with_type(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(bf16{});
    case DType::f16:
      return fn(f16{});
  }
}

template <typename T>
inline T* row_of(const Rows& rows, int64_t i) {
  return static_cast<T*>(rows.data) + i / rows.inner * rows.outer_stride + i % rows.inner * rows.inner_stride;
}

// fn(i) for the integral constants i = 0 .. N - 1. Arrays that only these index stay in registers: gcc 12 writes others to
// memory in every round of a loop around them.
template <int N, typename Fn>
__attribute__((always_inline)) inline void unrolled(Fn fn) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (fn(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// fn(integral constant R) with R = rows, 1 .. kTileRows.
template <int R = kTileRows, typename Fn>
inline void with_rows(int64_t rows, Fn fn) {
  if constexpr (R == 1) {
    fn.template operator()<1>();
  } else if (rows >= R) {
    fn.template operator()<R>();
  } else {
    with_rows<R - 1>(rows, fn);
  }
}

// As assembly on x86: gcc 12 deletes calls to functions that do nothing but prefetch.
inline void prefetch_line(const char* p) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 %0" : : "m"(*p));
#else
  __builtin_prefetch(p);
#endif
}
inline void prefetch_line_l2(const char* p) {
#if defined(__x86_64__)
  asm volatile("prefetcht1 %0" : : "m"(*p));
#else
  __builtin_prefetch(p, 0, 2);
#endif
}
inline void prefetch(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) prefetch_line(static_cast<const char*>(p) + i);
}

// e^x to 2 ulp (range reduction and polynomial of the Cephes library); 0 below -87.3, at most e^88; NaN stays NaN.
inline F exp(F x) {
  F y = min(set(88.0f), max(set(-87.3f), x));
  F n = round(y * set(1.44269504088896341f));
  F r = fma(n, set(2.12194440e-4f), fma(n, set(-0.693359375f), y));
  F p = fma(set(1.9875691500e-4f), r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  F e = fma(p, r * r, r + set(1.0f)) * exp2_whole(n);
  return select_less(x, set(-87.3f), set(0.0f), e);
}
inline float exp(float x) {
  float lanes[W];
  store(lanes, exp(set(x)));
  return lanes[0];
}

// tanh: an odd polynomial near 0 (Cephes), where 1 - 2 / (e^2x + 1) would cancel.
inline F tanh(F x) {
  F far = set(1.0f) - set(2.0f) / (exp(x + x) + set(1.0f));
  F z = x * x;
  F p = fma(set(-5.70498872745e-3f), z, set(2.06390887954e-2f));
  p = fma(p, z, set(-5.37397155531e-2f));
  p = fma(p, z, set(1.33314422036e-1f));
  p = fma(p, z, set(-3.33332819422e-1f));
  return select_less(abs(x), set(0.625f), fma(p * z, x, x), far);
}

inline F silu(F x) { return x / (set(1.0f) + exp(set(0.0f) - x)); }
inline F gelu_tanh(F x) {
  F u = set(0.7978845608028654f) * fma(set(0.044715f) * x * x, x, x);
  return set(0.5f) * x * (set(1.0f) + tanh(u));
}
// x times the normal distribution function, through erfc (Abramowitz and Stegun 7.1.26, absolute error 1.5e-7).
inline F gelu(F x) {
  F z = abs(x) * set(0.70710678118654752f);
  F t = set(1.0f) / fma(set(0.3275911f), z, set(1.0f));
  F p = fma(set(1.061405429f), t, set(-1.453152027f));
  p = fma(p, t, set(1.421413741f));
  p = fma(p, t, set(-0.284496736f));
  p = fma(p, t, set(0.254829592f));
  F tail = set(0.5f) * p * t * exp(set(0.0f) - z * z);
  return x * select_less(x, set(0.0f), tail, set(1.0f) - tail);
}

}  // namespace octavo::OCTAVO_TIER
