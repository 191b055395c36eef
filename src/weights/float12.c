/* Weights as floats of 12 bits, exactly: what these cannot represent becomes an exception of its row. */
#pragma GCC optimize("O3", "fp-contract=off")
#include "weights/float12.h"
#include "weights/floats.h"

#include <stdlib.h>

#define SMALLEST (112u << 23) /* 2**-15, in f32 */
#define RANGE (16u << 23)
#define SIGN 11
#define EXPONENT_ONE 127
#define EXPONENTS 256
#define WINDOW 16

/* A row, and the power of two that brings its exponents to those that numbers have. */
typedef struct row {
    float *x; /* numbers that are bf16 */
    uint64_t depth;
    float factor;
    float to_one; /* its reciprocal */
} row;

/* Rounded to bf16: the nearest, ties to even; the largest where that is infinite. */
WITH_VECTORS static void round_to_bf16(float *rounded, const float *x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)to_bf16(x[i]) << 16;
        rounded[i] = real_of((bits & MAGNITUDE) < INFINITE ? bits : bits - 0x10000);
    }
}

static inline int is_exception(uint32_t bits)
{
    return (bits & MAGNITUDE) - SMALLEST >= RANGE;
}

WITH_VECTORS static uint32_t count_exceptions(const row *r)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < r->depth; i++)
        count += (uint32_t)is_exception(bits_of(r->x[i] * r->to_one));
    return count;
}

static void scale_by(row *r, uint32_t exponent)
{
    r->factor = real_of(exponent << 23);
    /* 2**(127 - exponent), which is subnormal for the largest */
    r->to_one = exponent < 2 * EXPONENT_ONE ? real_of((2 * EXPONENT_ONE - exponent) << 23) : 0x1p-127f;
}

/* The highest of the WINDOW exponents, `largest` or lower, that leave out the fewest numbers. */
static uint32_t best_exponent(const row *r, uint32_t largest)
{
    uint32_t counts[EXPONENTS] = {0}, best = largest, most = 0;
    for (uint64_t i = 0; i < r->depth; i++)
        counts[(bits_of(r->x[i]) & MAGNITUDE) >> 23]++;
    for (uint32_t top = largest; top > 0 && top + WINDOW > largest; top--) {
        uint32_t inside = 0;
        for (uint32_t at = top; at > 0 && at + WINDOW > top; at--)
            inside += counts[at];
        if (inside > most)
            most = inside, best = top;
    }
    return best;
}

/* Whether all numbers are products of the factor and numbers with as many bits: not where the power of two makes
   some subnormal. */
WITH_VECTORS static int is_exact(const row *r)
{
    int exact = 1;
    for (uint64_t i = 0; i < r->depth; i++)
        exact &= r->x[i] * r->to_one * r->factor == r->x[i];
    return exact;
}

/* Choose the factor of a row whose largest magnitude has these bits; how many exceptions it has with that. */
static uint32_t choose(row *r, uint32_t largest)
{
    uint32_t exponent = largest >> 23;
    exponent = exponent == 0 ? 1 : exponent; /* subnormal numbers have the factor of the smallest normal */
    scale_by(r, exponent);
    if (largest == 0) {
        r->factor = 0;
        return 0;
    }
    uint32_t exceptions = count_exceptions(r);
    uint32_t best = exceptions > 1 ? best_exponent(r, exponent) : exponent;
    if (best != exponent) {
        row other = *r;
        scale_by(&other, best);
        uint32_t fewer = count_exceptions(&other);
        if (fewer < exceptions) {
            *r = other;
            exceptions = fewer;
        }
    }
    return exponent < 2 * EXPONENT_ONE || is_exact(r) ? exceptions : (uint32_t)r->depth;
}

/* An exception has the smallest number, with its own sign; so has zero in a row of zeros. */
WITH_VECTORS static void to_numbers(uint16_t *numbers, const row *r)
{
    for (uint64_t i = 0; i < r->depth; i++) {
        uint32_t bits = bits_of(r->x[i] * r->to_one);
        uint32_t number = is_exception(bits) ? 0 : (bits & MAGNITUDE) - SMALLEST;
        numbers[i] = (uint16_t)(bits >> 31 << SIGN | number >> 16);
    }
}

WITH_VECTORS static void split(uint8_t *high, uint8_t *low, const uint16_t *numbers, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        high[i] = (uint8_t)(numbers[i] >> 3);
    for (uint64_t i = 0; i < count; i++)
        low[i] = (uint8_t)((numbers[i] & 7) | numbers[i] >> SIGN << 3);
}

/* The bf16 of each exception over its place in the row, then 2**-15 over a place that no row has. */
static void list_exceptions(uint32_t *words, const mn_float12 *w, const row *r, uint32_t exceptions)
{
    uint32_t found = 0;
    for (uint64_t i = 0; i < r->depth && found < exceptions; i++) {
        uint32_t bits = bits_of(r->x[i] * r->to_one);
        if (is_exception(bits))
            words[w->stride * found++] = (bits & 0xffff0000) | (uint32_t)i;
    }
    for (; found < w->count; found++)
        words[w->stride * found] = SMALLEST | 0xffff;
}

static int each_row(const mn_float12 *w, uint32_t *most)
{
    uint64_t bytes = w->depth * (w->type == MN_FLOAT_F32 ? 4 : 2);
    float *x = malloc(w->depth * sizeof *x);
    uint16_t *numbers = malloc(w->depth * sizeof *numbers);
    int status = x != NULL && numbers != NULL ? MN_OK : MN_OUT_OF_MEMORY;
    for (uint64_t at = 0; at < w->rows && status == MN_OK; at++) {
        row r = {.x = x, .depth = w->depth};
        const float *given = mn_as_f32(x, (const char *)w->weight + at * bytes, w->depth, w->type);
        uint32_t largest = mn_largest_bits(given, w->depth);
        if (largest >= INFINITE) {
            status = MN_INPUT;
            break;
        }
        if (w->type != MN_FLOAT_BF16) {
            round_to_bf16(x, given, w->depth);
            largest = mn_largest_bits(x, w->depth);
        }
        uint32_t exceptions = choose(&r, largest);
        if (most != NULL) {
            *most = exceptions > *most ? exceptions : *most;
        } else if (exceptions > w->count) {
            status = MN_INPUT;
        } else {
            w->factors[at] = r.factor;
            to_numbers(numbers, &r);
            split(w->high + at * w->depth, w->low + at * w->depth, numbers, w->depth);
            list_exceptions(w->exceptions + at, w, &r, exceptions);
        }
    }
    free(x);
    free(numbers);
    return status;
}

int mn_float12_exceptions(mn_float12 *w)
{
    w->most = 0;
    return each_row(w, &w->most);
}

int mn_to_float12(const mn_float12 *w)
{
    return each_row(w, NULL);
}
