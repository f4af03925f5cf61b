// exp(x - maximum) of a row, in place, and the sum of it. NaN anywhere makes every result NaN.
#pragma once

#include "functions.h"

namespace forescribe {
namespace FS_ISA {

// The largest number of a row; NaN is passed over.
FS_INLINE float largest(const float *x, int64_t count) {
    float best = -__builtin_inff();
    int64_t i = 0;
    if (count >= LANES) {
        F top = load(x);
        for (i = LANES; i + LANES <= count; i += LANES) {
            const F value = load(x + i);
            top = value > top ? value : top;
        }
        float part[LANES];
        store(part, top);
        for (int lane = 0; lane < LANES; lane++)
            if (part[lane] > best) best = part[lane];
    }
    for (; i < count; i++)
        if (x[i] > best) best = x[i];
    return best;
}

// exp(x - top) in place, of whole panels: what lies behind `count` is overwritten too. Returns the sum over the
// panels that end within `count`; `rest` is that of the others.
FS_INLINE float exponentials(float *x, int64_t count, float top, float &rest) {
    F parts[PARTS] = {};
    for (int64_t i = 0; i < count; i += PANEL) {
        F values[PARTS];
        for (int p = 0; p < PARTS; p++) {
            values[p] = exp(load(x + i + p * LANES) - all(top));
            store(x + i + p * LANES, values[p]);
        }
        if (i + PANEL <= count)
            for (int p = 0; p < PARTS; p++) parts[p] += values[p];
        else
            for (int64_t j = i; j < count; j++) rest += x[j];
    }
    return sum(parts);
}

// Returns the sum of the exponentials. `x` has room for a multiple of PANEL; what lies behind `count` is
// overwritten with zeros.
FS_INLINE float exponentials(float *x, int64_t count) {
    const float top = largest(x, count);
    for (int64_t i = count; i % PANEL; i++) x[i] = top;
    float rest = 0;
    const float whole = exponentials(x, count, top, rest);
    for (int64_t i = count; i % PANEL; i++) x[i] = 0;
    return whole + rest;
}

}  // namespace FS_ISA
}  // namespace forescribe
