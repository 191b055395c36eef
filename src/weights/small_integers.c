/* Weights as small integers: scales and codes of groups, bit for bit as NumPy computes them in f32. */
#pragma GCC optimize("O3", "fp-contract=off")
#include "weights/small_integers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The loops over a group are compiled a second time for vectors of 256 bits, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_VECTORS
#endif

#define INFINITE 0x7f800000u
#define MAGNITUDE 0x7fffffffu

static float real_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- element types ------------------------------------------------------------------------------ */

static float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00)
        return real_of(sign | INFINITE | (rest & 0x3ff) << 13);
    /* The exponent is off by 112; subnormal numbers become normal ones by the product. */
    return real_of(sign | bits_of(real_of(rest << 13) * 0x1p112f));
}

static uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t to_f16(float value)
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

/* A scale in its type, away from zero: the number that kernels read. */
static float store_scale(const mn_rounding *r, uint64_t at, float scale)
{
    if (r->scale_type == MN_FLOAT_F32) {
        ((float *)r->scales)[at] = scale;
        return scale;
    }
    bool wide = r->scale_type == MN_FLOAT_BF16;
    uint16_t rounded = wide ? to_bf16(scale) : to_f16(scale);
    float read = wide ? real_of((uint32_t)rounded << 16) : from_f16(rounded);
    if (fabsf(read) < fabsf(scale)) {
        rounded++;
        read = wide ? real_of((uint32_t)rounded << 16) : from_f16(rounded);
    }
    ((uint16_t *)r->scales)[at] = rounded;
    return read;
}

WITH_VECTORS static void widen(float *to, const uint16_t *from, uint64_t count)
{
    uint32_t *bits = (uint32_t *)to;
    for (uint64_t i = 0; i < count; i++)
        bits[i] = (uint32_t)from[i] << 16;
}

/* ---- a group ------------------------------------------------------------------------------------ */

/* The bits of the largest magnitude. */
WITH_VECTORS static uint32_t largest_bits(const float *x, uint64_t count)
{
    const uint32_t *bits = (const uint32_t *)x;
    uint32_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t magnitude = bits[i] & MAGNITUDE;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

WITH_VECTORS static void round_group(
    uint8_t *codes, const float *x, uint64_t count, float inverse, float zero, float low, float high, int mask)
{
    for (uint64_t i = 0; i < count; i++) {
        float whole = __builtin_rintf(x[i] * inverse) + zero;
        whole = whole < low ? low : whole;
        whole = whole > high ? high : whole;
        codes[i] = (uint8_t)((int)whole & mask);
    }
}

/* The same where the scale has no finite inverse: 0 / 0 has the code 0. */
static void round_tiny_group(
    uint8_t *codes, const float *x, uint64_t count, float inverse, float zero, float low, float high, int mask)
{
    for (uint64_t i = 0; i < count; i++) {
        float whole = rintf(x[i] * inverse) + zero;
        int code = isnan(whole) ? 0 : (int)fminf(fmaxf(whole, low), high);
        codes[i] = (uint8_t)(code & mask);
    }
}

static bool round_one(const mn_rounding *r, const float *x, uint64_t at)
{
    uint32_t largest = largest_bits(x, r->group);
    float scale, low, high, zero = 0;
    if (largest >= INFINITE)
        return false;
    if (r->zeros != NULL) {
        float least = 0, most = 0;
        for (uint64_t i = 0; i < r->group; i++) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        low = 0, high = r->bits == 8 ? 255 : 15;
        scale = store_scale(r, at, (most - least) / high);
        zero = rintf(-least * (scale != 0 ? 1 / scale : 0));
        if (!isnan(zero))
            zero = fminf(fmaxf(zero, low), high);
        r->zeros[at] = isnan(zero) ? 0 : (uint8_t)zero;
    } else if (r->bits == 8) {
        low = -127, high = 127;
        scale = store_scale(r, at, real_of(largest) / 127);
    } else {
        uint64_t first = 0;
        while ((bits_of(x[first]) & MAGNITUDE) != largest)
            first++;
        low = -8, high = 7;
        scale = store_scale(r, at, x[first] / -8);
    }
    float inverse = scale != 0 ? 1 / scale : 0;
    (isfinite(inverse) ? round_group : round_tiny_group)(
        r->codes + at * r->group, x, r->group, inverse, zero, low, high, r->bits == 8 ? 255 : 15);
    return true;
}

int mn_round_weight(const mn_rounding *r)
{
    float *row = r->type == MN_FLOAT_F32 ? NULL : malloc(r->group * sizeof(float));
    bool finite = true;
    if (row == NULL && r->type != MN_FLOAT_F32)
        return MN_OUT_OF_MEMORY;
    for (uint64_t at = 0; at < r->groups && finite; at++) {
        const float *x = row;
        if (r->type == MN_FLOAT_F32) {
            x = (const float *)r->weight + at * r->group;
        } else if (r->type == MN_FLOAT_BF16) {
            widen(row, (const uint16_t *)r->weight + at * r->group, r->group);
        } else {
            for (uint64_t i = 0; i < r->group; i++)
                row[i] = from_f16(((const uint16_t *)r->weight)[at * r->group + i]);
        }
        finite = round_one(r, x, at);
    }
    free(row);
    return finite ? MN_OK : MN_INPUT;
}

WITH_VECTORS void mn_pack_nibbles(const uint8_t *nibbles, uint8_t *packed, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        packed[i] = (uint8_t)((nibbles[2 * i] & 15) | nibbles[2 * i + 1] << 4);
}
