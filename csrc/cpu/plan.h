// Ops as values, and a plan: a list of them, written down once and run step after step on other addresses.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels.h"
#include "matrix.h"

namespace octavo {

// Where the data of a step is. Plans know slots: an address in them is `kSlotBit | slot << kOffsetBits | byte offset`.
// Any other address is a real one, or null, and stays.
class Step {
 public:
  static constexpr uintptr_t kSlotBit = uintptr_t{1} << 62;  // no address of a process has it
  static constexpr int kOffsetBits = 40;

  struct Place {
    uintptr_t address;
    int64_t stride;  // elements between the first two rows
  };

  // Replaces addresses of slots by real ones.
  template <typename... T>
  void at(T*&... pointers) const {
    ((pointers = find(pointers)), ...);
  }
  // The row stride of a slot's tensor, which may differ from step to step.
  int64_t stride(const void* pointer) const { return places[slot_of(reinterpret_cast<uintptr_t>(pointer))].stride; }
  // A count that was written down with `traced_tokens` in it.
  void per_token(int64_t& count) const { count = count / traced_tokens * tokens; }

  std::vector<Place> places;  // by slot
  int64_t traced_tokens, tokens = 0, rows = 0;

 private:
  static size_t slot_of(uintptr_t address) { return (address & ~kSlotBit) >> kOffsetBits; }
  template <typename T>
  T* find(T* pointer) const {
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (!(address & kSlotBit)) return pointer;
    return reinterpret_cast<T*>(places[slot_of(address)].address + (address & ((uintptr_t{1} << kOffsetBits) - 1)));
  }
};

// One struct per kind of op. `run` computes it; `bind` makes the op of a step from the one in a plan, so it names every
// address and every number that depends on the step.
struct EmbeddingOp {
  const Matrix* table;
  void* out;
  const int64_t* ids;
  int64_t out_stride, tokens;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

struct LinearOp {
  const Matrix* matrix;
  LinearArgs args;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

struct NormOp {
  NormArgs args;
  int64_t rows;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

struct GatedOp {
  void (*Kernels::*kernel)(const GatedArgs&, int64_t, int64_t);
  GatedArgs args;
  int64_t tokens;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

struct ScaleOp {
  ScaleArgs args;
  int64_t tokens;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

struct RopeOp {
  RopeArgs args;
  bool interleaved;
  int64_t tokens;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

struct WriteKVOp {
  WriteKVArgs args;
  int64_t tokens;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

struct AttentionOp {
  AttentionArgs args;
  void bind(const Step& step);
  void run(const Kernels& kernels) const;
};

using AnyOp = std::variant<EmbeddingOp, LinearOp, NormOp, GatedOp, ScaleOp, RopeOp, WriteKVOp, AttentionOp>;

class Plan {
 public:
  // The ops to come count their tokens in multiples of `traced_tokens`.
  explicit Plan(int64_t traced_tokens) { step_.traced_tokens = traced_tokens; }

  // A new slot, by the address that ops name it with. Inputs get their place in every `run`; a weight's may be given
  // again, with `bind`; a buffer lies `offset` bytes for each token of a step from the start of the arena.
  uintptr_t input();
  uintptr_t weight();
  uintptr_t buffer(int64_t offset);
  void bind(uintptr_t weight, uintptr_t address) { place(weight).address = address; }

  void add(const AnyOp& op) { ops_.push_back(op); }

  // All ops, in order. inputs: of each, in the order they were made, address and row stride.
  void run(const Kernels& kernels, uintptr_t arena, const std::vector<int64_t>& inputs, int64_t tokens, int64_t rows);

 private:
  struct Buffer {
    uintptr_t slot;
    int64_t offset;
  };
  uintptr_t new_slot();
  Step::Place& place(uintptr_t slot) { return step_.places[(slot & ~Step::kSlotBit) >> Step::kOffsetBits]; }

  Step step_;
  std::vector<uintptr_t> inputs_;
  std::vector<Buffer> buffers_;
  std::vector<AnyOp> ops_;
};

}  // namespace octavo
