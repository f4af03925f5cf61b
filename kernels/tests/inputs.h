// Random inputs in buffers of exactly the size that the interface asks for, so that a sanitizer sees every read
// or write outside them, and the comparison of results.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "../src/forescribe.h"

namespace fuzz {

typedef std::vector<float> Floats;
typedef std::vector<int64_t> Integers;

inline std::mt19937 bits;
inline std::vector<std::unique_ptr<char[]>> kept;  // of one case
inline std::map<const void *, const void *> whole;  // matrices in an exact storage: the same in FS_FLOAT32

inline int64_t pick(int64_t low, int64_t high) { return low + (int64_t)(bits() % (uint64_t)(high - low + 1)); }

template <class T>
T *room(int64_t count) {
    kept.emplace_back(new char[count * sizeof(T)]());
    return (T *)kept.back().get();
}

inline int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

inline float rounded(float value) {  // to bfloat16, half up: inputs, so that ties do not matter
    uint32_t word;
    memcpy(&word, &value, 4);
    word = (word + 0x8000u) & 0xffff0000u;
    memcpy(&value, &word, 4);
    return value;
}

// `count` normal numbers, then zeros up to `size`; those of matrices in bfloat16 are rounded to it.
inline float *normal(int64_t count, int64_t size, double deviation, int32_t storage = FS_FLOAT32) {
    std::normal_distribution<float> numbers(0, (float)deviation);
    float *at = room<float>(size);
    for (int64_t i = 0; i < count; i++) at[i] = storage == FS_BFLOAT16 ? rounded(numbers(bits)) : numbers(bits);
    return at;
}

inline void require(bool holds, const char *what) {
    if (holds) return;
    printf("FAILED: %s (%s)\n", what, fs_isa());
    fflush(stdout);
    _Exit(1);
}

// Weights as integers of up to 127, each output with its scale.
inline void pack_integers(const float *weight, int64_t out, int64_t in, void *packed) {
    int8_t *integers = room<int8_t>(out * in);
    float *scales = room<float>(out);
    for (int64_t n = 0; n < out; n++) {
        float top = 0;
        for (int64_t k = 0; k < in; k++) top = std::fmax(top, std::fabs(weight[n * in + k]));
        scales[n] = top / 127;
        for (int64_t k = 0; k < in && top > 0; k++)
            integers[n * in + k] = (int8_t)std::nearbyint(weight[n * in + k] * 127 / top);
    }
    require(fs_pack_int8(integers, scales, out, in, packed) == FS_OK, "fs_pack_int8");
}

inline void *packed_as(const float *weight, int64_t out, int64_t in, int32_t storage) {
    void *packed = room<char>(fs_packed_bytes(out, in, storage));
    require(fs_pack(weight, out, in, storage, packed, (int32_t)pick(1, 3)) == FS_OK, "fs_pack");
    return packed;
}

// A number of float16, with a factor that makes some of them subnormal.
inline float half(float value) {
    const float step = std::fabs(value) < 6.1e-5f ? 5.9604644775390625e-8f : std::ldexp(1.0f, std::ilogb(value) - 10);
    return std::nearbyint(value / step) * step;
}

// The nearest matrix whose numbers an exact storage has.
inline const float *fitting(const float *weight, int64_t out, int64_t in, int32_t storage) {
    float *to = room<float>(out * in);
    const float factor = pick(0, 1) ? 0.125f : 1.0f, tiny = pick(0, 1) ? 1e-3f : 1.0f;
    for (int64_t n = 0; n < out; n++) {
        float top = 0;
        for (int64_t k = 0; k < in; k++) top = std::fmax(top, std::fabs(weight[n * in + k]));
        const float scale = top / 127;
        for (int64_t k = 0; k < in && top > 0; k++) {
            const float value = weight[n * in + k];
            to[n * in + k] = storage == FS_EXACT_INT8      ? std::nearbyint(value / scale) * scale + 0.0f
                             : storage == FS_EXACT_FLOAT16 ? half(value * tiny) * factor
                                                           : rounded(value);
        }
    }
    return to;
}

inline fs_linear linear(const float *weight, int64_t out, int64_t in, int32_t storage, bool biased, bool exact = true) {
    float *bias = biased ? normal(out, padded(out), 0.1) : nullptr;
    if (storage == FS_INT8) {
        void *packed = room<char>(fs_packed_bytes(out, in, storage));
        pack_integers(weight, out, in, packed);
        return {packed, bias, storage};
    }
    if (storage == FS_FLOAT32 && exact && pick(0, 3)) {
        const int32_t form = (int32_t)pick(FS_EXACT_INT8, FS_EXACT_BFLOAT16);
        const float *fit = fitting(weight, out, in, form);
        void *packed = packed_as(fit, out, in, form);
        whole[packed] = packed_as(fit, out, in, FS_FLOAT32);
        return {packed, bias, form};
    }
    return {packed_as(weight, out, in, storage), bias, storage};
}

// In float32 where an exact storage was.
inline void widen(fs_linear &matrix) {
    if (matrix.storage >= FS_EXACT_INT8) matrix.weight = whole[matrix.weight], matrix.storage = FS_FLOAT32;
}

inline fs_linear linear(int64_t out, int64_t in, int32_t storage, bool biased, bool exact = true) {
    return linear(normal(out * in, out * in, 1 / std::sqrt((double)in), storage), out, in, storage, biased, exact);
}

inline std::vector<std::string> usable_sets() {  // `generic` first
    std::vector<std::string> found = {"generic"};
    std::istringstream names(fs_isas());
    for (std::string name; names >> name;)
        if (name != "generic" && fs_isa_usable(name.c_str())) found.push_back(name);
    return found;
}

// The largest difference, as a share of the largest number where that is above 1. Infinities must be equal.
inline double difference(const Floats &found, const Floats &expected) {
    require(found.size() == expected.size(), "sizes");
    double most = 1, worst = 0;
    for (float value : expected)
        if (!std::isinf(value)) most = std::fmax(most, std::fabs(value));
    for (size_t i = 0; i < found.size(); i++) {
        if (std::isinf(expected[i]) && found[i] == expected[i]) continue;
        const double error = std::fabs((double)found[i] - expected[i]) / most;
        require(error == error, "a result is NaN");
        worst = std::fmax(worst, error);
    }
    return worst;
}

// The same bits, -0 and NaN included.
inline bool same(const Floats &a, const Floats &b) {
    return a.size() == b.size() && (a.empty() || !memcmp(a.data(), b.data(), a.size() * 4));
}

enum Form { PLAIN, HALF, INTEGERS };  // everything in float32, something in bfloat16, matrices in int8

// The largest differences from `generic`: in float32; with something stored in bfloat16; that on the set that
// also rounds the other factors of products to bfloat16 (2^-9 of each, so a shallow model differs by some
// hundredths); and with matrices in int8, where a number that differs in its last bit may be rounded to the next
// integer.
struct Differences {
    double worst[4] = {0, 0, 0, 0};
    void add(double error, Form form) {
        double &most = worst[form == INTEGERS ? 3 : form == PLAIN ? 0 : strcmp(fs_isa(), "avx512bf16") ? 1 : 2];
        most = std::fmax(most, error);
    }
    int report(const char *subject, int cases) const {
        printf("%s: %d cases on", subject, cases);
        for (const std::string &set : usable_sets()) printf(" %s", set.c_str());
        printf("; largest difference from generic %.1e in float32, %.1e with storage in bfloat16, "
               "%.1e with its products, %.1e with matrices in int8\n", worst[0], worst[1], worst[2], worst[3]);
        return worst[0] < 2e-5 && worst[1] < 3e-2 && worst[2] < 1e-1 && worst[3] < 1e-1 ? 0 : 1;
    }
};

int whisper(int cases);
int decoders(int cases);
int encoders(int cases);
int choices(int cases);
int alignments(int cases);
int arguments();

}  // namespace fuzz
