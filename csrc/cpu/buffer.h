// Room for a kernel's intermediate values.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace octavo {

// Memory that is kept between calls and only grows.
class Buffer {
 public:
  float* get(int64_t floats) {
    if (floats > size_) {
      size_ = (floats + 15) / 16 * 16;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(size_) * sizeof(float))));
      if (!data_) throw std::bad_alloc();
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

}  // namespace octavo
