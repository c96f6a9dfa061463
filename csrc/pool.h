// A pool of threads for loops of independent tasks: for_each(n, task) calls task(i, thread) for every i < n.
//
// Every thread has a run of consecutive tasks, so that it continues reading where it stopped. A thread that has
// finished its run takes tasks from the others' runs; the caller does the same. A worker that the system has
// suspended delays nobody unless it is inside a task. So two engines on the same cores slow each other down by
// what they compute, not by waiting in barriers. Workers spin for a short time after a loop, then sleep.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

inline void spin_pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

class Pool {
  public:
    explicit Pool(int threads) : count_(threads > 1 ? threads : 1), runs_(new Run[size_t(count_)]) {
        for (int t = 1; t < count_; ++t) workers_.emplace_back([this, t] { work(t); });
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> hold(lock_);
            stop_.store(true);
        }
        wake_.notify_all();
        for (auto& w : workers_) w.join();
    }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return count_; }

    // cost: bytes that the loop reads, or as much work as that. Below WORTH the caller does the loop alone: two
    // cores take about a microsecond to pass a loop to each other.
    static constexpr int64_t WORTH = 96 << 10;

    template <class Task> void for_each(int n, const Task& task, int64_t cost = WORTH) {
        if (n <= 1 || count_ == 1 || cost < WORTH) {
            for (int i = 0; i < n; ++i) task(i, 0);
            return;
        }
        call_ = [](const void* t, int i, int thread) { (*static_cast<const Task*>(t))(i, thread); };
        task_ = &task;
        const int all = count_;
        for (int t = 0; t < all; ++t) runs_[t].end = int(int64_t(n) * (t + 1) / all);
        // Opens the loop: from now on workers can take tasks.
        for (int t = 0; t < all; ++t) runs_[t].next.store(int(int64_t(n) * t / all));
        epoch_.fetch_add(1);
        if (sleeping_.load() > 0) {
            std::lock_guard<std::mutex> hold(lock_);
            wake_.notify_all();
        }
        take(0);
        for (int t = 0; t < all; ++t) runs_[t].next.store(CLOSED);
        for (int spins = 0; busy_.load() != 0; ++spins)
            if (spins < 4096) spin_pause(); else std::this_thread::yield();
    }

  private:
    static constexpr int CLOSED = 1 << 30;
    static constexpr int SPINS = 4000;  // about 50 us: longer than the time between two loops of a step

    struct alignas(64) Run {
        std::atomic<int> next{CLOSED};
        int end = 0;
    };

    void take(int thread) {
        const int all = count_;
        for (int t = 0; t < all; ++t) {
            Run& run = runs_[(thread + t) % all];
            for (int i; (i = run.next.fetch_add(1)) < CLOSED && i < run.end;) call_(task_, i, thread);
        }
    }

    // A loop's fields are read only after a run gave an index that is not CLOSED. They are written only while
    // all runs are CLOSED and no worker is busy: `busy_` is increased before the first index is taken.
    void work(int thread) {
        uint32_t seen = 0;
        while (!stop_.load()) {
            int spins = 0;
            while (epoch_.load() == seen && spins < SPINS) { spin_pause(); ++spins; }
            if (epoch_.load() == seen) {
                std::unique_lock<std::mutex> hold(lock_);
                sleeping_.fetch_add(1);
                wake_.wait(hold, [&] { return stop_.load() || epoch_.load() != seen; });
                sleeping_.fetch_sub(1);
                continue;
            }
            seen = epoch_.load();
            busy_.fetch_add(1);
            take(thread);
            busy_.fetch_sub(1);
        }
    }

    const int count_;
    void (*call_)(const void*, int, int) = nullptr;
    const void* task_ = nullptr;
    std::unique_ptr<Run[]> runs_;
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<int> busy_{0};
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stop_{false};
    std::mutex lock_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};

// Calls task(i) for every i < rows, 8 in a task. For fewer than 16 rows the caller does it alone: waking
// workers does not pay.
template <class Task> inline void each_row(Pool& pool, int rows, const Task& task) {
    if (rows < 16) for (int i = 0; i < rows; ++i) task(i);
    else pool.for_each((rows + 7) / 8, [&](int t, int) {
        for (int i = 8 * t; i < rows && i < 8 * t + 8; ++i) task(i);
    });
}

}  // namespace
