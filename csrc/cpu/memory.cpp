#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kRegion = size_t{64} << 20, kLine = 64;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Region {
  explicit Region(size_t bytes) : mapped(round_up(bytes, kHugePage) + kHugePage) {
    memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    begin = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(memory), kHugePage));
#if defined(MADV_HUGEPAGE)
    madvise(begin, mapped - kHugePage, MADV_HUGEPAGE);  // a wish
#endif
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { munmap(memory, mapped); }

  size_t mapped, used = 0;
  void* memory;
  char* begin;
};

}  // namespace

std::shared_ptr<void> allocate(size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<Region> last;
  bytes = round_up(std::max<size_t>(bytes, 1), kLine);
  if (bytes > kRegion / 4) {
    auto own = std::make_shared<Region>(bytes);
    return {own, own->begin};
  }
  std::lock_guard lock(mutex);
  auto region = last.lock();
  if (!region || kRegion - region->used < bytes) last = region = std::make_shared<Region>(kRegion);
  void* data = region->begin + region->used;
  region->used += bytes;
  return {region, data};
}

}  // namespace octavo
