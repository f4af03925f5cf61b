// Layer norm and RMS norm of rows. Widths are multiples of 8; statistics in float32, in two passes.
#pragma once

#include "forescribe.h"
#include "vector.h"

namespace forescribe {
namespace FS_ISA {

FS_INLINE float inverse_root(float value) { return 1.0f / __builtin_sqrtf(value); }

// The sum of (x - mean)^2 over a row; with mean 0 the sum of squares.
FS_INLINE float spread(const float *x, float mean, int64_t width) {
    F parts[PARTS] = {};
    int64_t i = 0;
    for (; i + PANEL <= width; i += PANEL)
        for (int p = 0; p < PARTS; p++) {
            const F off = load(x + i + p * LANES) - all(mean);
            parts[p] = fma(off, off, parts[p]);
        }
    float rest = 0;
    for (; i < width; i++) rest += (x[i] - mean) * (x[i] - mean);
    return sum(parts) + rest;
}

FS_INLINE float total(const float *x, int64_t width) {
    F parts[PARTS] = {};
    int64_t i = 0;
    for (; i + PANEL <= width; i += PANEL)
        for (int p = 0; p < PARTS; p++) parts[p] += load(x + i + p * LANES);
    float rest = 0;
    for (; i < width; i++) rest += x[i];
    return sum(parts) + rest;
}

inline void layer_norm(const float *x, const fs_norm &norm, float eps, int64_t width, float *out) {
    const float mean = total(x, width) / (float)width;
    const float scale = inverse_root(spread(x, mean, width) / (float)width + eps);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store(out + i, fma((load(x + i) - all(mean)) * all(scale), load(norm.scale + i), load(norm.shift + i)));
    for (; i < width; i++) out[i] = fma((x[i] - mean) * scale, norm.scale[i], norm.shift[i]);
}

inline void rms_norm(const float *x, const float *weight, float eps, int64_t width, float *out) {
    const float scale = inverse_root(spread(x, 0.0f, width) / (float)width + eps);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store(out + i, load(x + i) * all(scale) * load(weight + i));
    for (; i < width; i++) out[i] = x[i] * scale * weight[i];
}

}  // namespace FS_ISA
}  // namespace forescribe
