// A weight matrix in memory of its own, held once, in the order its products read it.
#pragma once

#include <memory>

#include "kernels.h"

namespace octavo {

class Matrix {
 public:
  // [rows, columns], zero until written.
  Matrix(int64_t rows, int64_t columns, DType dtype);
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  // Rows begin .. begin + count from x [count, columns].
  void write(const void* x, int64_t x_stride, int64_t begin, int64_t count);
  // out[i] = row ids[i], or row begin + i where ids is null.
  void read(void* out, int64_t out_stride, const int64_t* ids, int64_t begin, int64_t count) const;
  // out = x @ matrix.T + bias; see LinearArgs.
  void multiply(const Kernels& kernels, LinearArgs args) const;

 private:
  int64_t panels() const;
  int64_t panel_size() const;
  Packed packed_;
  std::shared_ptr<void> memory_;
};

}  // namespace octavo
