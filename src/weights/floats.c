/* What conversions of weights share. */
#pragma GCC optimize("O3", "fp-contract=off")
#include "weights/floats.h"

WITH_VECTORS static void widen(float *to, const uint16_t *from, uint64_t count)
{
    uint32_t *bits = (uint32_t *)to;
    for (uint64_t i = 0; i < count; i++)
        bits[i] = (uint32_t)from[i] << 16;
}

const float *mn_as_f32(float *row, const void *numbers, uint64_t count, uint32_t type)
{
    if (type == MN_FLOAT_F32)
        return numbers;
    const uint16_t *halves = numbers;
    if (type == MN_FLOAT_BF16) {
        widen(row, halves, count);
        return row;
    }
    for (uint64_t i = 0; i < count; i++)
        row[i] = from_f16(halves[i]);
    return row;
}

WITH_VECTORS uint32_t mn_largest_bits(const float *x, uint64_t count)
{
    const uint32_t *bits = (const uint32_t *)x;
    uint32_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t magnitude = bits[i] & MAGNITUDE;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}
