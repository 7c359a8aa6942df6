// The types are those of ggml (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). A value is one product,
// and one sum where there is a minimum, each rounded to float: the values of the `gguf` package, to the last bit.
#include "dequantize.h"

#include <bit>
#include <cstring>
#include <unordered_map>

#include "pool.h"

namespace octavo {
namespace {

constexpr int64_t kPieceElements = 1 << 15;

float half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  float tiny = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

// 32 values of 4 or 5 bits: scale [, minimum] [, fifth bits], 16 bytes with the first half in the low nibbles.
template <bool has_min, bool has_fifth>
struct Simple {
  static constexpr int kElements = 32, kBytes = 18 + 2 * has_min + 4 * has_fifth;
  static void expand(float* out, const uint8_t* b) {
    float d = half(b), m = has_min ? half(b + 2) : 0;
    uint32_t fifth = 0;
    if constexpr (has_fifth) std::memcpy(&fifth, b + 2 + 2 * has_min, 4);
    const uint8_t* q = b + kBytes - 16;
    constexpr int kZero = has_min ? 0 : has_fifth ? 16 : 8;
    for (int part = 0; part < 2; ++part) {
      for (int i = 0; i < 16; ++i) {
        int value = q[i] >> 4 * part & 15;
        if constexpr (has_fifth) value |= (fifth >> (16 * part + i) & 1) << 4;
        float product = d * static_cast<float>(value - kZero);
        out[16 * part + i] = has_min ? product + m : product;
      }
    }
  }
};

struct Q8_0 {
  static constexpr int kElements = 32, kBytes = 34;
  static void expand(float* out, const uint8_t* b) {
    float d = half(b);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
  }
};

// 256 values. scales [16], qs [64], scale, minimum: 16 groups with a scale and a minimum of 4 bits each.
struct Q2_K {
  static constexpr int kElements = 256, kBytes = 84;
  static void expand(float* out, const uint8_t* b) {
    const uint8_t* q = b + 16;
    float d = half(b + 80), dmin = half(b + 82);
    for (int group = 0; group < 16; ++group) {
      float scale = d * static_cast<float>(b[group] & 15), min = dmin * static_cast<float>(b[group] >> 4);
      int shift = group / 2 % 4 * 2;
      const uint8_t* from = q + group / 8 * 32 + group % 2 * 16;
      for (int i = 0; i < 16; ++i) out[16 * group + i] = scale * static_cast<float>(from[i] >> shift & 3) - min;
    }
  }
};

// hmask [32], qs [64], scales [12], scale: 16 groups with a scale of 6 bits. The third bit is in hmask, inverted.
struct Q3_K {
  static constexpr int kElements = 256, kBytes = 110;
  static void expand(float* out, const uint8_t* b) {
    const uint8_t *q = b + 32, *scales = b + 96;
    float d = half(b + 108);
    for (int group = 0; group < 16; ++group) {
      int low = scales[group % 8] >> group / 8 * 4 & 15, high = scales[8 + group % 4] >> group / 4 * 2 & 3;
      float scale = d * static_cast<float>((low | high << 4) - 32);
      int shift = group / 2 % 4 * 2, column = group % 2 * 16;
      const uint8_t* from = q + group / 8 * 32 + column;
      for (int i = 0; i < 16; ++i) {
        int value = (from[i] >> shift & 3) - ((b[column + i] >> group / 2 & 1) ^ 1) * 4;
        out[16 * group + i] = scale * static_cast<float>(value);
      }
    }
  }
};

// scale, minimum, scales [12] [, fifth bits [32]], qs [128]: 8 groups with a scale and a minimum of 6 bits each.
template <bool has_fifth>
struct Nested {
  static constexpr int kElements = 256, kBytes = has_fifth ? 176 : 144;
  static void expand(float* out, const uint8_t* b) {
    const uint8_t *s = b + 4, *fifth = b + 16, *q = b + kBytes - 128;
    float d = half(b), dmin = half(b + 2);
    for (int group = 0; group < 8; ++group) {
      int k = group % 4;
      bool late = group > 3;
      float scale = d * static_cast<float>(late ? (s[8 + k] & 15) | (s[k] >> 2 & 0x30) : s[k] & 63);
      float min = dmin * static_cast<float>(late ? s[8 + k] >> 4 | (s[4 + k] >> 2 & 0x30) : s[4 + k] & 63);
      const uint8_t* from = q + group / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        int value = from[i] >> group % 2 * 4 & 15;
        if constexpr (has_fifth) value |= (fifth[i] >> group & 1) << 4;
        out[32 * group + i] = scale * static_cast<float>(value) - min;
      }
    }
  }
};

// ql [128], qh [64], scales [16], scale: 16 groups with a scale of 8 bits.
struct Q6_K {
  static constexpr int kElements = 256, kBytes = 210;
  static void expand(float* out, const uint8_t* b) {
    const uint8_t *low = b, *high = b + 128, *scales = b + 192;
    float d = half(b + 208);
    for (int group = 0; group < 16; ++group) {
      float scale = d * static_cast<float>(static_cast<int8_t>(scales[group]));
      const uint8_t* from_low = low + group / 8 * 64 + group % 4 * 16;
      const uint8_t* from_high = high + group / 8 * 32 + group % 2 * 16;
      int low_shift = group / 4 % 2 * 4, high_shift = group / 2 % 4 * 2;
      for (int i = 0; i < 16; ++i) {
        int value = (from_low[i] >> low_shift & 15) | (from_high[i] >> high_shift & 3) << 4;
        out[16 * group + i] = scale * static_cast<float>(value - 32);
      }
    }
  }
};

using Expand = void (*)(float*, const uint8_t*, int64_t);

template <typename Type>
void expand_all(float* out, const uint8_t* blocks, int64_t count) {
  Pool::get().parallel_for(count, kPieceElements / Type::kElements, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) Type::expand(out + i * Type::kElements, blocks + i * Type::kBytes);
  });
}

const std::unordered_map<std::string, Expand> kTypes = {
    {"Q4_0", expand_all<Simple<false, false>>}, {"Q4_1", expand_all<Simple<true, false>>},
    {"Q5_0", expand_all<Simple<false, true>>},  {"Q5_1", expand_all<Simple<true, true>>},
    {"Q8_0", expand_all<Q8_0>},                 {"Q2_K", expand_all<Q2_K>},
    {"Q3_K", expand_all<Q3_K>},                 {"Q4_K", expand_all<Nested<false>>},
    {"Q5_K", expand_all<Nested<true>>},         {"Q6_K", expand_all<Q6_K>},
};

}  // namespace

bool dequantize(const std::string& type, float* out, const uint8_t* blocks, int64_t count) {
  auto found = kTypes.find(type);
  if (found == kTypes.end()) return false;
  found->second(out, blocks, count);
  return true;
}

}  // namespace octavo
