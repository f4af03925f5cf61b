// What happens to the outputs of a product: bias, activation, residual, storage.
//
// Each is called once per row and panel of 16 columns with the sums still in registers. Buffers of
// activations have rows padded to a multiple of 16; padding columns receive zeros from zero weights.
#pragma once

#include "forescribe.h"
#include "functions.h"

namespace forescribe {
namespace FS_ISA {

FS_INLINE F with_bias(const F &value, const float *bias, int64_t column) {
    return bias ? value + load(bias + column) : value;
}

struct Write {
    float *out;
    int64_t stride;
    const float *bias;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        for (int i = 0; i < PARTS; i++)
            store(out + row * stride + column + i * LANES, with_bias(v[i], bias, column + i * LANES));
    }
};

struct Add {
    float *out;
    int64_t stride;
    const float *bias;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        for (int i = 0; i < PARTS; i++) {
            float *at = out + row * stride + column + i * LANES;
            store(at, load(at) + with_bias(v[i], bias, column + i * LANES));
        }
    }
};

struct Activate {
    float *out;
    int64_t stride;
    const float *bias;
    int32_t activation;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        for (int i = 0; i < PARTS; i++) {
            const F x = with_bias(v[i], bias, column + i * LANES);
            const F y = activation == FS_GELU ? gelu(x) : activation == FS_RELU ? relu(x) : silu(x);
            store(out + row * stride + column + i * LANES, y);
        }
    }
};

// Into memory that is not padded: columns from `width` on are dropped; each row is multiplied by a factor
// of its own where there is one.
struct Cut {
    float *out;
    int64_t stride, width;
    const float *factor;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        float *at = out + row * stride + column;
        float values[PANEL];
        for (int i = 0; i < PARTS; i++)
            store(values + i * LANES, factor ? v[i] * all(factor[row]) : v[i]);
        const int64_t left = width - column;
        if (left >= PANEL)
            __builtin_memcpy(at, values, sizeof values);
        else
            for (int64_t i = 0; i < left; i++) at[i] = values[i];
    }
};

}  // namespace FS_ISA
}  // namespace forescribe
