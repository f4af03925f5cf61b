// Row-major matrices into panels (layout.h).
#pragma once

#include "layout.h"
#include "vector.h"

namespace forescribe {
namespace FS_ISA {

inline void pack(const float *source, int64_t outputs, int64_t inputs, int32_t storage, void *packed) {
    for (int64_t p = 0; p < panels(outputs); p++)
        for (int64_t i = 0; i < PANEL; i++) {
            const int64_t n = p * PANEL + i;
            const float *from = n < outputs ? source + n * inputs : nullptr;
            for (int64_t k = 0; k < inputs; k++) {
                const float value = from ? from[k] : 0.0f;
                if (storage == 0)
                    ((float *)packed)[(p * inputs + k) * PANEL + i] = value;
                else
                    ((uint16_t *)packed)[p * inputs * PANEL + ((k / 2) * PANEL + i) * 2 + (k & 1)] =
                        narrow(value);
            }
        }
}

}  // namespace FS_ISA
}  // namespace forescribe
