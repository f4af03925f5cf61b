// The workspace of a forward, cut into buffers of whole cache lines.
#pragma once

#include <stdint.h>

#include "layout.h"

namespace forescribe {

// Counts bytes when there is no memory yet, and hands it out when there is.
class Carver {
public:
    explicit Carver(void *memory) : at_((char *)memory), used_(0) {}

    float *floats(int64_t count) {
        float *result = at_ ? (float *)(at_ + used_) : nullptr;
        used_ += (count * 4 + 127) / 128 * 128;
        return result;
    }
    int64_t used() const { return used_; }

private:
    char *at_;
    int64_t used_;
};

constexpr int64_t SPARE = 32;  // floats behind a row of scores: whole vectors are written

}  // namespace forescribe
