/* Weights as floats of 12 bits, rounded to the nearest; ties to even. */
#pragma GCC optimize("O3", "fp-contract=off")
#include "weights/float12.h"
#include "weights/floats.h"

#include <stdlib.h>

#define LARGEST 0x7ffu
#define BIAS (112u << 7)
#define SIGN 11
#define EXPONENT_ONE 127

/* x times the powers of two has the number's exponent, and rounds to its mantissa as an f32 does to bf16's. What
   is too small for that gets the smallest exponent and mantissa, zeros with either sign in turn. */
WITH_VECTORS static void to_numbers(uint16_t *numbers, const float *x, uint64_t count, float to_one)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(x[i] * to_one), magnitude = bits & MAGNITUDE;
        uint32_t sign = magnitude == 0 ? (uint32_t)i & 1 : bits >> 31;
        uint32_t number = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
        number = number < BIAS ? 0 : number - BIAS;
        number = number > LARGEST ? LARGEST : number;
        numbers[i] = (uint16_t)(sign << SIGN | number);
    }
}

WITH_VECTORS static void split(uint8_t *high, uint8_t *low, const uint16_t *numbers, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        high[i] = (uint8_t)(numbers[i] >> 3);
    for (uint64_t i = 0; i < count; i++)
        low[i] = (uint8_t)((numbers[i] & 7) | numbers[i] >> SIGN << 3);
}

int mn_to_float12(const mn_float12 *w)
{
    uint64_t bytes = w->depth * (w->type == MN_FLOAT_F32 ? 4 : 2);
    float *row = malloc(w->depth * sizeof *row);
    uint16_t *numbers = malloc(w->depth * sizeof *numbers);
    int status = row != NULL && numbers != NULL ? MN_OK : MN_OUT_OF_MEMORY;
    for (uint64_t at = 0; at < w->rows && status == MN_OK; at++) {
        const float *x = mn_as_f32(row, (const char *)w->weight + at * bytes, w->depth, w->type);
        uint32_t largest = mn_largest_bits(x, w->depth), exponent = largest >> 23;
        if (largest >= INFINITE) {
            status = MN_INPUT;
            break;
        }
        exponent = exponent == 0 ? 1 : exponent; /* subnormal numbers have the factor of the smallest normal */
        w->factors[at] = largest == 0 ? 0 : real_of(exponent << 23);
        /* 2**(127 - its exponent), which is subnormal for the largest */
        float to_one = exponent < 2 * EXPONENT_ONE ? real_of((2 * EXPONENT_ONE - exponent) << 23) : 0x1p-127f;
        to_numbers(numbers, x, w->depth, to_one);
        split(w->high + at * w->depth, w->low + at * w->depth, numbers, w->depth);
    }
    free(row);
    free(numbers);
    return status;
}
