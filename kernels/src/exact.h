// Matrices of float32 whose numbers fit into fewer bytes: the numbers are those of float32, to the last bit.
//
// Published weights are often float16 or bfloat16 that were widened, and those of a folder in int8 are an integer
// times the scale of an output. A product with few rows takes as long as reading its matrix from memory, so it
// is kept narrow and widened on the way into the registers: a half or a quarter of the bytes, and every product
// and sum as before. The layout is float32's (layout.h), [N / 16][K][16]; behind each panel the scales of its
// outputs, but with bfloat16, which has float32's exponents.
#pragma once

#include "layout.h"
#include "vector.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace forescribe {
namespace FS_ISA {

struct Byte {  // times the scale of its output
    int8_t value;
};
struct Half {  // float16, times a power of two for each output: a factor of the weights keeps its small numbers
    uint16_t value;
};
struct Upper {  // the upper half of a float32, as bfloat16
    uint16_t value;
};

template <class W>
struct Exact {
    static constexpr bool value = false, scaled = false;
};
template <>
struct Exact<Byte> {
    static constexpr bool value = true, scaled = true;
};
template <>
struct Exact<Half> {
    static constexpr bool value = true, scaled = true;
};
template <>
struct Exact<Upper> {
    static constexpr bool value = true, scaled = false;
};

// The distance of panels, in elements.
template <class X>
constexpr int64_t exact_panel(int64_t inputs) {
    return inputs * PANEL + (Exact<X>::scaled ? (int64_t)(sizeof(float) / sizeof(X)) * PANEL : 0);
}

// Normal numbers get the bias of float32; subnormal ones are normal in float32. Infinities do not occur here.
FS_INLINE F widened(const U &half) {
    const U rest = (half & 0x7fffu) << 13;
    const F normal = bits<F>(rest + (112u << 23)), tiny = bits<F>(rest + (113u << 23)) - all(6.103515625e-5f);
    const F value = (half & 0x7c00u) == 0u ? tiny : normal;
    return bits<F>(bits<U>(value) | (half & 0x8000u) << 16);
}

FS_INLINE F numbers(const Half *at) {
#if defined(__AVX512F__) && !defined(FS_LANES)
    return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#elif defined(__F16C__) && defined(__AVX2__) && !defined(FS_LANES)
    return (F)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
#elif defined(__aarch64__) && !defined(FS_LANES)
    return (F)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)at)));
#else
    H half;
    __builtin_memcpy(&half, at, sizeof half);
    return widened(__builtin_convertvector(half, U));
#endif
}

FS_INLINE F numbers(const Upper *at) { return load((const uint16_t *)at); }

FS_INLINE F numbers(const Byte *at) {
#if defined(__AVX512F__) && !defined(FS_LANES)
    return (F)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
#elif defined(__AVX2__) && !defined(FS_LANES)
    return (F)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
#else
    typedef int8_t B __attribute__((vector_size(LANES)));
    B bytes;
    __builtin_memcpy(&bytes, at, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, I), F);
#endif
}

// Input `k` of a panel, in float32.
template <class X>
FS_INLINE void exact_input(const X *panel, int64_t inputs, int64_t k, F (&out)[PARTS]) {
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) {
        out[i] = numbers(panel + k * PANEL + i * LANES);
        if (Exact<X>::scaled) out[i] = out[i] * load((const float *)(panel + inputs * PANEL) + i * LANES);
    }
}

// A panel in float32: [K][16].
template <class X>
void widen_panel(const X *panel, int64_t inputs, float *to) {
    for (int64_t k = 0; k < inputs; k++) {
        F values[PARTS];
        exact_input(panel, inputs, k, values);
        for (int i = 0; i < PARTS; i++) store(to + k * PANEL + i * LANES, values[i]);
    }
}

template <class X>
FS_INLINE float *scales(X *panel, int64_t inputs) {
    return (float *)(panel + inputs * PANEL);
}

FS_INLINE float number(const Byte *panel, int64_t inputs, int64_t at) {
    return (float)panel[at].value * scales((Byte *)panel, inputs)[at % PANEL];
}
FS_INLINE float number(const Upper *panel, int64_t, int64_t at) { return widen(panel[at].value); }
FS_INLINE float number(const Half *panel, int64_t inputs, int64_t at) {
    const U half = U{} + (uint32_t)panel[at].value;
    return widened(half)[0] * scales((Half *)panel, inputs)[at % PANEL];
}

// `value` as a number of this form; false where it is none.
FS_INLINE bool narrowed_to(float value, Upper &out) {
    const uint32_t word = bits<uint32_t>(value);
    out.value = (uint16_t)(word >> 16);
    return (word & 0xffffu) == 0;
}

FS_INLINE bool narrowed_to(float value, Half &out) {
    const uint32_t word = bits<uint32_t>(value), sign = word >> 16 & 0x8000u;
    const uint32_t exponent = word >> 23 & 0xffu, mantissa = word & 0x7fffffu;
    if (exponent >= 113 && exponent <= 142) {
        out.value = (uint16_t)(sign | (exponent - 112) << 10 | mantissa >> 13);
        return (mantissa & 0x1fffu) == 0;
    }
    out.value = (uint16_t)sign;
    if ((word & 0x7fffffffu) == 0) return true;
    if (exponent < 103 || exponent > 112) return false;
    const uint32_t whole = 0x800000u | mantissa, lost = 126 - exponent;
    out.value = (uint16_t)(sign | whole >> lost);
    return (whole & ((1u << lost) - 1)) == 0;
}

// The bits of a row's largest magnitude.
FS_INLINE uint32_t largest_bits(const float *from, int64_t inputs) {
    uint32_t top = 0;
    for (int64_t k = 0; k < inputs; k++) {
        const uint32_t value = bits<uint32_t>(from[k]) & 0x7fffffffu;
        top = value > top ? value : top;
    }
    return top;
}

inline bool row_into(const float *from, int64_t inputs, Upper *panel, int64_t i) {
    bool fits = true;
    for (int64_t k = 0; k < inputs; k++) fits &= narrowed_to(from[k], panel[k * PANEL + i]);
    return fits;
}

// As it is, or divided by the power of two below its largest magnitude.
inline bool row_into(const float *from, int64_t inputs, Half *panel, int64_t i) {
    const uint32_t power = largest_bits(from, inputs) & 0x7f800000u;
    const float factors[] = {1.0f, power > 0x10000000u && power < 0x70000000u ? bits<float>(power) : 1.0f};
    bool fits = false;
    for (int c = 0; c < 2 && !fits; c++) {
        fits = true;
        for (int64_t k = 0; k < inputs; k++) fits &= narrowed_to(from[k] / factors[c], panel[k * PANEL + i]);
        scales(panel, inputs)[i] = factors[c];
    }
    return fits;
}

// An output's numbers as `scale` times integers of -127 to 127.
FS_INLINE bool integers_into(const float *from, int64_t inputs, float scale, Byte *panel, int64_t i) {
    bool fits = true;
    for (int64_t k = 0; k < inputs; k++) {
        const float rounded = from[k] / scale + 12582912.0f;  // 1.5 * 2^23: to the nearest integer
        const int32_t whole = (int32_t)(bits<uint32_t>(rounded) - 0x4b400000u);
        panel[k * PANEL + i].value = (int8_t)whole;
        fits &= whole >= -127 && whole <= 127 && bits<uint32_t>((float)whole * scale) == bits<uint32_t>(from[k]);
    }
    return fits;
}

// The scale that was a row's largest magnitude divided by 127: rounding may have moved it by one unit.
inline bool row_into(const float *from, int64_t inputs, Byte *panel, int64_t i) {
    const uint32_t top = largest_bits(from, inputs);
    float scale = 0;
    bool fits = top < 0x7f800000u;
    if (top == 0) {
        for (int64_t k = 0; k < inputs; k++) {
            panel[k * PANEL + i].value = 0;
            fits &= bits<uint32_t>(from[k]) == 0;  // not the negative zero
        }
    } else if (fits) {
        const uint32_t middle = bits<uint32_t>(bits<float>(top) / 127.0f);
        if (middle < 0x00800001u) return false;  // subnormal scales
        const uint32_t near[] = {middle, middle + 1, middle - 1};
        fits = false;
        for (int c = 0; c < 3 && !fits; c++) {
            scale = bits<float>(near[c]);
            fits = integers_into(from, inputs, scale, panel, i);
        }
    }
    scales(panel, inputs)[i] = scale;
    return fits;
}

// Panel `p` of a matrix; false where a number does not fit.
template <class X>
bool pack_exact(const float *source, int64_t outputs, int64_t inputs, int64_t p, X *packed) {
    X *panel = packed + p * exact_panel<X>(inputs);
    bool fits = true;
    for (int64_t i = 0; i < PANEL && fits; i++) {
        const int64_t n = p * PANEL + i;
        if (n < outputs) {
            fits = row_into(source + n * inputs, inputs, panel, i);
            continue;
        }
        for (int64_t k = 0; k < inputs; k++) panel[k * PANEL + i] = X{};
        if (Exact<X>::scaled) scales(panel, inputs)[i] = 0;
    }
    return fits;
}

}  // namespace FS_ISA
}  // namespace forescribe
