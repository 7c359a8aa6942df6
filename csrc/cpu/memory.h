// Memory in huge pages, for what is read from end to end in every step: with small ones a core waits as long for the
// places of the pages as for what is in them.
#pragma once

#include <cstddef>
#include <memory>

namespace octavo {

// Zeroed bytes, from the beginning of a cache line. Small pieces lie side by side in a region, which ends with the last.
// Throws std::bad_alloc.
std::shared_ptr<void> allocate(size_t bytes);

}  // namespace octavo
