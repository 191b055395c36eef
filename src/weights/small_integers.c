/* Weights as small integers: scales and codes of groups, bit for bit as NumPy computes them in f32. */
#pragma GCC optimize("O3", "fp-contract=off")
#include "weights/small_integers.h"

#include "weights/floats.h"

#include <stdlib.h>

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

/* ---- a group ------------------------------------------------------------------------------------ */

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
    uint32_t largest = mn_largest_bits(x, r->group);
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
    uint64_t bytes = r->group * (r->type == MN_FLOAT_F32 ? 4 : 2);
    for (uint64_t at = 0; at < r->groups && finite; at++) {
        const float *x = mn_as_f32(row, (const char *)r->weight + at * bytes, r->group, r->type);
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
