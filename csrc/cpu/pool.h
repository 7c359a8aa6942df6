// Threads that share the work of one op. The caller takes part and never waits for a thread that has not begun, so a
// sleeping or starved worker costs nothing but its help. A worker that finds itself on another's CPU moves: a kernel may
// wake it there, beside an idle one, and leave it for milliseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <vector>

namespace octavo {

class Pool {
 public:
  // The process's pool; as many threads as the process may use CPUs, until `resize`. A forked child gets a new one.
  static Pool& get();

  // Threads that work on an op, the caller included.
  int size() const { return size_.load(std::memory_order_relaxed); }
  void resize(int threads);

  // body(begin, end) for pieces of at most `grain` that cover 0 .. count, on any thread in any order; returns when all
  // are done. Runs in one piece on the caller if there is one piece, or the pool serves another caller.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    if (size() == 1 || count <= grain || !busy_.try_lock()) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    std::lock_guard lock(busy_, std::adopt_lock);
    run({[](const void* b, int64_t begin, int64_t end) { (*static_cast<const Body*>(b))(begin, end); }, &body, count,
         grain});
  }

 private:
  struct Job {
    void (*call)(const void*, int64_t, int64_t);
    const void* body;
    int64_t count, grain;
  };

  explicit Pool(int threads) : size_(threads) { watch_cpus(); }
  void run(const Job& job) noexcept;  // a worker has nobody to throw to
  void start_workers();
  void stop_workers();
  void worker(int index, uint32_t seen);
  void watch_cpus();
  void settle(int index);
  void wait_for_job(uint32_t seen);
  void take_pieces();

  std::mutex busy_;  // one job at a time; also guards starting and stopping
  std::atomic<int> size_;
  int started_ = 0;
  Job job_{};
  alignas(64) std::atomic<int64_t> next_{0};     // first item nobody took
  alignas(64) std::atomic<uint32_t> gate_{0};    // kOpen | number of workers inside the job
  alignas(64) std::atomic<uint32_t> ticket_{0};  // changes with every job; what idle workers watch
  alignas(64) std::atomic<int> living_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::atomic<int>> cpus_;  // where each thread was last seen, the caller first; -1: nowhere yet
  bool may_part_ = false;               // there is a CPU for each
};

}  // namespace octavo
