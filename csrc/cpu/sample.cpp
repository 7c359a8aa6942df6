// The ops `sample` and `rank_tokens`: passes over the logits in a tier's kernels, the rest once per row. The references
// say what is computed (octavo/ops/sample.py, rank_tokens.py); every number here is theirs, to the last bit.
#include "sampling.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <limits>
#include <vector>

#include "buffer.h"
#include "pool.h"
#include "random.h"
#include "token.h"

namespace octavo {
namespace {

constexpr int64_t kNoTokenLeft = -1, kNotFinite = -2;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kKeepAll = std::numeric_limits<uint64_t>::max();
constexpr double kMassUnit = 0x1p-40;
constexpr float kBand = 2.0f;      // distance by which the search for the end of a nucleus goes on
constexpr double kMargin = 1e-6;   // bounds give way by this much, so that rounding never excludes what could win
constexpr int64_t kLeastBlocks = 64;  // worth handing to another thread

// A row and what the passes over all of it found.
struct Survey {
  LogitsRow row;
  bool wants_mass;
  bool fine;  // all logits are numbers below +inf
  int64_t mass;

  bool has_tokens() const { return fine && row.top > -kInfinity; }
};

int64_t blocks_of(int64_t vocab) { return (vocab + kBlock - 1) / kBlock; }

void find_peaks(const Kernels& kernels, Survey& s, int64_t begin, int64_t end) {
  if (!kernels.find_peaks(s.row, begin, end)) std::atomic_ref(s.fine).store(false, std::memory_order_relaxed);
}
void find_top(Survey& s) {
  s.row.top = *std::max_element(s.row.peaks, s.row.peaks + blocks_of(s.row.vocab)) / s.row.temperature;
  s.fine = s.fine && s.row.top < kInfinity;
}
void find_mass(const Kernels& kernels, Survey& s, int64_t begin, int64_t end) {
  if (!s.wants_mass || !s.has_tokens()) return;
  std::atomic_ref(s.mass).fetch_add(kernels.mass(s.row, begin, end), std::memory_order_relaxed);
}

// The passes over each row, and then finish(row). A thread takes a row as long as there are enough of them, which then
// stays in its cache; else ranges of blocks.
template <typename Finish>
void survey(const Kernels& kernels, std::vector<Survey>& surveys, const Finish& finish) {
  if (surveys.empty()) return;
  Pool& pool = Pool::get();
  Survey* s = surveys.data();
  const int64_t rows = static_cast<int64_t>(surveys.size()), blocks = blocks_of(s->row.vocab);
  const int64_t ranges = std::min((pool.size() + rows - 1) / rows, std::max<int64_t>(1, blocks / kLeastBlocks));
  if (ranges == 1) {
    pool.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        find_peaks(kernels, s[i], 0, blocks);
        find_top(s[i]);
        find_mass(kernels, s[i], 0, blocks);
        finish(i);
      }
    });
    return;
  }
  auto by_ranges = [&](auto pass) {
    const int64_t size = (blocks + ranges - 1) / ranges;
    pool.parallel_for(rows * ranges, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t first = std::min(blocks, i % ranges * size);
        pass(kernels, s[i / ranges], first, std::min(blocks, first + size));
      }
    });
  };
  by_ranges(find_peaks);
  for (Survey& one : surveys) find_top(one);
  by_ranges(find_mass);
  pool.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) finish(i);
  });
}

// Rows to survey, with room for their peaks; the calling thread's, until its next call.
std::vector<Survey>& make_surveys(const float* logits, int64_t stride, int64_t rows, int64_t vocab) {
  thread_local std::vector<Survey> surveys;
  thread_local Buffer peaks;
  const int64_t blocks = blocks_of(vocab);
  float* room = peaks.get(rows * blocks);
  surveys.clear();
  for (int64_t i = 0; i < rows; ++i) {
    surveys.push_back({{logits + i * stride, room + i * blocks, vocab, 1.0f, 0.0f}, false, true, 0});
  }
  return surveys;
}

// One thread's room to work on one row.
struct Scratch {
  Token* tokens;  // [vocab]
  float* peaks;   // [blocks] each
  double *first, *late;
  int32_t* winner;
};
Scratch scratch_for(int64_t vocab) {
  thread_local Buffer tokens, blocks;
  const int64_t count = blocks_of(vocab);
  double* doubles = reinterpret_cast<double*>(blocks.get(6 * count));
  float* floats = reinterpret_cast<float*>(doubles + 2 * count);
  return {reinterpret_cast<Token*>(tokens.get(vocab * static_cast<int64_t>(sizeof(Token) / sizeof(float)))), floats,
          doubles, doubles + count, reinterpret_cast<int32_t*>(floats + count)};
}

bool by_key(const Token& a, const Token& b) { return a.key < b.key; }

int64_t mass_of(const Token* begin, const Token* end) {
  int64_t mass = 0;
  for (; begin < end; ++begin) mass += begin->mass;
  return mass;
}

// All tokens at least as likely as the count-th largest peak, and as `floor`; `count` of them at least, where floor
// leaves as many.
Token* collect_best(const Kernels& kernels, const LogitsRow& row, int64_t count, float floor, const Scratch& scratch) {
  const int64_t blocks = blocks_of(row.vocab);
  if (count <= blocks) {
    std::copy_n(row.peaks, blocks, scratch.peaks);
    std::nth_element(scratch.peaks, scratch.peaks + count - 1, scratch.peaks + blocks, std::greater<float>());
    floor = std::max(floor, scratch.peaks[count - 1] / row.temperature - row.top);
  }
  return kernels.collect(row, floor, kInfinity, scratch.tokens);
}

// The last token, in order, that has less than `limit` before it; there is one. `before`: of tokens before all these.
// Narrowed down to one of 256 ranges of keys at a time, by what each range weighs.
uint64_t last_below(Token* begin, Token* end, int64_t before, double limit) {
  constexpr int kRangeBits = 8, kRanges = 1 << kRangeBits;
  while (end - begin > 1) {
    const auto [least, most] = std::minmax_element(begin, end, by_key);
    const uint64_t low = least->key;
    const int shift = std::max(0, static_cast<int>(std::bit_width(most->key - low)) - kRangeBits);
    auto range_of = [&](const Token& token) { return (token.key - low) >> shift; };
    int64_t masses[kRanges] = {}, counts[kRanges] = {};
    for (Token* token = begin; token < end; ++token) {
      masses[range_of(*token)] += token->mass;
      counts[range_of(*token)] += 1;
    }
    uint64_t chosen = 0;
    int64_t weight = before;
    for (uint64_t range = 0; range < kRanges && static_cast<double>(weight) < limit; weight += masses[range++]) {
      if (counts[range] > 0) chosen = range, before = weight;
    }
    end = std::partition(begin, end, [&](const Token& token) { return range_of(token) == chosen; });
  }
  return begin->key;
}

// The nucleus ends in the first band of distances by whose end its mass is reached.
uint64_t end_of_nucleus(const Kernels& kernels, const Survey& s, double top_p, const Scratch& scratch) {
  const double limit = top_p * static_cast<double>(s.mass);
  int64_t before = 0;
  for (float high = kInfinity, low = -kBand;; high = low, low -= kBand) {
    Token* end = kernels.collect(s.row, low, high, scratch.tokens);
    int64_t mass = before + mass_of(scratch.tokens, end);
    if (static_cast<double>(mass) >= limit) return last_below(scratch.tokens, end, before, limit);
    before = mass;
  }
}

// The key of the last token that min_p, then top_k, then top_p keep.
uint64_t truncate(const Kernels& kernels, const SampleArgs& a, int64_t i, const Survey& s, const Scratch& scratch) {
  const int64_t top_k = a.top_k[i];
  const double top_p = a.top_p[i], min_p = a.min_p[i];
  if (s.wants_mass) return end_of_nucleus(kernels, s, top_p, scratch);
  if (top_k == 0 && min_p == 0.0) return kKeepAll;
  float floor = min_p > 0.0 ? static_cast<float>(natural_log(min_p)) : -kInfinity;
  const int64_t count = top_k > 0 ? std::min(top_k, s.row.vocab) : s.row.vocab;
  Token *begin = scratch.tokens, *end = collect_best(kernels, s.row, count, floor, scratch);
  if (end - begin > count) {
    std::nth_element(begin, begin + count, end, by_key);
    end = begin + count;
  }
  if (top_p < 1.0) return last_below(begin, end, 0, top_p * static_cast<double>(mass_of(begin, end)));
  return std::max_element(begin, end, by_key)->key;
}

int64_t most_likely(const LogitsRow& row) {
  const float* peak = std::max_element(row.peaks, row.peaks + blocks_of(row.vocab));
  return std::find(row.logits + (peak - row.peaks) * kBlock, row.logits + row.vocab, *peak) - row.logits;
}

// Draws a token up to `last` with probability proportional to exp(distance): a token scores distance - ln(time), and the
// highest wins. First every block's own winner; then the inside of blocks that can still win with their peak.
int64_t race(const LogitsRow& row, uint64_t last, const DrawKey& key, const Scratch& scratch) {
  const int64_t blocks = blocks_of(row.vocab);
  double best = -std::numeric_limits<double>::infinity();
  int64_t winner = row.vocab;
  auto kept = [&](int64_t id) { return token_key(row.logits[id], id) <= last; };
  auto distance = [&](float logit) { return static_cast<double>(logit / row.temperature - row.top); };
  auto enter = [&](int64_t id, double late) {
    double score = distance(row.logits[id]) - late;
    if (score > best || (score == best && id < winner)) best = score, winner = id;
  };
  for (int64_t block = 0; block < blocks; ++block) {
    if (token_key(row.peaks[block], 0) > last) {
      scratch.late[block] = kInfinity;
      continue;
    }
    const Words both = draw_words(key, block / 2, Domain::block);
    const uint32_t* word = both.word + block % 2 * 2;
    scratch.first[block] = exponential(word[0]) / kBlock;
    scratch.late[block] = natural_log(scratch.first[block]);
    scratch.winner[block] = word[1] >> 26;
    int64_t id = block * kBlock + scratch.winner[block];
    if (id < row.vocab && kept(id)) enter(id, scratch.late[block]);
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const double late = scratch.late[block] - kMargin;
    if (distance(row.peaks[block]) - late < best) continue;
    for (int64_t id = block * kBlock; id < std::min(row.vocab, (block + 1) * kBlock); ++id) {
      if (!kept(id) || id % kBlock == scratch.winner[block] || distance(row.logits[id]) - late < best) continue;
      enter(id, natural_log(scratch.first[block] + exponential(draw_words(key, id / 4, Domain::token).word[id % 4])));
    }
  }
  return winner;
}

void write_processed(const LogitsRow& row, bool drawn, uint64_t last, float* out) {
  for (int64_t id = 0; id < row.vocab; ++id) {
    float kept = token_key(row.logits[id], id) <= last ? row.logits[id] / row.temperature : -kInfinity;
    out[id] = drawn ? kept : row.logits[id];
  }
}

int64_t tokens_before(const LogitsRow& row, int64_t token_id) {
  const float logit = row.logits[token_id];
  int64_t count = 0;
  for (int64_t block = 0; block < blocks_of(row.vocab); ++block) {
    if (row.peaks[block] < logit) continue;
    const int64_t begin = block * kBlock, end = std::min(row.vocab, begin + kBlock);
    for (int64_t id = begin; id < end; ++id) count += row.logits[id] > logit;
    for (int64_t id = begin; id < std::min(end, token_id); ++id) count += row.logits[id] == logit;
  }
  return count;
}

void rank_row(const Kernels& kernels, const RankArgs& a, int64_t i, const Survey& s) {
  const LogitsRow& row = s.row;
  int64_t* ids = a.out_ids + i * (1 + a.num_top);
  float* values = a.out_values + i * (1 + a.num_top);
  ids[0] = a.token_ids[i];
  a.out_ranks[i] = 1;
  if (!s.has_tokens()) {
    std::fill_n(ids + 1, a.num_top, 0);
    std::fill_n(values, 1 + a.num_top, std::numeric_limits<float>::quiet_NaN());
    a.out_log_sums[i] = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  if (a.num_top > 0) {
    const Scratch scratch = scratch_for(row.vocab);
    Token *begin = scratch.tokens, *middle = begin + a.num_top, *end = collect_best(kernels, row, a.num_top, -kInfinity, scratch);
    std::nth_element(begin, middle, end, by_key);
    std::sort(begin, middle, by_key);
    std::transform(begin, middle, ids + 1, [](const Token& token) { return static_cast<uint32_t>(token.key); });
  }
  a.out_ranks[i] += tokens_before(row, ids[0]);
  const double sum = a.normalized ? row.top + natural_log(static_cast<double>(s.mass) * kMassUnit) : 0.0;
  a.out_log_sums[i] = sum;
  for (int64_t j = 0; j <= a.num_top; ++j) values[j] = static_cast<float>(row.logits[ids[j]] - sum);
}

}  // namespace

void sample(const Kernels& kernels, const SampleArgs& a) {
  std::vector<Survey>& surveys = make_surveys(a.logits, a.stride, a.rows, a.vocab);
  for (size_t i = 0; i < surveys.size(); ++i) {
    const bool drawn = a.temperature[i] > 0.0f;
    if (drawn) surveys[i].row.temperature = a.temperature[i];
    surveys[i].wants_mass = drawn && a.top_k[i] == 0 && a.min_p[i] == 0.0 && a.top_p[i] < 1.0;
  }
  const Survey* all = surveys.data();  // other threads have their own
  survey(kernels, surveys, [&](int64_t i) {
    const Survey& s = all[i];
    const bool drawn = a.temperature[i] > 0.0f;
    if (!s.has_tokens()) {
      a.out[i] = s.fine ? kNoTokenLeft : kNotFinite;
      return;
    }
    uint64_t last = kKeepAll;
    if (drawn) {
      const Scratch scratch = scratch_for(a.vocab);
      last = truncate(kernels, a, i, s, scratch);
      const DrawKey key{a.seed[i], static_cast<uint32_t>(a.sample_index[i]), static_cast<uint32_t>(a.position[i])};
      a.out[i] = race(s.row, last, key, scratch);
    } else {
      a.out[i] = most_likely(s.row);
    }
    if (a.processed) write_processed(s.row, drawn, last, a.processed + i * a.vocab);
  });
}

void rank_tokens(const Kernels& kernels, const RankArgs& a) {
  std::vector<Survey>& surveys = make_surveys(a.logits, a.stride, a.rows, a.vocab);
  for (Survey& s : surveys) s.wants_mass = a.normalized;
  const Survey* all = surveys.data();
  survey(kernels, surveys, [&](int64_t i) { rank_row(kernels, a, i, all[i]); });
}

}  // namespace octavo
