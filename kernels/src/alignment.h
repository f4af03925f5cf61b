// Where tokens are spoken, from the attention of several heads: the reference is asr/words/timing.py, whose
// results these are, to the last bit. One copy for all instruction sets: wider vectors bring nothing.
#pragma once

#include "buffers.h"

namespace forescribe {

constexpr int64_t REACH = 3;  // neighbours on each side in a median

struct AlignmentBuffers {
    double *mean, *square;       // [F]; of a path the costs up to each frame in a row, and in the one before it
    float *centre, *deviation;   // [F]
    float *row;                  // [F + 2 REACH] with its reflections
    float *low, *middle, *high;  // [F + 4] each three neighbours of it, sorted
    int32_t *entries;            // [N, F] twice the frame where the path enters the row, + 1 if it comes from there

    static AlignmentBuffers carve(int64_t rows, int64_t frames, Carver &carver) {
        const auto doubles = [&] { return (double *)carver.floats(2 * frames); };
        const auto floats = [&] { return carver.floats(frames + 2 * REACH); };
        return {doubles(), doubles(), floats(), floats(), floats(), floats(), floats(), floats(),
                (int32_t *)carver.floats(rows * frames)};
    }
};

inline float lesser(float a, float b) { return a < b ? a : b; }
inline float larger(float a, float b) { return a > b ? a : b; }

// The mean and the deviation of each frame over rows [N, F], by Welford's sums in float64 as in torch.std_mean.
inline void frame_statistics(const float *rows, int64_t count, int64_t frames, const AlignmentBuffers &b) {
    double *__restrict mean = b.mean, *__restrict square = b.square;
    for (int64_t f = 0; f < frames; f++) mean[f] = square[f] = 0;
    for (int64_t n = 0; n < count; n++) {
        const float *__restrict row = rows + n * frames;
        const double number = (double)(n + 1);
        for (int64_t f = 0; f < frames; f++) {
            const double value = row[f], delta = value - mean[f], next = mean[f] + delta / number;
            square[f] = square[f] + delta * (value - next);
            mean[f] = next;
        }
    }
    float *__restrict centre = b.centre, *__restrict deviation = b.deviation;
    for (int64_t f = 0; f < frames; f++) {
        centre[f] = (float)mean[f];
        deviation[f] = larger((float)__builtin_sqrt(square[f] / (double)count), 1e-8f);
    }
}

// The median of each seven neighbours: all triples are sorted once, and of two of them the third and the fourth
// number follow from pairs of ranks; the median of seven is between these.
inline void medians(const AlignmentBuffers &buffers, int64_t frames, float *__restrict out) {
    const float *__restrict x = buffers.row;
    float *__restrict low = buffers.low, *__restrict middle = buffers.middle, *__restrict high = buffers.high;
    for (int64_t f = 0; f < frames + 4; f++) {
        const float less = lesser(x[f], x[f + 1]), more = larger(x[f], x[f + 1]), rest = lesser(more, x[f + 2]);
        low[f] = lesser(less, rest), middle[f] = larger(less, rest), high[f] = larger(more, x[f + 2]);
    }
    for (int64_t f = 0; f < frames; f++) {
        const float a = low[f], b = middle[f], c = high[f], d = low[f + 4], e = middle[f + 4], g = high[f + 4];
        const float below = lesser(lesser(c, g), lesser(larger(a, e), larger(b, d)));
        const float above = lesser(larger(b, e), lesser(larger(a, g), larger(c, d)));
        out[f] = larger(below, lesser(above, x[f + REACH]));
    }
}

// Maps [H, count, F] of the rows from `first` on, from weights [H, N, F]; F is above REACH.
inline void sharpen(const float *weights, int64_t heads, int64_t rows, int64_t frames, int64_t first, int64_t count,
                    float *maps, void *workspace) {
    Carver carver(workspace);
    const AlignmentBuffers b = AlignmentBuffers::carve(0, frames, carver);
    for (int64_t head = 0; head < heads; head++, weights += rows * frames) {
        frame_statistics(weights, rows, frames, b);
        for (int64_t n = first; n < first + count; n++, maps += frames) {
            const float *__restrict row = weights + n * frames, *__restrict centre = b.centre;
            const float *__restrict deviation = b.deviation;
            float *__restrict own = b.row + REACH;
            for (int64_t f = 0; f < frames; f++) own[f] = (row[f] - centre[f]) / deviation[f];
            for (int64_t i = 1; i <= REACH; i++) own[-i] = own[i], own[frames - 1 + i] = own[frames - 1 - i];
            medians(b, frames, maps);
        }
    }
}

// Dynamic time warping, a row at a time: the cheapest way to a frame entered its row at one of the frames up to
// it, from the row before, and went on along the row. The first frame of each row [N] of a map [N, F].
inline void find_path(const float *map, int64_t rows, int64_t frames, int64_t *starts, void *workspace) {
    Carver carver(workspace);
    const AlignmentBuffers b = AlignmentBuffers::carve(rows, frames, carver);
    double *costs = b.mean, *before = b.square, sum = 0;
    for (int64_t f = 0; f < frames; f++) costs[f] = sum = sum - (double)map[f];
    for (int64_t n = 1; n < rows; n++) {
        double *const last = costs;
        costs = before, before = last;
        const float *row = map + n * frames;
        int32_t *entries = b.entries + n * frames, entry = 1;
        double along = -(double)row[0], lowest = before[0];
        costs[0] = along + lowest, entries[0] = entry;
        for (int64_t f = 1; f < frames; f++) {
            const double cost = -(double)row[f], diagonal = before[f - 1], straight = before[f];
            along += cost;
            const double entered = (straight < diagonal ? straight : diagonal) - (along - cost);
            if (entered <= lowest) lowest = entered, entry = (int32_t)(2 * f + (straight < diagonal));
            costs[f] = along + lowest, entries[f] = entry;
        }
    }
    starts[0] = 0;
    for (int64_t n = rows - 1, frame = frames - 1; n > 0; n--) {
        const int32_t entry = b.entries[n * frames + frame];
        starts[n] = entry / 2, frame = entry / 2 - 1 + entry % 2;
    }
}

inline int64_t alignment_bytes(int64_t rows, int64_t frames) {
    Carver carver(nullptr);
    AlignmentBuffers::carve(rows, frames, carver);
    return carver.used();
}

}  // namespace forescribe
