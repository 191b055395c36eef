/* Weights as floats of 12 bits. What each number is: mansard/ir/float12.py. */
#ifndef MANSARD_FLOAT12_H
#define MANSARD_FLOAT12_H

#include "mansard_core.h"
#include "weights/small_integers.h"

typedef struct mn_float12 {
    const void *weight; /* rows of `depth` numbers of type `type`, one after another */
    uint8_t *high;      /* exponent and the upper half of the mantissa: a byte each */
    uint8_t *low;       /* sign and the other three bits: in the low half of a byte each */
    float *factors;     /* one for each row */
    uint64_t rows;
    uint64_t depth;
    uint32_t type;
} mn_float12;

/* MN_INPUT for a weight with an element that is not finite, else MN_OK or MN_OUT_OF_MEMORY. */
MN_API int mn_to_float12(const mn_float12 *weight);

#endif
