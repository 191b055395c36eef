/* Weights as floats of 12 bits. What each number is: mansard/ir/float12.py. */
#ifndef MANSARD_FLOAT12_H
#define MANSARD_FLOAT12_H

#include "mansard_core.h"
#include "weights/small_integers.h"

typedef struct mn_float12 {
    const void *weight;    /* rows of `depth` numbers of type `type`, one after another */
    uint8_t *high;         /* exponent and the upper half of the mantissa: a byte each */
    uint8_t *low;          /* sign and the other three bits: in the low half of a byte each */
    float *factors;        /* one for each row */
    uint32_t *exceptions;  /* of a row `count`, `stride` words apart, those of the next row a word further */
    uint64_t rows;
    uint64_t depth;
    uint64_t stride;
    uint32_t count;
    uint32_t most; /* set by mn_float12_exceptions: of a row, at most; `depth` where a row is not exact with them */
    uint32_t type;
} mn_float12;

/* How many exceptions rows have. MN_INPUT for a weight with an element that is not finite, else MN_OK or
   MN_OUT_OF_MEMORY. */
MN_API int mn_float12_exceptions(mn_float12 *weight);
/* The same, and the numbers; MN_INPUT also where a row has more than `count` exceptions. */
MN_API int mn_to_float12(const mn_float12 *weight);

#endif
