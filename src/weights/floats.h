/* Conversions of floats of 16 bits, in integer and f32 arithmetic alone. */
#ifndef MANSARD_FLOATS_H
#define MANSARD_FLOATS_H

#include "weights/small_integers.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Loops over weights are compiled a second time for vectors of 256 bits, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_VECTORS
#endif

#define INFINITE 0x7f800000u
#define MAGNITUDE 0x7fffffffu

static inline float real_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00)
        return real_of(sign | INFINITE | (rest & 0x3ff) << 13);
    /* The exponent is off by 112; subnormal numbers become normal ones by the product. */
    return real_of(sign | bits_of(real_of(rest << 13) * 0x1p112f));
}

static inline uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint16_t to_f16(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & MAGNITUDE;
    if (rest >= 0x47800000) /* 65536 and more */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) { /* below 2**-14: a multiple of 2**-24 */
        float multiple = rintf(real_of(rest) * 0x1p24f);
        return (uint16_t)(sign | (uint32_t)multiple);
    }
    rest += 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | ((rest >> 13) - (112 << 10)));
}

/* `count` numbers of `type` as f32: where they are, if they are that already, else in `row`. */
const float *mn_as_f32(float *row, const void *numbers, uint64_t count, uint32_t type);
/* The bits of the largest magnitude. */
uint32_t mn_largest_bits(const float *x, uint64_t count);

#endif
