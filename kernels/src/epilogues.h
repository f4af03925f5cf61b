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

// Adds to what is there, multiplied by `scale`: with 1 the same sum, to the bit.
struct Add {
    float *out;
    int64_t stride;
    const float *bias;
    float scale = 1;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        for (int i = 0; i < PARTS; i++) {
            float *at = out + row * stride + column + i * LANES;
            store(at, fma(all(scale), with_bias(v[i], bias, column + i * LANES), load(at)));
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

// A gated feed-forward: panels of gate and of the other half alternate, and come in order.
struct Gated {
    float *out;
    int64_t stride;
    const float *bias;
    int32_t activation;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        float *at = out + row * stride + column / (2 * PANEL) * PANEL;
        const bool gate = column % (2 * PANEL) == 0;
        for (int i = 0; i < PARTS; i++) {
            const F x = with_bias(v[i], bias, column + i * LANES);
            if (gate)
                store(at + i * LANES, activation == FS_SILU ? silu(x) : activation == FS_GELU ? gelu(x) : relu(x));
            else
                store(at + i * LANES, load(at + i * LANES) * x);
        }
    }
};

// Into memory that is not padded: columns from `width` on are dropped; each row is multiplied by a factor
// of its own where there is one.
struct Cut {
    float *out;
    int64_t stride, width;
    const float *factor, *bias = nullptr;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        float *at = out + row * stride + column;
        const F scale = factor ? all(factor[row]) : all(1.0f);
        if (width - column >= PANEL)
            for (int i = 0; i < PARTS; i++)
                store(at + i * LANES, with_bias(v[i] * scale, bias, column + i * LANES));
        else
            for (int i = 0; i < PARTS; i++) part(at + i * LANES, with_bias(v[i] * scale, bias, column + i * LANES),
                     width - column - i * LANES);
    }
    // Not inlined: an array in the caller would take the sums out of their registers.
    static __attribute__((noinline)) void part(float *at, F value, int64_t left) {
        float lanes[LANES];
        store(lanes, value);
        for (int64_t i = 0; i < left && i < LANES; i++) at[i] = lanes[i];
    }
};

}  // namespace FS_ISA
}  // namespace forescribe
