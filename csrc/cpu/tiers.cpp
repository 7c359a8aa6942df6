#include "tiers.h"

#include <cerrno>
#include <cstring>

#if defined(OCTAVO_AMX_TIER)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

struct Found {
  std::vector<const Kernels*> tiers;
  std::string amx_refusal;
};

float* self_test_room(int64_t floats) {
  static float room[1 << 14];
  return floats <= 1 << 14 ? room : nullptr;
}

// Whether two tiers agree on a product to the last bit: 64 outputs of 64 columns, for few tokens and for many.
bool same_product(const Kernels& one, const Kernels& other) {
  constexpr int kTokens = 19, kOutputs = 2 * kPanelRows, kColumns = 64;
  static uint16_t x[kTokens * kColumns], w[kOutputs * kColumns];
  static float out[2][kTokens * kOutputs];
  uint32_t state = 1;
  auto next = [&state] {  // bf16 in +- 0.5 .. 2
    state = state * 1664525 + 1013904223;
    return static_cast<uint16_t>((state >> 16 & 0x8000) | 0x3f00 | (state >> 8 & 0xff));
  };
  for (uint16_t& value : x) value = next();
  for (uint16_t& value : w) value = next();
  for (int64_t tokens : {3, kTokens}) {
    LinearArgs a{};
    a.x = x, a.x_stride = kColumns, a.tokens = tokens, a.out_stride = kOutputs, a.float_out = true, a.shards = 1;
    a.weight = {w, kOutputs, kColumns, 2, kColumns / 2, DType::bf16};
    a.out = out[0];
    one.linear(a, self_test_room, 0, 2);
    a.out = out[1];
    other.linear(a, self_test_room, 0, 2);
    if (std::memcmp(out[0], out[1], static_cast<size_t>(tokens) * kOutputs * sizeof(float)) != 0) return false;
  }
  return true;
}

#if defined(OCTAVO_AMX_TIER)
constexpr int kTileConfigState = 17, kTileDataState = 18;

bool cpu_has_amx() {
  unsigned a, b, c, d = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmxBf16) && (d & kAmxTile);
}

bool saves_tiles() {  // at a context switch; AVX was found usable before, so xgetbv exists
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> kTileConfigState & 1) && (low >> kTileDataState & 1);
}

// Asks Linux for the tile registers, for all threads of the process. Refused by kernels before 5.16, by some containers, and
// where a thread has a signal stack too small for them. A first use without permission would be a SIGILL.
std::string ask_for_tiles() {
  constexpr int kGetPermission = 0x1022, kRequestPermission = 0x1023;
  if (!saves_tiles()) return "the operating system does not save its registers";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileDataState) != 0) {
    return std::string("the operating system refused permission: ") + std::strerror(errno);
  }
  uint64_t granted = 0;
  if (syscall(SYS_arch_prctl, kGetPermission, &granted) != 0 || !(granted >> kTileDataState & 1)) {
    return "the operating system granted no permission";
  }
  return {};
}
#endif

Found find() {
  Found found{{portable_kernels()}, {}};
#if defined(OCTAVO_X86_TIERS)
  auto& tiers = found.tiers;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tiers.push_back(avx2_kernels());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    tiers.push_back(avx512_kernels());
    if (__builtin_cpu_supports("avx512bf16")) tiers.push_back(avx512_bf16_kernels());
  }
#if defined(OCTAVO_AMX_TIER)
  if (cpu_has_amx() && tiers.back() == avx512_bf16_kernels()) {
    found.amx_refusal = ask_for_tiles();
    if (found.amx_refusal.empty() && !same_product(*amx_kernels(), *amx_software_kernels())) {
      found.amx_refusal = "a product to test it came out wrong";
    }
    if (found.amx_refusal.empty()) tiers.push_back(amx_kernels());
  }
#endif
#endif
  return found;
}

const Found& found() {
  static const Found once = find();
  return once;
}

}  // namespace

const std::vector<const Kernels*>& runnable_tiers() { return found().tiers; }
const std::string& amx_refusal() { return found().amx_refusal; }

const Kernels* find_tier(const std::string& name) {
  for (const Kernels* tier : runnable_tiers()) {
    if (tier->name == name) return tier;
  }
  return name == amx_software_kernels()->name ? amx_software_kernels() : nullptr;
}

}  // namespace octavo
