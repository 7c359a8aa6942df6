#include "pool.h"

#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace octavo {
namespace {

constexpr uint32_t kOpen = 1u << 31;
// Some 100 us: enough to bridge the gap between two ops of a step. (To wake a thread that sleeps takes as long.)
constexpr int kSpins = 4000;

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
}

void Pool::start_workers() {
  for (; started_ < size_ - 1; ++started_) {
    living_.fetch_add(1);
    std::thread(&Pool::worker, this, ticket_.load()).detach();
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

void Pool::worker(uint32_t seen) {
  for (;;) {
    for (int spins = 0; spins < kSpins && ticket_.load(std::memory_order_acquire) == seen; ++spins) pause();
    ticket_.wait(seen);
    seen = ticket_.load();
    if (stop_) break;
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
