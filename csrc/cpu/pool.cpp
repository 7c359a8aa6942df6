#include "pool.h"

#include <algorithm>
#include <chrono>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace octavo {
namespace {

constexpr uint32_t kOpen = 1u << 31;
// Some 100 us: enough to bridge the gap between two ops of a step. (To wake a thread that sleeps takes as long, and
// milliseconds if the kernel wakes it beside a busy one.)
constexpr int kSpins = 4000;
// Then, between two steps, a worker gives its CPU to whoever asks, until it sleeps.
constexpr std::chrono::microseconds kYields{1500};

std::atomic<Pool*> current{nullptr};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

int usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  return threads > 0 ? threads : 1;
}

int current_cpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return 0;
#endif
}

// To the first CPU that this process may use and `taken` does not hold, if there is one.
template <typename Taken>
void move_to_free_cpu([[maybe_unused]] Taken taken) {
#if defined(__linux__)
  cpu_set_t usable, chosen;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &usable) || taken(cpu)) continue;
    CPU_ZERO(&chosen);
    CPU_SET(cpu, &chosen);
    if (sched_setaffinity(0, sizeof chosen, &chosen) == 0) sched_setaffinity(0, sizeof usable, &usable);
    return;
  }
#endif
}

}  // namespace

Pool& Pool::get() {
  // Never destroyed: workers may outlive static destructors.
  static const bool made = [] {
    current = new Pool(usable_cpus());
#if defined(__linux__)
    // The child has none of the threads, and perhaps a lock that a lost one holds.
    pthread_atfork(nullptr, nullptr, [] { current = new Pool(current.load()->size()); });
#endif
    return true;
  }();
  static_cast<void>(made);
  return *current.load(std::memory_order_relaxed);
}

void Pool::resize(int threads) {
  std::lock_guard lock(busy_);
  stop_workers();
  size_ = threads;
  watch_cpus();
}

void Pool::watch_cpus() {
  cpus_ = std::vector<std::atomic<int>>(static_cast<size_t>(size()));
  for (auto& cpu : cpus_) cpu = -1;
  may_part_ = size() <= usable_cpus();
}

void Pool::start_workers() {
  for (; started_ < size_ - 1; ++started_) {
    living_.fetch_add(1);
    std::thread(&Pool::worker, this, started_ + 1, ticket_.load()).detach();
  }
}

void Pool::stop_workers() {
  stop_ = true;
  ticket_.fetch_add(1);
  ticket_.notify_all();
  while (living_.load() > 0) std::this_thread::yield();
  stop_ = false;
  started_ = 0;
}

void Pool::run(const Job& job) noexcept {
  start_workers();
  job_ = job;
  cpus_[0].store(current_cpu(), std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  ticket_.fetch_add(1);
  ticket_.notify_all();
  take_pieces();
  gate_.fetch_and(~kOpen);
  for (int spins = 0; gate_.load(std::memory_order_acquire) != 0; ++spins) {
    spins < 10000 ? pause() : std::this_thread::yield();  // a worker inside may have lost its CPU
  }
}

void Pool::take_pieces() {
  const Job job = job_;
  for (;;) {
    int64_t begin = next_.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.count) return;
    job.call(job.body, begin, begin + job.grain < job.count ? begin + job.grain : job.count);
  }
}

// Leaves a CPU on which a thread of a lower index was seen.
void Pool::settle(int index) {
  if (!may_part_) return;
  auto taken = [&](int cpu) {
    auto is_there = [&](const auto& other) { return other.load(std::memory_order_relaxed) == cpu; };
    return std::any_of(cpus_.begin(), cpus_.begin() + index, is_there);
  };
  int mine = current_cpu();
  if (taken(mine)) {
    move_to_free_cpu(taken);
    mine = current_cpu();
  }
  cpus_[static_cast<size_t>(index)].store(mine, std::memory_order_relaxed);
}

void Pool::wait_for_job(uint32_t seen) {
  auto is_there = [&] { return ticket_.load(std::memory_order_acquire) != seen; };
  for (int spins = 0; spins < kSpins; ++spins) {
    if (is_there()) return;
    pause();
  }
  for (auto end = std::chrono::steady_clock::now() + kYields; std::chrono::steady_clock::now() < end;) {
    if (is_there()) return;
    std::this_thread::yield();
  }
  ticket_.wait(seen);
}

void Pool::worker(int index, uint32_t seen) {
  for (;;) {
    wait_for_job(seen);
    seen = ticket_.load();
    if (stop_) break;
    settle(index);
    uint32_t gate = gate_.load();
    while ((gate & kOpen) && !gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) {
    }
    if (!(gate & kOpen)) continue;
    take_pieces();
    gate_.fetch_sub(1, std::memory_order_release);
  }
  living_.fetch_sub(1);
}

}  // namespace octavo
