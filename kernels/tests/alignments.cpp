// Medians against sorting, and paths against the costs of all, for the alignment of tokens with frames. That the
// bits are torch's is asked in tests/asr/words/test_timing.py.
#include <algorithm>

#include "inputs.h"

namespace fuzz {
namespace {

// The lowest cost of a monotone path through -map [N, F].
double lowest(const float *map, int64_t rows, int64_t frames) {
    std::vector<double> costs(frames), before;
    for (int64_t n = 0; n < rows; n++) {
        before = costs;
        for (int64_t f = 0; f < frames; f++) {
            double best = n ? before[f] : f ? INFINITY : 0;
            if (n && f) best = std::min(best, before[f - 1]);
            if (f) best = std::min(best, costs[f - 1]);
            costs[f] = best - map[n * frames + f];
        }
    }
    return costs[frames - 1];
}

// That of the path with these starts: a row ends where the next one begins, or a frame before.
double cost(const float *map, int64_t rows, int64_t frames, const int64_t *starts) {
    std::vector<double> costs(2, INFINITY);  // the last row so far ends before the next start, or on it
    costs[1] = 0;
    for (int64_t n = 0; n < rows; n++) {
        const int64_t from = starts[n], to = n + 1 < rows ? starts[n + 1] : frames - 1;
        require(0 <= from && from <= to && to < frames, "a path that goes back");
        double sum = std::min(costs[0], costs[1]), last = INFINITY;
        for (int64_t f = from; f <= to; f++) last = f == from ? INFINITY : sum, sum -= map[n * frames + f];
        costs[0] = last, costs[1] = sum;
    }
    return costs[1];
}

}  // namespace

int alignments(int cases) {
    int64_t medians = 0;
    for (int i = 0; i < cases; i++) {
        kept.clear();
        const int64_t H = pick(1, 3), N = pick(1, 9), F = pick(4, pick(0, 3) ? 40 : 1500);
        const int64_t first = pick(0, N), count = pick(0, N - first), bytes = fs_alignment_workspace(N, F);
        const float *weights = normal(H * N * F, H * N * F, 1);
        float *maps = room<float>(H * count * F);
        void *workspace = room<char>(bytes);
        require(fs_sharpen(weights, H, N, F, first, count, maps, workspace, bytes) == FS_OK, "sharpen");
        for (int64_t row = 0; row < H * count; row++, medians += F) {
            const int64_t h = row / count, n = first + row % count;
            std::vector<double> own(F);
            double least = 1;  // deviation: a mean of float32 is divided by it
            for (int64_t f = 0; f < F; f++) {
                double mean = 0, square = 0;
                for (int64_t k = 0; k < N; k++) mean += weights[(h * N + k) * F + f] / (double)N;
                for (int64_t k = 0; k < N; k++) square += std::pow(weights[(h * N + k) * F + f] - mean, 2) / N;
                if (N > 1) least = std::min(least, std::sqrt(square));
                own[f] = N == 1 ? 0 : (weights[(h * N + n) * F + f] - mean) / std::max(std::sqrt(square), 1e-8);
            }
            for (int64_t f = 0; f < F; f++) {
                double near[7];
                for (int64_t k = -3; k <= 3; k++) {
                    const int64_t at = std::llabs(f + k);
                    near[k + 3] = own[at < F ? at : 2 * (F - 1) - at];
                }
                std::nth_element(near, near + 3, near + 7);
                require(std::fabs(maps[row * F + f] - near[3]) < 1e-5 + 1e-6 / least, "a median");
            }
        }
        int64_t *starts = room<int64_t>(N);
        require(fs_path(weights, N, F, starts, workspace, bytes) == FS_OK, "path");
        const double best = lowest(weights, N, F);
        require(std::fabs(cost(weights, N, F, starts) - best) < 1e-6 * (1 + std::fabs(best)), "a longer path");
    }
    printf("alignments: %d cases, %lld medians and the cheapest paths as in float64\n", cases, (long long)medians);
    return 0;
}

}  // namespace fuzz
