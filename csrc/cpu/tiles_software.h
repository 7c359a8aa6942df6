// AMX tiles in plain memory, to the last bit: for tests, and to check the hardware against.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo::OCTAVO_TIER {

// Intel's definition of TDPBF16PS: subnormal numbers count as zero where they enter and where they leave, whatever the
// thread's floating-point mode says; every result is rounded to nearest even.
class Tiles {
 public:
  void configure(const uint8_t (&rows)[8]) { std::memcpy(rows_, rows, sizeof rows_); }
  void release() {}

  template <int I>
  void zero() {
    std::memset(tiles_[I], 0, sizeof tiles_[I]);
  }
  template <int I>
  void load(const void* p, int64_t stride_bytes) {
    for (int r = 0; r < rows_[I]; ++r) std::memcpy(tiles_[I][r], static_cast<const char*>(p) + r * stride_bytes, 64);
  }
  template <int I>
  void store(void* p, int64_t stride_bytes) {
    for (int r = 0; r < rows_[I]; ++r) std::memcpy(static_cast<char*>(p) + r * stride_bytes, tiles_[I][r], 64);
  }
  // C[m][n] += A[m] . B[n]: a chain over the even columns and one over the odd ones, from zero; then their sum.
  template <int C, int A, int B>
  void dot() {
    for (int m = 0; m < rows_[C]; ++m) {
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < 16; ++k) {
        uint32_t pair = tiles_[A][m][k];
        double low = widen(pair << 16), high = widen(pair & 0xffff0000u);
        for (int n = 0; n < 16; ++n) {
          uint32_t w = tiles_[B][k][n];
          even[n] = narrow(low * widen(w << 16) + even[n]);
          odd[n] = narrow(high * widen(w & 0xffff0000u) + odd[n]);
        }
      }
      for (int n = 0; n < 16; ++n) {
        float sum = narrow(double{even[n]} + odd[n]);
        float c = static_cast<float>(widen(tiles_[C][m][n]));
        tiles_[C][m][n] = __builtin_bit_cast(uint32_t, narrow(double{c} + sum));
      }
    }
  }

 private:
  static double widen(uint32_t bits) { return __builtin_bit_cast(float, bits & 0x7f800000u ? bits : bits & 0x80000000u); }
  // A product of two bf16 is exact in double, and so close is its sum with a float that rounding it twice equals rounding
  // it once. A result that would be subnormal even with an unbounded exponent is zero.
  static float narrow(double x) {
    float y = static_cast<float>(x);
    return (x < 0x1.ffffffp-127 && x > -0x1.ffffffp-127) ? __builtin_copysignf(0.0f, y) : y;
  }

  uint8_t rows_[8] = {};
  uint32_t tiles_[8][16][16];
};

}  // namespace octavo::OCTAVO_TIER
