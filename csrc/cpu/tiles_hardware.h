// AMX tiles. Inline assembly: gcc 12's own intrinsics say neither that a configuration is 64 bytes nor that loads and
// stores touch memory, and then drop the stores to either.
#pragma once

#include <cstdint>

namespace octavo::OCTAVO_TIER {

// Eight tiles of up to 16 rows of 64 bytes. The instructions fault without a configuration, which belongs to the thread and
// which other libraries replace: so each kernel call loads its own, and leaves none.
class Tiles {
 public:
  // rows[i]: of tile i.
  void configure(const uint8_t (&rows)[8]) {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof(Config) == 64);
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = rows[i];
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int I>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(I));
  }
  template <int I>
  void load(const void* p, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride_bytes), "i"(I) : "memory");
  }
  template <int I>
  void store(void* p, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride_bytes), "i"(I) : "memory");
  }
  // C[m][n] += A[m] . B[n] over 32 columns: A rows of bf16, B rows of 16 pairs.
  template <int C, int A, int B>
  void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace octavo::OCTAVO_TIER
