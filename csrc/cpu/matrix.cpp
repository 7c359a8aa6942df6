#include "matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "buffer.h"
#include "pool.h"

namespace octavo {
namespace {

constexpr int64_t kChunkBytes = 1 << 19;  // of tokens as floats: half of an L2 cache
constexpr int64_t kMinChunk = 96, kMaxChunk = 384;
constexpr int64_t kPieceElements = 1 << 19;  // of weights, for one to 16 tokens: some 50 us
constexpr int64_t kTileSteps = 64;           // of a panel that stay in the L1 cache while rows are written

size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// fn(E{}) with an unsigned type of the dtype's size.
template <typename Fn>
void with_element(DType dtype, Fn fn) {
  dtype == DType::f32 ? fn(uint32_t{}) : fn(uint16_t{});
}

// Element (row, column) of the matrix.
template <typename E>
E* element(const Packed& m, int64_t row, int64_t column) {
  int64_t step = row / kPanelRows * m.steps + column / m.depth;
  return static_cast<E*>(m.data) + (step * kPanelRows + row % kPanelRows) * m.depth + column % m.depth;
}

}  // namespace

Matrix::Matrix(int64_t rows, int64_t columns, DType dtype)
    : packed_{nullptr, rows, columns, dtype == DType::bf16 ? 2 : 1, 0, dtype} {
  packed_.steps = (columns + packed_.depth - 1) / packed_.depth;
  bytes_ = std::max<size_t>(1, static_cast<size_t>(panels() * panel_size()) * size_of(dtype));
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(data, bytes_, MADV_HUGEPAGE);  // a wish; a matrix is read from end to end in every step
#endif
  packed_.data = data;
}

Matrix::~Matrix() { munmap(packed_.data, bytes_); }

int64_t Matrix::panels() const { return (packed_.rows + kPanelRows - 1) / kPanelRows; }
int64_t Matrix::panel_size() const { return packed_.steps * packed_.depth * kPanelRows; }

void Matrix::write(const void* x, int64_t x_stride, int64_t begin, int64_t count) {
  with_element(packed_.dtype, [&](auto type) {
    using E = decltype(type);
    const E* from = static_cast<const E*>(x) - begin * x_stride;
    int64_t first = begin / kPanelRows, last = (begin + count + kPanelRows - 1) / kPanelRows;
    Pool::get().parallel_for(last - first, 8, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        int64_t low = std::max(begin, (first + i) * kPanelRows), high = std::min(begin + count, (first + i + 1) * kPanelRows);
        for (int64_t column = 0; column < packed_.columns; column += kTileSteps * packed_.depth) {
          int64_t stop = std::min(packed_.columns, column + kTileSteps * packed_.depth);
          for (int64_t row = low; row < high; ++row) {
            for (int64_t k = column; k < stop; ++k) *element<E>(packed_, row, k) = from[row * x_stride + k];
          }
        }
      }
    });
  });
}

void Matrix::read(void* out, int64_t out_stride, const int64_t* ids, int64_t begin, int64_t count) const {
  with_element(packed_.dtype, [&](auto type) {
    using E = decltype(type);
    Pool::get().parallel_for(count, 16, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        E* to = static_cast<E*>(out) + i * out_stride;
        int64_t row = ids ? ids[i] : begin + i;
        for (int64_t k = 0; k < packed_.columns; ++k) to[k] = *element<E>(packed_, row, k);
      }
    });
  });
}

void Matrix::multiply(const Kernels& kernels, LinearArgs a) const {
  a.weight = packed_;
  int64_t chunks = 1, limit = std::clamp(kChunkBytes / (packed_.columns * 4 + 1), kMinChunk, kMaxChunk);
  if (a.tokens > limit) chunks = (a.tokens + limit - 1) / limit;
  a.chunk = std::max<int64_t>(1, (a.tokens + chunks - 1) / chunks);
  int64_t work = panels() * panel_size() * std::max<int64_t>(1, a.tokens / 16);
  // Equal shares, and some more pieces where there is much to do: a thread may lose its CPU.
  int64_t threads = Pool::get().size(), pieces = 1;
  if (work > kPieceElements / 8) pieces = threads * std::max<int64_t>(1, work / (threads * kPieceElements));
  pieces = std::min(pieces, std::max<int64_t>(1, panels() / 2));
  Pool::get().parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    thread_local Buffer buffer;
    float* room = buffer.get(a.chunk * (packed_.steps * packed_.depth + kMaxOutputs));
    LinearScratch scratch{room + a.chunk * kMaxOutputs, room};
    kernels.linear(a, scratch, panels() * begin / pieces, panels() * end / pieces);
  });
}

}  // namespace octavo
