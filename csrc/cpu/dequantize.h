// Blocks of GGUF's quantized types to floats.
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

// The values of `count` blocks, side by side in `out`. False, and nothing is done, for a type that is not among these.
bool dequantize(const std::string& type, float* out, const uint8_t* blocks, int64_t count);

}  // namespace octavo
