// Python's view: addresses and sizes as plain ints (what `Tensor.data_ptr()` gives), one call per op or per plan, the GIL
// released. Checks nothing: octavo/kernels/cpu calls it only with shapes, strides and dtypes that it has checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "dequantize.h"
#include "matrix.h"
#include "ops.h"
#include "plan.h"
#include "pool.h"
#include "sampling.h"
#include "tiers.h"

namespace nb = nanobind;

namespace octavo {
namespace {

template <typename T = void>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

std::atomic<const Kernels*> chosen{nullptr};

const Kernels& kernels() { return *chosen.load(std::memory_order_relaxed); }

std::vector<std::string> tiers() {
  std::vector<std::string> names;
  for (const Kernels* tier : runnable_tiers()) names.emplace_back(tier->name);
  return names;
}

void select_tier(const std::string& name) {
  const Kernels* tier = find_tier(name);
  if (!tier) throw std::invalid_argument(name);
  chosen = tier;
}

DType dtype(int code) { return static_cast<DType>(code); }

using U = uintptr_t;
using I = int64_t;

EmbeddingOp embedding(U table, U out, I out_stride, U ids, I tokens) {
  return {at<const Matrix>(table), at(out), at<I>(ids), out_stride, tokens};
}

LinearOp linear(U matrix, U out, I out_stride, bool float_out, U x, I x_stride, U bias, I tokens, I shards) {
  return {at<const Matrix>(matrix),
          {at(out), at(x), at(bias), out_stride, x_stride, tokens, float_out, shards, {}}};
}

NormOp norm(U out, I out_inner, I out_outer_stride, I out_inner_stride, U x, I x_inner, I x_outer_stride,
            I x_inner_stride, U residual, I residual_stride, U weight, float eps, I rows, I hidden, int type,
            int weight_type) {
  return {{{at(out), out_inner, out_outer_stride, out_inner_stride},
           {at(x), x_inner, x_outer_stride, x_inner_stride},
           {at(residual), 1, residual_stride, 0},
           at(weight),
           hidden,
           eps,
           dtype(type),
           dtype(weight_type)},
          rows};
}

template <auto Kernel>
GatedOp gated(U out, I out_stride, U x, I x_stride, I tokens, I size, int type) {
  return {Kernel, {at(out), at(x), out_stride, x_stride, size, dtype(type)}, tokens};
}

ScaleOp scale(U x, I x_stride, float factor, I tokens, I size, int type) {
  return {{at(x), x_stride, size, factor, dtype(type)}, tokens};
}

RopeOp rope(U q, I q_stride, I q_heads, U k, I k_stride, I k_heads, U positions, U cos_sin, I tokens, I head_dim,
            I rotary, bool interleaved, int type) {
  return {{at(q), at(k), at<I>(positions), at<float>(cos_sin), q_stride, k_stride, q_heads, k_heads, head_dim, rotary,
           dtype(type)},
          interleaved,
          tokens};
}

WriteKVOp write_kv(U k, I k_stride, U v, I v_stride, U pages, U slots, I tokens, I kv_heads, I block_size,
                   I head_dim, I page_stride, I head_stride, I value_offset, I value_dim, int type, int kv_type) {
  return {{at(k), at(v), at(pages), at<I>(slots), k_stride, v_stride, kv_heads, block_size, head_dim, page_stride,
           head_stride, value_offset, value_dim, dtype(type), dtype(kv_type)},
          tokens};
}

AttentionOp paged_attention(U out, I out_stride, I value_dim, U q, I q_stride, U pages, U query_start, U seq_lens,
                            U block_table, I table_stride, I num_rows, I num_tokens, I heads, I kv_heads,
                            I block_size, I head_dim, I page_stride, I head_stride, I value_offset, float scale, I window,
                            float softcap, U sinks, U alibi_slopes, int type, int kv_type) {
  return {{at(out), at(q), at(pages), at<int32_t>(query_start), at<int32_t>(seq_lens), at<int32_t>(block_table),
           at<float>(sinks), at<float>(alibi_slopes), out_stride, q_stride, table_stride, num_rows, num_tokens, heads,
           kv_heads, block_size, head_dim, value_dim, page_stride, head_stride, value_offset, window, scale, softcap, dtype(type),
           dtype(kv_type)}};
}

// An op twice, with the same arguments: as a function that runs it, and as a method that adds it to a plan.
template <typename Op, typename... Args>
void add_op(nb::module_& m, nb::class_<Plan>& plan, const char* name, Op (*make)(Args...)) {
  m.def(name, [make](Args... args) { make(args...).run(kernels()); }, nb::call_guard<nb::gil_scoped_release>());
  plan.def(name, [make](Plan& self, Args... args) { self.add(make(args...)); });
}

void add_ops(nb::module_& m) {
  nb::class_<Plan> plan(m, "Plan");
  plan.def(nb::init<I>())
      .def("input", &Plan::input)
      .def("weight", &Plan::weight)
      .def("buffer", &Plan::buffer)
      .def("bind", &Plan::bind)
      .def(
          "run",
          [](Plan& self, U arena, const std::vector<I>& inputs, I tokens, I rows) {
            self.run(kernels(), arena, inputs, tokens, rows);
          },
          nb::call_guard<nb::gil_scoped_release>());
  add_op(m, plan, "embedding", &embedding);
  add_op(m, plan, "linear", &linear);
  add_op(m, plan, "norm", &norm);
  add_op(m, plan, "silu_mul", &gated<&Kernels::silu_mul>);
  add_op(m, plan, "gelu_tanh_mul", &gated<&Kernels::gelu_tanh_mul>);
  add_op(m, plan, "gelu_mul", &gated<&Kernels::gelu_mul>);
  add_op(m, plan, "scale", &scale);
  add_op(m, plan, "rope", &rope);
  add_op(m, plan, "write_kv", &write_kv);
  add_op(m, plan, "paged_attention", &paged_attention);
}

void add_ceilings(nb::module_& m) {
  auto no_gil = nb::call_guard<nb::gil_scoped_release>();
  m.def("read", [](uintptr_t x, int64_t count) { return read(kernels(), at<float>(x), count); }, no_gil);
  m.def("multiply_add", [](int64_t steps) { return multiply_add(kernels(), steps); }, no_gil);
}

// After a forward pass, never part of a plan.
void add_sampling(nb::module_& m) {
  auto no_gil = nb::call_guard<nb::gil_scoped_release>();
  m.def(
      "sample",
      [](U out, U processed, U logits, I stride, I rows, I vocab, U temperature, U top_k, U top_p, U min_p, U seed,
         U sample_index, U position) {
        sample(kernels(), {at<I>(out), at<float>(processed), at<float>(logits), stride, rows, vocab,
                           at<float>(temperature), at<I>(top_k), at<double>(top_p), at<double>(min_p), at<I>(seed),
                           at<I>(sample_index), at<I>(position)});
      },
      no_gil);
  m.def(
      "rank_tokens",
      [](U out_ids, U out_values, U out_ranks, U out_log_sums, U logits, I stride, I rows, I vocab, U token_ids,
         I num_top, bool normalized) {
        rank_tokens(kernels(), {at<I>(out_ids), at<float>(out_values), at<I>(out_ranks), at<double>(out_log_sums),
                                at<float>(logits), stride, rows, vocab, at<I>(token_ids), num_top, normalized});
      },
      no_gil);
}

void add_masking(nb::module_& m) {
  m.def(
      "mask_logits",
      [](U logits, I stride, I rows, I vocab, U index, U bits) {
        mask_logits({at<float>(logits), stride, rows, vocab, at<I>(index), at<uint32_t>(bits)});
      },
      nb::call_guard<nb::gil_scoped_release>());
}

void add_matrix(nb::module_& m) {
  auto no_gil = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Matrix>(m, "Matrix")
      .def("__init__", [](Matrix* self, I rows, I columns, int type) { new (self) Matrix(rows, columns, dtype(type)); })
      .def_prop_ro("address", [](const Matrix& self) { return reinterpret_cast<U>(&self); })
      .def(
          "write",
          [](Matrix& self, U x, I x_stride, I begin, I count) { self.write(at(x), x_stride, begin, count); }, no_gil)
      .def(
          "read",
          [](const Matrix& self, U out, I out_stride, I begin, I count) {
            self.read(at(out), out_stride, nullptr, begin, count);
          },
          no_gil);
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, m) {
  using namespace octavo;
  nb::set_leak_warnings(false);  // a process may end while a model is still in use
  chosen = runnable_tiers().back();
  m.def("tiers", &tiers);
  m.def("tier", [] { return kernels().name; });
  m.def("select_tier", &select_tier);
  m.def("amx_refusal", [] { return amx_refusal(); });
  m.def("num_threads", [] { return Pool::get().size(); });
  m.def("set_num_threads", [](int threads) { Pool::get().resize(threads); }, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "dequantize",
      [](const std::string& type, uintptr_t out, uintptr_t blocks, int64_t count) {
        return dequantize(type, at<float>(out), at<uint8_t>(blocks), count);
      },
      nb::call_guard<nb::gil_scoped_release>());
  add_ops(m);
  add_ceilings(m);
  add_sampling(m);
  add_masking(m);
  add_matrix(m);
}
