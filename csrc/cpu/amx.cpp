// The AMX tier: bf16 products with tiles; the rest is the best tier's below. Compiled once with tiles of the hardware, and
// once with tiles in plain memory.
#include "linear_tiles.h"

#if defined(OCTAVO_SOFTWARE_TILES)
#include "tiles_software.h"
#define OCTAVO_BASE_KERNELS portable_kernels
#define OCTAVO_TABLE amx_software_kernels
#else
#include "tiles_hardware.h"
#define OCTAVO_BASE_KERNELS avx512_bf16_kernels
#define OCTAVO_TABLE amx_kernels
#endif

#define OCTAVO_STRING_(x) #x
#define OCTAVO_STRING(x) OCTAVO_STRING_(x)

namespace octavo {
namespace OCTAVO_TIER {
namespace {

void linear(const LinearArgs& a, Room room, int64_t begin, int64_t end) {
  if (a.weight.dtype != DType::bf16) return OCTAVO_BASE_KERNELS()->linear(a, room, begin, end);
  if (a.tokens) TileLinear<Tiles>(a, room).run(begin, end);
}

Kernels make_table() {
  Kernels table = *OCTAVO_BASE_KERNELS();
  table.name = OCTAVO_STRING(OCTAVO_TIER);
  table.linear = linear;
  return table;
}

}  // namespace
}  // namespace OCTAVO_TIER

const Kernels* OCTAVO_TABLE() {
  static const Kernels table = OCTAVO_TIER::make_table();
  return &table;
}

}  // namespace octavo
