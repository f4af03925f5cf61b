// What one instruction set offers: functions over checked arguments.
#pragma once

#include "forescribe.h"

namespace forescribe {

struct Kernels {
    const char *name;
    int64_t (*whisper_workspace)(const fs_whisper &, int64_t rows, int32_t threads);
    void (*whisper_forward)(const fs_whisper &, const fs_step &);
    void (*whisper_cross)(const fs_whisper &, const float *const *, const int64_t *, int64_t, float *,
                          int32_t);
    int64_t (*causal_workspace)(const fs_causal &, int64_t rows, int32_t threads);
    void (*causal_forward)(const fs_causal &, const fs_step &);
    void (*choose)(const fs_choice &);
    int64_t (*encoder_workspace)(const fs_encoder &, int32_t threads);
    void (*encode)(const fs_encoder &, const float *, float *, void *, int32_t threads);
    bool (*pack)(const float *, int64_t outputs, int64_t inputs, int32_t storage, void *, int32_t threads);
    void (*pack_int8)(const int8_t *, const float *scales, int64_t outputs, int64_t inputs, void *);
};

extern const Kernels generic_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avxvnni_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512vnni_kernels;
extern const Kernels avx512bf16_kernels;
#endif

}  // namespace forescribe
