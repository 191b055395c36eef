/* Weights as small integers. What each number is: mansard/passes/products/quantiser.py. */
#ifndef MANSARD_SMALL_INTEGERS_H
#define MANSARD_SMALL_INTEGERS_H

#include "mansard_core.h"

typedef enum mn_float { MN_FLOAT_F32 = 0, MN_FLOAT_F16 = 1, MN_FLOAT_BF16 = 2 } mn_float;

typedef struct mn_rounding {
    const void *weight; /* groups of `group` numbers of type `type`, one after another */
    uint8_t *codes;     /* a byte each; 4-bit ones in its low half */
    void *scales;       /* one of `scale_type` for each group */
    uint8_t *zeros;     /* one for each group; NULL: codes are symmetric */
    uint64_t groups;
    uint64_t group;
    uint32_t type;
    uint32_t scale_type;
    uint32_t bits; /* 4 or 8 */
} mn_rounding;

/* MN_INPUT for a weight with an element that is not finite, else MN_OK or MN_OUT_OF_MEMORY. */
MN_API int mn_round_weight(const mn_rounding *rounding);

/* Pairs of 4-bit integers, each in the low half of a byte, to a byte: the first in the low half. */
MN_API void mn_pack_nibbles(const uint8_t *nibbles, uint8_t *packed, uint64_t bytes);

#endif
