// What every instruction-set tier provides: plain structs of pointers and strides, and one table of functions that work
// on a range of rows. Knows no Python, torch or threads. Only data here: an inline function would be compiled once per
// tier under one name, and the linker could keep the copy that this machine cannot run.
#pragma once

#include <cstdint>

namespace octavo {

enum class DType : int32_t { f32 = 0, bf16 = 1, f16 = 2 };

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// Row i of a [outer, inner, K] tensor starts at data + (i / inner) * outer_stride + (i % inner) * inner_stride elements.
struct Rows {
  void* data;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
};

// residual: its data is null in the plain norm.
struct NormArgs {
  Rows out, x, residual;
  const void* weight;  // [K]
  int64_t hidden;
  float eps;
  DType dtype, weight_dtype;
};

struct GatedArgs {
  void* out;      // [T, N]
  const void* x;  // [T, 2N], gate then up
  int64_t out_stride, x_stride, size;
  DType dtype;
};

struct ScaleArgs {
  void* x;  // [T, N]
  int64_t x_stride, size;
  float factor;
  DType dtype;
};

struct RopeArgs {
  void* q;  // [T, q_heads, D]
  void* k;  // [T, k_heads, D]
  const int64_t* positions;
  const float* cos_sin;  // [P, rotary]: cos of each frequency, then sin
  int64_t q_stride, k_stride, q_heads, k_heads, head_dim, rotary;
  DType dtype;
};

struct WriteKVArgs {
  const void* k;  // [T, G, D]
  const void* v;                // [T, G, V], or null
  void* pages;                  // [2, B, G, block, D], strided as below; without v the keys only
  const int64_t* slot_mapping;  // [T], -1: padding
  int64_t k_stride, v_stride, kv_heads, block_size, head_dim;
  int64_t page_stride;   // elements from a page to the next one
  int64_t head_stride;   // elements from a KV head to the next one
  int64_t value_offset;  // elements from a key to its value
  int64_t value_dim;     // 0 without v
  DType dtype, kv_dtype;
};

// The KV axis is split at absolute multiples of this, and the parts are merged in order: what a row gets can not depend
// on how its context was cut into steps, threads or batches.
constexpr int kSplit = 256;
constexpr int kMaxTileRows = 48;
constexpr int kMaxPanel = 64;  // tokens in the widest K panel of any tier

struct AttentionArgs {
  void* out;          // [T, H, V]; tokens after the last row's are padding
  const void* q;      // [T, H, D]
  const void* pages;  // [2, B, G, block, D], or [1, B, G, block, D] if values are the first V elements of the keys
  const int32_t* query_start;
  const int32_t* seq_lens;
  const int32_t* block_table;
  const float* sinks;         // [H] or null
  const float* alibi_slopes;  // [H] or null
  int64_t out_stride, q_stride, table_stride;
  int64_t num_rows, num_tokens, heads, kv_heads, block_size, head_dim, value_dim;
  int64_t page_stride;   // elements from a page to the next one
  int64_t head_stride;   // elements from a KV head to the next one
  int64_t value_offset;  // elements from a key to its value
  int64_t window;        // tokens a query sees, itself included; 0: all
  float scale;
  float softcap;  // 0: none
  DType dtype, kv_dtype;
};

// Softmax-weighted values of a tile so far; the weights are relative to exp(`max`) and add up to `sum`.
struct Partial {
  float* max;  // [tokens * heads]
  float* sum;
  float* out;      // [tokens * heads, stride], dimensions in the order that the kernel likes
  int64_t stride;  // value_dim rounded up to 32
};

// Queries that share keys: some tokens times `heads` heads of one KV head. The tokens are consecutive ones of one
// request, or one of each request of `shared_by`, where these have the same pages in the splits of the tile.
struct Tile {
  int64_t row;  // of the block table
  int64_t kv_head;
  int64_t head;   // first query head
  int64_t heads;  // tile row m is token m / heads, head m % heads
  int64_t token;  // first token, index into the batch
  int64_t tokens;
  int64_t position;  // of the first token
  int64_t split_begin, split_end;
  const int32_t* shared_by;  // [tokens], indices into the batch; or null
  Partial carried;           // what earlier splits gave, or of a shared tile what its splits give; or null
};

// One thread's room, laid out by the caller; sizes in floats unless said otherwise.
struct AttentionScratch {
  float* q;           // [kMaxTileRows, q_stride]
  int64_t q_stride;   // head_dim rounded up to 32
  float* k_panel;     // [q_stride, kMaxPanel]
  float* v_rows;      // [kMaxPanel, part.stride]
  float* scores;      // [kMaxTileRows, kSplit]
  const void** rows;  // [3 * kSplit + kMaxPanel] pointers
  float* zero_row;    // [q_stride], all zero
  Partial total, part;
};

// A weight matrix [rows, columns] in panels of kPanelRows rows: [panels][steps][kPanelRows][depth]. A step is `depth`
// consecutive columns: 2 of bf16, which dot-product instructions take in pairs, 1 of the other types; kTileSteps steps of
// bf16 are two AMX tiles side by side, and `steps` is a multiple of them. Zero beyond the last row and the last column.
constexpr int kPanelRows = 32;
constexpr int kTileSteps = 16;

struct Packed {
  void* data;
  int64_t rows, columns, depth, steps;
  DType dtype;
};

// out = x @ weight.T + bias, rounded once.
struct LinearArgs {
  void* out;         // [T, rows], float or of the weight's type
  const void* x;     // [T, columns] of the weight's type
  const void* bias;  // [rows] of the weight's type, or null
  int64_t out_stride, x_stride, tokens;
  bool float_out;
  int64_t shards;  // of K, summed in a balanced tree: 1, or 2, 4 or 8 of a multiple of 32 columns each
  Packed weight;
};

// Room for a thread's intermediate sums: float* (floats), kept until its next call.
using Room = float* (*)(int64_t);

// Independent chains of multiply-adds: enough to hide their latency, few enough for 16 registers.
constexpr int kFmaChains = 12;

// Logits are handled in blocks of ids: the blocks of the generator (octavo/ops/random.py).
constexpr int kBlock = 64;

// The logits of one row. Distances are logit / temperature - top <= 0.
struct LogitsRow {
  const float* logits;  // [vocab]
  float* peaks;         // [blocks] largest logit of each block
  int64_t vocab;
  float temperature;
  float top;  // largest logit / temperature
};

// A token of a row: the smaller its key, the more likely, and then the lower its id, which is the key's lower half.
struct Token {
  uint64_t key;
  int64_t mass;  // see sample.h
};

struct Kernels {
  const char* name;
  int64_t width;  // floats in a vector
  void (*norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs&, bool interleaved, int64_t begin, int64_t end);
  void (*write_kv)(const WriteKVArgs&, int64_t begin, int64_t end);
  void (*silu_mul)(const GatedArgs&, int64_t begin, int64_t end);
  void (*gelu_tanh_mul)(const GatedArgs&, int64_t begin, int64_t end);
  void (*gelu_mul)(const GatedArgs&, int64_t begin, int64_t end);
  void (*scale)(const ScaleArgs&, int64_t begin, int64_t end);
  // Attention of a tile over splits begin .. end into scratch.total, which holds the splits before them if `resume`.
  // `next`: what this thread does afterwards, or null.
  void (*attend)(const AttentionArgs&, const Tile&, int64_t begin, int64_t end, bool resume, const Tile* next,
                 AttentionScratch&);
  // total <- total and then part, in that order, for `rows` rows; part is only read.
  void (*merge)(Partial& total, const Partial& part, int64_t rows);
  void (*finish)(const AttentionArgs&, const Tile&, const Partial& total);
  // All tokens times the panels begin .. end.
  void (*linear)(const LinearArgs&, Room room, int64_t begin, int64_t end);
  // Peaks of blocks begin .. end. False if a logit is NaN or +inf.
  bool (*find_peaks)(const LogitsRow&, int64_t begin, int64_t end);
  // The mass of blocks begin .. end; needs their peaks.
  int64_t (*mass)(const LogitsRow&, int64_t begin, int64_t end);
  // Writes all tokens with low <= distance < high to `out`, and returns the end of them; needs all peaks.
  Token* (*collect)(const LogitsRow&, float low, float high, Token* out);
  // Ceilings, see ceiling.h.
  float (*read)(const float* x, int64_t begin, int64_t end);
  float (*multiply_add)(int64_t steps);
};

// Slowest first; which exist depends on the compiler, which run on the machine (tiers.h).
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_bf16_kernels();
const Kernels* amx_kernels();
const Kernels* amx_software_kernels();  // the AMX kernel on tiles in plain memory: its bits on any machine, to test it

}  // namespace octavo
