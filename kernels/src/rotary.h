// Rotary positions: the two halves of a head as the coordinates of points that are turned.
#pragma once

#include "vector.h"

namespace forescribe {
namespace FS_ISA {

// x [2 half] in place, by the angles whose cosines and sines are given, [half] each.
inline void rotate(float *x, const float *cosine, const float *sine, int64_t half) {
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const F first = load(x + i), second = load(x + half + i), c = load(cosine + i), s = load(sine + i);
        store(x + i, first * c - second * s);
        store(x + half + i, second * c + first * s);
    }
    for (; i < half; i++) {
        const float first = x[i], second = x[half + i];
        x[i] = first * cosine[i] - second * sine[i];
        x[half + i] = second * cosine[i] + first * sine[i];
    }
}

inline void multiply(float *x, float factor, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(x + i, load(x + i) * all(factor));
    for (; i < count; i++) x[i] *= factor;
}

}  // namespace FS_ISA
}  // namespace forescribe
