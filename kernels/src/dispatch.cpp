// The exported functions: argument checks, and the choice of the instruction set.
#include <string.h>

#if defined(FS_HAS_AVX2)
#include <cpuid.h>
#endif

#include "alignment.h"
#include "buffers.h"
#include "draft_loop.h"
#include "glibc.h"
#include "steps.h"
#include "table.h"

#ifndef FS_SOURCE_HASH
#define FS_SOURCE_HASH "unknown"
#endif

namespace forescribe {
namespace {

const Kernels *chosen = nullptr;

struct Isa {
    const char *name;
    const Kernels *kernels;
    bool (*usable)();
};

#if defined(FS_HAS_AVX2)
// Compilers before 2021 do not know the name of this one.
bool has_f16c() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
#endif

#if defined(FS_HAS_AVXVNNI)
bool has_avxvnni() {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
#endif

// Best first, of those that were compiled. The compiler's run-time support asks the processor and the
// operating system. The list is constant: one that is made at the first call would need libstdc++.
constexpr Isa isas[] = {
#if defined(FS_HAS_AVX512BF16)
    {"avx512bf16", &avx512bf16_kernels,
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16") &&
                __builtin_cpu_supports("avx512vnni");
     }},
#endif
#if defined(FS_HAS_AVX512VNNI)
    {"avx512vnni", &avx512vnni_kernels,
     [] { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni"); }},
#endif
#if defined(FS_HAS_AVX512)
    {"avx512", &avx512_kernels, [] { return __builtin_cpu_supports("avx512f") != 0; }},
#endif
#if defined(FS_HAS_AVXVNNI)
    {"avxvnni", &avxvnni_kernels, has_avxvnni},
#endif
#if defined(FS_HAS_AVX2)
    {"avx2", &avx2_kernels, has_avx2},
#endif
    {"generic", &generic_kernels, [] { return true; }},
};

const Kernels &kernels() {
    if (!chosen) fs_choose_isa(nullptr);
    return *chosen;
}

bool known_storage(int32_t storage) { return storage == FS_FLOAT32 || storage == FS_BFLOAT16; }

// Caches are stored as the matrices are; beside matrices in int8 as either of the others.
bool fits(int32_t weights, int32_t caches) { return weights == FS_INT8 || weights == caches; }

// Matrices of a model whose storage is `weights`.
bool fits(const fs_linear &linear, int32_t weights) {
    return linear.storage == weights ||
           (weights == FS_FLOAT32 && linear.storage >= FS_EXACT_INT8 && linear.storage <= FS_EXACT_BFLOAT16);
}

template <int N>
bool fit(const fs_linear *const (&all)[N], int32_t weights) {
    for (const fs_linear *linear : all)
        if (!fits(*linear, weights)) return false;
    return true;
}

// What `output_of` reads.
bool known_rows(const fs_linear &embedding) {
    return embedding.storage >= FS_FLOAT32 && embedding.storage <= FS_EXACT_BFLOAT16 &&
           embedding.storage != FS_INT8;
}

bool known_activation(int32_t activation) { return activation >= FS_GELU && activation <= FS_SILU; }

int32_t check_whisper(const fs_whisper &m) {
    if (!known_storage(m.cache_storage) || !known_storage(m.cross_storage) ||
        !fits(m.weight_storage, m.cache_storage) || !known_activation(m.activation))
        return FS_BAD_SHAPE;
    if (m.width < 8 || m.heads < 1 || m.layers < 1 || m.ffn < 8 || m.vocab < 1 || m.positions < 1)
        return FS_BAD_SHAPE;
    if (m.width % m.heads || (m.width / m.heads) % 8 || m.ffn % 8 || m.sources < 1) return FS_BAD_SHAPE;
    if ((m.weight_storage != FS_FLOAT32) && m.cache_storage != m.cross_storage) return FS_BAD_SHAPE;
    if (m.outputs < 1 || m.outputs > m.vocab) return FS_BAD_SHAPE;
    if (m.width > WIDEST || m.ffn > WIDEST || m.sources > WIDEST) return FS_BAD_SHAPE;
    const int32_t w = m.weight_storage;
    if (!known_rows(m.embedding) || !fits(m.head, w)) return FS_BAD_SHAPE;
    for (int64_t i = 0; i < m.layers; i++) {
        const fs_whisper_layer &l = m.layer[i];
        if (!fit({&l.qkv, &l.self_out, &l.cross_query, &l.cross_out, &l.up, &l.down}, w)) return FS_BAD_SHAPE;
        if (l.cross_value.storage != m.cache_storage) return FS_BAD_SHAPE;
    }
    return m.batch < 1 || m.slots < 1 ? FS_BAD_SHAPE : FS_OK;
}

int32_t check_causal(const fs_causal &m) {
    if (!known_storage(m.cache_storage) || !fits(m.weight_storage, m.cache_storage) ||
        !known_activation(m.activation))
        return FS_BAD_SHAPE;
    if (m.width < 8 || m.width % 2 || m.layers < 1 || m.ffn < 2 || m.ffn % 2 || m.vocab < 1) return FS_BAD_SHAPE;
    if (m.heads < 1 || m.key_heads < 1 || m.heads % m.key_heads || m.head < 8 || m.head % 8)
        return FS_BAD_SHAPE;
    if (m.width > WIDEST || m.ffn > WIDEST || m.heads * m.head > WIDEST) return FS_BAD_SHAPE;
    if (m.outputs < 1 || m.outputs > m.vocab || m.columns < m.outputs || m.positions < 1) return FS_BAD_SHAPE;
    if (!known_rows(m.embedding) || !fits(m.projection, m.weight_storage)) return FS_BAD_SHAPE;
    for (int64_t i = 0; i < m.layers; i++) {
        const fs_causal_layer &l = m.layer[i];
        if (l.window < 0 || !fit({&l.qkv, &l.out, &l.gate_up, &l.down}, m.weight_storage)) return FS_BAD_SHAPE;
    }
    return m.batch < 1 || m.slots < 1 ? FS_BAD_SHAPE : FS_OK;
}

int32_t check_encoder(const fs_encoder &m) {
    if (!known_storage(m.weight_storage) || !known_activation(m.activation)) return FS_BAD_SHAPE;
    if (m.ffn > WIDEST || 3 * padded(m.width) > WIDEST || 3 * m.mels > WIDEST) return FS_BAD_SHAPE;
    if (m.width < 8 || m.width % 8 || m.heads < 1 || m.layers < 1 || m.ffn < 8 || m.ffn % 8) return FS_BAD_SHAPE;
    if (m.width % m.heads || (m.width / m.heads) % 8 || m.mels < 2 || m.mels % 2) return FS_BAD_SHAPE;
    const int32_t w = m.weight_storage;
    if (m.conv1.storage != w || m.conv2.storage != w) return FS_BAD_SHAPE;
    for (int64_t i = 0; i < m.layers; i++) {
        const fs_encoder_layer &l = m.layer[i];
        const fs_linear *const all[] = {&l.query, &l.key, &l.value, &l.out, &l.up, &l.down};
        for (const fs_linear *each : all)
            if (each->storage != w && each->storage != FS_INT8) return FS_BAD_SHAPE;
    }
    return m.sources < 1 ? FS_BAD_SHAPE : FS_OK;
}

}  // namespace
}  // namespace forescribe

using namespace forescribe;

#define FS_EXPORT extern "C" __attribute__((visibility("default")))

FS_EXPORT int32_t fs_abi(void) { return FS_ABI; }

FS_EXPORT const char *fs_source_hash(void) { return FS_SOURCE_HASH; }

FS_EXPORT int32_t fs_openmp(void) {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}

FS_EXPORT const char *fs_isas(void) {
    return
#if defined(FS_HAS_AVX512BF16)
        "avx512bf16 "
#endif
#if defined(FS_HAS_AVX512VNNI)
        "avx512vnni "
#endif
#if defined(FS_HAS_AVX512)
        "avx512 "
#endif
#if defined(FS_HAS_AVXVNNI)
        "avxvnni "
#endif
#if defined(FS_HAS_AVX2)
        "avx2 "
#endif
        "generic";
}

FS_EXPORT int32_t fs_isa_usable(const char *name) {
    for (const Isa &isa : isas)
        if (!strcmp(isa.name, name)) return isa.usable();
    return 0;
}

FS_EXPORT int32_t fs_choose_isa(const char *name) {
    for (const Isa &isa : isas)
        if ((!name || !strcmp(isa.name, name)) && isa.usable()) {
            chosen = isa.kernels;
            return FS_OK;
        }
    return FS_BAD_ISA;
}

FS_EXPORT const char *fs_isa(void) { return kernels().name; }

FS_EXPORT int64_t fs_packed_bytes(int64_t outputs, int64_t inputs, int32_t storage) {
    if (storage == FS_INT8) return panels(outputs) * int8_panel(inputs);
    const int64_t values = packed_values(outputs, inputs), scales = panels(outputs) * COLUMNS * 4;
    if (storage == FS_EXACT_INT8) return values + scales;
    return values * storage_bytes(storage) + (storage == FS_EXACT_FLOAT16 ? scales : 0);
}

FS_EXPORT int32_t fs_pack(const float *source, int64_t outputs, int64_t inputs, int32_t storage, void *to,
                          int32_t threads) {
    if (outputs < 1 || inputs < 2 || inputs % 2 || threads < 1) return FS_BAD_SHAPE;
    if (storage < FS_FLOAT32 || storage > FS_EXACT_BFLOAT16 || storage == FS_INT8) return FS_BAD_SHAPE;
    return kernels().pack(source, outputs, inputs, storage, to, threads) ? FS_OK : FS_INEXACT;
}

FS_EXPORT int32_t fs_pack_int8(const int8_t *source, const float *scales, int64_t outputs, int64_t inputs, void *to) {
    if (outputs < 1 || inputs < 2 || inputs % 2) return FS_BAD_SHAPE;
    kernels().pack_int8(source, scales, outputs, inputs, to);
    return FS_OK;
}

FS_EXPORT int64_t fs_cross_bytes(int64_t sources, int64_t head, int32_t storage) {
    const int64_t keys = cross_key_values(sources, head), values = cross_value_values(sources, head);
    return (keys > values ? keys : values) * storage_bytes(storage);
}

FS_EXPORT int64_t fs_whisper_workspace(const fs_whisper *model, int64_t rows, int32_t threads) {
    const int64_t cross = padded(model->sources) * model->width * 4;  // packed encoder states
    const int64_t forward = kernels().whisper_workspace(*model, rows, threads);
    return forward > cross ? forward : cross;
}

FS_EXPORT int32_t fs_whisper_forward(const fs_whisper *model, const fs_step *step) {
    int32_t error = check_whisper(*model);
    if (!error) error = check_step(*step, model->batch, model->slots, model->vocab);
    if (!error) error = check_taps(*step, model->layers);
    if (!error && step->embedded) error = FS_BAD_SHAPE;
    if (error) return error;
    const int64_t rows = step->batch * step->nodes;
    if (step->workspace_bytes < fs_whisper_workspace(model, rows, step->threads)) return FS_NO_MEMORY;
    kernels().whisper_forward(*model, *step);
    return FS_OK;
}

FS_EXPORT int32_t fs_whisper_cross(const fs_whisper *model, const float *const *states, const int64_t *rows,
                                   int64_t count, void *workspace, int64_t bytes, int32_t threads) {
    const int32_t error = check_whisper(*model);
    if (error) return error;
    if (threads < 1 || count < 0) return FS_BAD_SHAPE;
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= model->batch) return FS_BAD_SLOT;
    if (bytes < fs_whisper_workspace(model, 1, threads)) return FS_NO_MEMORY;
    kernels().whisper_cross(*model, states, rows, count, (float *)workspace, threads);
    return FS_OK;
}

FS_EXPORT int64_t fs_encoder_workspace(const fs_encoder *model, int32_t threads) {
    return kernels().encoder_workspace(*model, threads);
}

FS_EXPORT int32_t fs_encode(const fs_encoder *model, const float *features, float *states, void *workspace,
                            int64_t bytes, int32_t threads) {
    const int32_t error = check_encoder(*model);
    if (error) return error;
    if (threads < 1) return FS_BAD_SHAPE;
    if (bytes < fs_encoder_workspace(model, threads)) return FS_NO_MEMORY;
    kernels().encode(*model, features, states, workspace, threads);
    return FS_OK;
}

FS_EXPORT int64_t fs_causal_workspace(const fs_causal *model, int64_t rows, int32_t threads) {
    return kernels().causal_workspace(*model, rows, threads);
}

FS_EXPORT int32_t fs_causal_forward(const fs_causal *model, const fs_step *step) {
    int32_t error = check_causal(*model);
    if (!error) error = check_step(*step, model->batch, model->slots, model->vocab);
    if (!error) error = check_taps(*step, model->layers);
    if (!error && step->queries) error = FS_BAD_SHAPE;
    if (error) return error;
    const int64_t rows = step->batch * step->nodes;
    if (step->workspace_bytes < fs_causal_workspace(model, rows, step->threads)) return FS_NO_MEMORY;
    kernels().causal_forward(*model, *step);
    return FS_OK;
}

FS_EXPORT int32_t fs_choose(const fs_choice *choice) {
    if (choice->count < 0 || choice->vocab < 1 || choice->threads < 1) return FS_BAD_SHAPE;
    if (choice->bias) {
        if (choice->split < 0 || choice->split > choice->vocab) return FS_BAD_SHAPE;
        for (int64_t n = 0; n < choice->count; n++)
            if (choice->kind[n] < 0 || choice->kind[n] >= choice->kinds) return FS_BAD_SHAPE;
    }
    kernels().choose(*choice);
    return FS_OK;
}

FS_EXPORT int64_t fs_alignment_workspace(int64_t rows, int64_t frames) { return alignment_bytes(rows, frames); }

FS_EXPORT int32_t fs_sharpen(const float *weights, int64_t heads, int64_t rows, int64_t frames, int64_t first,
                             int64_t count, float *maps, void *workspace, int64_t bytes) {
    if (heads < 1 || rows < 1 || frames <= REACH || frames > WIDEST) return FS_BAD_SHAPE;
    if (first < 0 || first > rows || count < 0 || count > rows - first) return FS_BAD_SHAPE;
    if (bytes < alignment_bytes(0, frames)) return FS_NO_MEMORY;
    sharpen(weights, heads, rows, frames, first, count, maps, workspace);
    return FS_OK;
}

FS_EXPORT int32_t fs_path(const float *map, int64_t rows, int64_t frames, int64_t *starts, void *workspace,
                          int64_t bytes) {
    if (rows < 1 || rows > WIDEST || frames < 1 || frames > WIDEST) return FS_BAD_SHAPE;
    if (bytes < alignment_bytes(rows, frames)) return FS_NO_MEMORY;
    find_path(map, rows, frames, starts, workspace);
    return FS_OK;
}

FS_EXPORT int32_t fs_whisper_draft(const fs_whisper *model, const fs_step *first, fs_draft *draft) {
    if (draft->columns != model->outputs) return FS_BAD_SHAPE;
    int32_t error = check_whisper(*model);
    if (!error) error = check_draft(*first, *draft, model->batch, model->slots, model->vocab);
    if (error) return error;
    if (first->workspace_bytes < fs_whisper_workspace(model, first->batch * first->nodes, first->threads))
        return FS_NO_MEMORY;
    return draft_loop(kernels(), *first, *draft,
                      [&](const fs_step &step) { return fs_whisper_forward(model, &step); });
}

FS_EXPORT int32_t fs_causal_draft(const fs_causal *model, const fs_step *first, fs_draft *draft) {
    if (draft->columns != model->columns) return FS_BAD_SHAPE;
    int32_t error = check_causal(*model);
    if (!error) error = check_draft(*first, *draft, model->batch, model->slots, model->vocab);
    if (error) return error;
    if (first->workspace_bytes < fs_causal_workspace(model, first->batch * first->nodes, first->threads))
        return FS_NO_MEMORY;
    return draft_loop(kernels(), *first, *draft,
                      [&](const fs_step &step) { return fs_causal_forward(model, &step); });
}
