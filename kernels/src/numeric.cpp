// All numeric code of one instruction set. Compiled once for each, with -DFS_ISA=name and its flags.
// Uses no template of the standard library: its functions would be shared between instruction sets.
#include "causal.h"
#include "choice.h"
#include "encoder.h"
#include "glibc.h"
#include "pack.h"
#include "table.h"
#include "whisper.h"

namespace forescribe {
namespace FS_ISA {

static int64_t whisper_bytes(const fs_whisper &model, int64_t rows, int32_t threads) {
    Carver carver(nullptr);
    WhisperBuffers::carve(model, rows, threads, carver);
    return carver.used();
}

// Storage of weights, self-attention caches and cross-attention caches: the combinations in use.
static void forward(const fs_whisper &m, const fs_step &step) {
    const bool half = m.weight_storage == FS_BFLOAT16, cross = m.cross_storage == FS_BFLOAT16;
    if (m.weight_storage == FS_INT8)
        cross ? whisper_forward<int8_t, uint16_t, uint16_t>(m, step) : whisper_forward<int8_t, float, float>(m, step);
    else if (half)
        whisper_forward<uint16_t, uint16_t, uint16_t>(m, step);
    else if (cross)
        whisper_forward<float, float, uint16_t>(m, step);
    else
        whisper_forward<float, float, float>(m, step);
}

static void cross(const fs_whisper &m, const float *const *states, const int64_t *rows, int64_t count,
                  float *packed, int32_t threads) {
    if (m.cache_storage == FS_BFLOAT16)  // the storage of these weights
        whisper_cross<uint16_t, uint16_t>(m, states, rows, count, packed, threads);
    else if (m.cross_storage == FS_BFLOAT16)
        whisper_cross<float, uint16_t>(m, states, rows, count, packed, threads);
    else
        whisper_cross<float, float>(m, states, rows, count, packed, threads);
}

static int64_t causal_bytes(const fs_causal &model, int64_t rows, int32_t threads) {
    Carver carver(nullptr);
    CausalBuffers::carve(model, rows, threads, carver);
    return carver.used();
}

static void causal(const fs_causal &m, const fs_step &step) {
    const bool half = m.cache_storage == FS_BFLOAT16;
    if (m.weight_storage == FS_INT8)
        half ? causal_forward<int8_t, uint16_t>(m, step) : causal_forward<int8_t, float>(m, step);
    else if (half)
        causal_forward<uint16_t, uint16_t>(m, step);
    else
        causal_forward<float, float>(m, step);
}

static int64_t encoder_bytes(const fs_encoder &model, int32_t threads) {
    Carver carver(nullptr);
    EncoderBuffers::carve(model, threads, carver, 0);
    return carver.used();
}

#define FS_TEXT(name) #name
#define FS_NAME(name) FS_TEXT(name)
#define FS_JOIN(name) name##_kernels
#define FS_TABLE(name) FS_JOIN(name)

static const Kernels table = {FS_NAME(FS_ISA), whisper_bytes, forward, cross, causal_bytes,
                              causal, choose, encoder_bytes, encode, pack, pack_int8};

}  // namespace FS_ISA

extern const Kernels FS_TABLE(FS_ISA);
const Kernels FS_TABLE(FS_ISA) = FS_ISA::table;

}  // namespace forescribe
