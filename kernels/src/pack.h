// Row-major matrices into panels (layout.h).
#pragma once

#include "exact.h"
#include "forescribe.h"
#include "layout.h"
#include "team.h"
#include "vector.h"

namespace forescribe {
namespace FS_ISA {

// Panel `p`.
template <class W>
void pack_as(const float *source, int64_t outputs, int64_t inputs, int64_t p, W *packed) {
    for (int64_t i = 0; i < PANEL; i++) {
        const int64_t n = p * PANEL + i;
        const float *from = n < outputs ? source + n * inputs : nullptr;
        for (int64_t k = 0; k < inputs; k++)
            put(packed + p * inputs * PANEL + place<W>(k, i), from ? from[k] : 0.0f);
    }
}

inline void pack_int8(const int8_t *source, const float *scales, int64_t outputs, int64_t inputs, void *packed) {
    const int64_t length = quads(inputs) * 4;
    for (int64_t p = 0; p < panels(outputs); p++) {
        int8_t *panel = (int8_t *)packed + p * int8_panel(inputs);
        float *tail = (float *)(panel + length * PANEL);
        for (int64_t i = 0; i < PANEL; i++) {
            const int64_t n = p * PANEL + i;
            uint32_t sum = 0;
            for (int64_t k = 0; k < length; k++) {
                const int8_t value = n < outputs && k < inputs ? source[n * inputs + k] : (int8_t)0;
                panel[(k / 4 * PANEL + i) * 4 + k % 4] = value;
                sum += (uint32_t)(int32_t)value;
            }
            const uint32_t offset = 0u - 128u * sum;
            tail[i] = n < outputs ? scales[n] : 0.0f;
            __builtin_memcpy(tail + PANEL + i, &offset, sizeof offset);
        }
    }
}

// False where a number does not fit into an exact storage.
inline bool pack(const float *source, int64_t outputs, int64_t inputs, int32_t storage, void *packed, int32_t threads) {
    int32_t inexact = 0;
    parallel(threads, [&](const Team &team) {
        for (int64_t p = team.low(panels(outputs)); p < team.high(panels(outputs)); p++) {
            bool fits = true;
            if (storage == FS_BFLOAT16)
                pack_as(source, outputs, inputs, p, (uint16_t *)packed);
            else if (storage == FS_EXACT_INT8)
                fits = pack_exact(source, outputs, inputs, p, (Byte *)packed);
            else if (storage == FS_EXACT_FLOAT16)
                fits = pack_exact(source, outputs, inputs, p, (Half *)packed);
            else if (storage == FS_EXACT_BFLOAT16)
                fits = pack_exact(source, outputs, inputs, p, (Upper *)packed);
            else
                pack_as(source, outputs, inputs, p, (float *)packed);
            if (!fits) __atomic_store_n(&inexact, 1, __ATOMIC_RELAXED);
            if (__atomic_load_n(&inexact, __ATOMIC_RELAXED)) break;
        }
    });
    return !inexact;
}

}  // namespace FS_ISA
}  // namespace forescribe
