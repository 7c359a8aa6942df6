#include "matrix.h"

#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "memory.h"
#include "pool.h"

namespace octavo {
namespace {

constexpr int64_t kPieceElements = 1 << 19;  // of weights, for one to 16 tokens: some 50 us
constexpr int64_t kWriteSteps = 64;          // of a panel that stay in the L1 cache while rows are written

size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// fn(U{}) with an unsigned type of the size of a step of one row: what packing moves.
template <typename Fn>
void with_unit(DType dtype, Fn fn) {
  dtype == DType::f16 ? fn(uint16_t{}) : fn(uint32_t{});
}

// The first step of a row; the next one is kPanelRows further.
template <typename U>
U* first_step(const Packed& m, int64_t row) {
  return static_cast<U*>(m.data) + row / kPanelRows * m.steps * kPanelRows + row % kPanelRows;
}

float* thread_room(int64_t floats) {
  thread_local Buffer buffer;
  return buffer.get(floats);
}

}  // namespace

Matrix::Matrix(int64_t rows, int64_t columns, DType dtype)
    : packed_{nullptr, rows, columns, dtype == DType::bf16 ? 2 : 1, 0, dtype} {
  int64_t unit = dtype == DType::bf16 ? kTileSteps : 1;
  packed_.steps = (columns + packed_.depth * unit - 1) / (packed_.depth * unit) * unit;
  memory_ = allocate(static_cast<size_t>(panels() * panel_size()) * size_of(dtype));
  packed_.data = memory_.get();
}

int64_t Matrix::panels() const { return (packed_.rows + kPanelRows - 1) / kPanelRows; }
int64_t Matrix::panel_size() const { return packed_.steps * packed_.depth * kPanelRows; }

void Matrix::write(const void* x, int64_t x_stride, int64_t begin, int64_t count) {
  with_unit(packed_.dtype, [&](auto type) {
    using U = decltype(type);
    int64_t row_bytes = packed_.columns * static_cast<int64_t>(size_of(packed_.dtype));
    int64_t whole = row_bytes / static_cast<int64_t>(sizeof(U)), end = begin + count;
    auto row_of = [&](int64_t row) {
      return static_cast<const char*>(x) + (row - begin) * x_stride * static_cast<int64_t>(size_of(packed_.dtype));
    };
    int64_t first = begin / kPanelRows, last = (end + kPanelRows - 1) / kPanelRows;
    Pool::get().parallel_for(last - first, 4, [&](int64_t panel, int64_t stop) {
      int64_t low = std::max(begin, (first + panel) * kPanelRows), high = std::min(end, (first + stop) * kPanelRows);
      for (int64_t group = low; group < high; group = (group / kPanelRows + 1) * kPanelRows) {
        int64_t group_end = std::min(high, (group / kPanelRows + 1) * kPanelRows);
        for (int64_t step = 0; step < packed_.steps; step += kWriteSteps) {
          int64_t full = std::min(whole, step + kWriteSteps);
          for (int64_t row = group; row < group_end; ++row) {
            const char* from = row_of(row);
            U* to = first_step<U>(packed_, row);
            for (int64_t s = step; s < full; ++s) std::memcpy(to + s * kPanelRows, from + s * sizeof(U), sizeof(U));
          }
        }
        for (int64_t row = group; row < group_end && whole < packed_.steps; ++row) {
          U* to = first_step<U>(packed_, row) + whole * kPanelRows;
          std::memcpy(to, row_of(row) + whole * sizeof(U), row_bytes % sizeof(U));
        }
      }
    });
  });
}

void Matrix::read(void* out, int64_t out_stride, const int64_t* ids, int64_t begin, int64_t count) const {
  with_unit(packed_.dtype, [&](auto type) {
    using U = decltype(type);
    size_t size = size_of(packed_.dtype), row_bytes = static_cast<size_t>(packed_.columns) * size;
    Pool::get().parallel_for(count, 16, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        char* to = static_cast<char*>(out) + static_cast<size_t>(i * out_stride) * size;
        const U* from = first_step<U>(packed_, ids ? ids[i] : begin + i);
        size_t whole = row_bytes / sizeof(U);
        for (size_t s = 0; s < whole; ++s) std::memcpy(to + s * sizeof(U), from + s * kPanelRows, sizeof(U));
        std::memcpy(to + whole * sizeof(U), from + whole * kPanelRows, row_bytes % sizeof(U));
      }
    });
  });
}

void Matrix::multiply(const Kernels& kernels, LinearArgs a) const {
  a.weight = packed_;
  int64_t work = panels() * panel_size() * std::max<int64_t>(1, a.tokens / 16);
  // Equal shares, and some more pieces where there is much to do: a thread may lose its CPU.
  int64_t threads = Pool::get().size(), pieces = 1;
  if (work > kPieceElements / 8) pieces = threads * std::max<int64_t>(1, work / (threads * kPieceElements));
  pieces = std::min(pieces, std::max<int64_t>(1, panels() / 2));
  Pool::get().parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    kernels.linear(a, thread_room, panels() * begin / pieces, panels() * end / pieces);
  });
}

}  // namespace octavo
