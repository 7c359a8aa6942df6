#include "ops.h"

#include <algorithm>
#include <atomic>

#include "pool.h"

namespace octavo {
namespace {

// Elements that make a piece worth handing to another thread (some 5 us).
constexpr int64_t kPiece = 16384;

template <typename Body>
void over_rows(int64_t rows, int64_t row_size, const Body& body) {
  Pool::get().parallel_for(rows, std::max<int64_t>(1, kPiece / std::max<int64_t>(row_size, 1)), body);
}

}  // namespace

void norm(const Kernels& kernels, const NormArgs& args, int64_t rows) {
  over_rows(rows, args.hidden, [&](int64_t begin, int64_t end) { kernels.norm(args, begin, end); });
}

void rope(const Kernels& kernels, const RopeArgs& args, bool interleaved, int64_t tokens) {
  over_rows(tokens, (args.q_heads + args.k_heads) * args.rotary,
            [&](int64_t begin, int64_t end) { kernels.rope(args, interleaved, begin, end); });
}

void write_kv(const Kernels& kernels, const WriteKVArgs& args, int64_t tokens) {
  over_rows(tokens, 2 * args.kv_heads * args.head_dim,
            [&](int64_t begin, int64_t end) { kernels.write_kv(args, begin, end); });
}

void gated(void (*kernel)(const GatedArgs&, int64_t, int64_t), const GatedArgs& args, int64_t tokens) {
  over_rows(tokens, 4 * args.size, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

void scale(const Kernels& kernels, const ScaleArgs& args, int64_t tokens) {
  over_rows(tokens, args.size, [&](int64_t begin, int64_t end) { kernels.scale(args, begin, end); });
}

float read(const Kernels& kernels, const float* x, int64_t count) {
  std::atomic<float> total{0};
  Pool::get().parallel_for(count, int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    total.fetch_add(kernels.read(x, begin, end), std::memory_order_relaxed);
  });
  return total;
}

double multiply_add(const Kernels& kernels, int64_t steps) {
  constexpr int64_t kPieces = 16;  // per thread, so that one that begins late leaves its share to the others
  Pool& pool = Pool::get();
  int64_t count = kPieces * pool.size(), share = steps / kPieces;
  std::atomic<float> needed{0};
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    needed.fetch_add(kernels.multiply_add((end - begin) * share), std::memory_order_relaxed);
  });
  return 2.0 * kFmaChains * static_cast<double>(kernels.width * count * share);
}

}  // namespace octavo
