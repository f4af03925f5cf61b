// Row-major matrices into panels (layout.h).
#pragma once

#include "forescribe.h"
#include "layout.h"
#include "vector.h"

namespace forescribe {
namespace FS_ISA {

template <class W>
void pack_as(const float *source, int64_t outputs, int64_t inputs, W *packed) {
    for (int64_t p = 0; p < panels(outputs); p++)
        for (int64_t i = 0; i < PANEL; i++) {
            const int64_t n = p * PANEL + i;
            const float *from = n < outputs ? source + n * inputs : nullptr;
            for (int64_t k = 0; k < inputs; k++)
                put(packed + p * inputs * PANEL + place<W>(k, i), from ? from[k] : 0.0f);
        }
}

inline void pack(const float *source, int64_t outputs, int64_t inputs, int32_t storage, void *packed) {
    if (storage == FS_BFLOAT16)
        pack_as(source, outputs, inputs, (uint16_t *)packed);
    else
        pack_as(source, outputs, inputs, (float *)packed);
}

}  // namespace FS_ISA
}  // namespace forescribe
