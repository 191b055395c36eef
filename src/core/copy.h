/* Copies by the host; see copy.c for how. */
#ifndef MANSARD_COPY_H
#define MANSARD_COPY_H

#include "core/internal.h"

/* Forget the helpers: they are the parent's. */
void mn_copy_after_fork(void);

#endif
