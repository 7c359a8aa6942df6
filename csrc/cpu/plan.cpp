#include "plan.h"

#include "ops.h"

namespace octavo {

void EmbeddingOp::bind(const Step& step) {
  step.at(table, out, ids);
  step.per_token(tokens);
}
void EmbeddingOp::run(const Kernels&) const { table->read(out, out_stride, ids, 0, tokens); }

void LinearOp::bind(const Step& step) {
  step.at(matrix, args.out, args.x, args.bias);
  step.per_token(args.tokens);
}
void LinearOp::run(const Kernels& kernels) const { matrix->multiply(kernels, args); }

void NormOp::bind(const Step& step) {
  step.at(args.out.data, args.x.data, args.residual.data, args.weight);
  step.per_token(rows);
}
void NormOp::run(const Kernels& kernels) const { norm(kernels, args, rows); }

void GatedOp::bind(const Step& step) {
  step.at(args.out, args.x);
  step.per_token(tokens);
}
void GatedOp::run(const Kernels& kernels) const { gated(kernels.*kernel, args, tokens); }

void ScaleOp::bind(const Step& step) {
  step.at(args.x);
  step.per_token(tokens);
}
void ScaleOp::run(const Kernels& kernels) const { scale(kernels, args, tokens); }

void RopeOp::bind(const Step& step) {
  step.at(args.q, args.k, args.positions, args.cos_sin);
  step.per_token(tokens);
}
void RopeOp::run(const Kernels& kernels) const { rope(kernels, args, interleaved, tokens); }

void WriteKVOp::bind(const Step& step) {
  step.at(args.k, args.v, args.pages, args.slot_mapping);
  step.per_token(tokens);
}
void WriteKVOp::run(const Kernels& kernels) const { write_kv(kernels, args, tokens); }

void AttentionOp::bind(const Step& step) {
  args.table_stride = step.stride(args.block_table);
  args.num_rows = step.rows;
  step.at(args.out, args.q, args.pages, args.query_start, args.seq_lens, args.block_table, args.sinks, args.alibi_slopes);
  step.per_token(args.num_tokens);
}
void AttentionOp::run(const Kernels& kernels) const { paged_attention(kernels, args); }

uintptr_t Plan::new_slot() {
  step_.places.push_back({0, 0});
  return Step::kSlotBit | static_cast<uintptr_t>(step_.places.size() - 1) << Step::kOffsetBits;
}

uintptr_t Plan::input() { return inputs_.emplace_back(new_slot()); }

uintptr_t Plan::weight() { return new_slot(); }

uintptr_t Plan::buffer(int64_t offset) { return buffers_.emplace_back(Buffer{new_slot(), offset}).slot; }

void Plan::run(const Kernels& kernels, uintptr_t arena, const std::vector<int64_t>& inputs, int64_t tokens,
               int64_t rows) {
  step_.tokens = tokens;
  step_.rows = rows;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    place(inputs_[i]) = {static_cast<uintptr_t>(inputs[2 * i]), inputs[2 * i + 1]};
  }
  for (const Buffer& buffer : buffers_) place(buffer.slot).address = arena + static_cast<uintptr_t>(buffer.offset * tokens);
  for (const AnyOp& planned : ops_) {
    std::visit(
        [&](auto op) {
          op.bind(step_);
          op.run(kernels);
        },
        planned);
  }
}

}  // namespace octavo
