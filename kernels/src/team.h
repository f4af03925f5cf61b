// The threads of one call: a parallel region, shares of work and a barrier.
//
// The region is OpenMP's, so that it uses the threads that torch has started already. The barrier is our
// own: a dozen per layer, so it spins, and yields the core where another process has taken one.
#pragma once

#include <sched.h>
#include <stdint.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "vector.h"

namespace forescribe {
namespace FS_ISA {

struct Barrier {
    int32_t waiting = 0;
    int32_t round = 0;
};

struct Team {
    int32_t rank, size;
    Barrier *barrier;

    void wait() const {
        if (size == 1) return;
        const int32_t round = __atomic_load_n(&barrier->round, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&barrier->waiting, 1, __ATOMIC_ACQ_REL) == size) {
            __atomic_store_n(&barrier->waiting, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&barrier->round, round + 1, __ATOMIC_RELEASE);
            return;
        }
        for (int spins = 0; __atomic_load_n(&barrier->round, __ATOMIC_ACQUIRE) == round; spins++) {
            if (spins > 4000) {
                sched_yield();
                continue;
            }
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
    }

    // This thread's part of `count` equal pieces of work: [low, high).
    int64_t low(int64_t count) const { return count * rank / size; }
    int64_t high(int64_t count) const { return count * (rank + 1) / size; }
};

// Runs work(team) on up to `threads` threads.
template <class Work>
void parallel(int32_t threads, const Work &work) {
    Barrier barrier;
#if defined(_OPENMP)
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        work(Team{omp_get_thread_num(), omp_get_num_threads(), &barrier});
        return;
    }
#endif
    (void)threads;
    work(Team{0, 1, &barrier});
}

}  // namespace FS_ISA
}  // namespace forescribe
