// One instruction-set tier. Compiled once per tier, with OCTAVO_TIER naming it and the matching -m flags.
#include "attention.h"
#include "ceiling.h"
#include "linear.h"
#include "rowwise.h"
#include "sample.h"

#define OCTAVO_STRING_(x) #x
#define OCTAVO_STRING(x) OCTAVO_STRING_(x)
#define OCTAVO_JOIN_(a, b) a##b
#define OCTAVO_JOIN(a, b) OCTAVO_JOIN_(a, b)

namespace octavo {

const Kernels* OCTAVO_JOIN(OCTAVO_TIER, _kernels)() {
  using namespace OCTAVO_TIER;
  static constexpr Kernels table = {
      OCTAVO_STRING(OCTAVO_TIER), W, norm, rope, write_kv, silu_mul, gelu_tanh_mul, gelu_mul, scale, attend, merge, finish, linear,
      find_peaks, mass, collect, read, multiply_add,
  };
  return &table;
}

}  // namespace octavo
