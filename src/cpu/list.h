/* A command list as the executor runs it: a program for the pool. */
#ifndef MANSARD_CPU_LIST_H
#define MANSARD_CPU_LIST_H

#include "cpu/pool.h"

/* Write the slots' addresses into the list and make it ready to run on `threads` threads. MN_EXECUTION
 * when a slot is not bound. */
int mn_cpu_list_prepare(mn_cpu_list *list, const uint64_t *slots, uint32_t slot_count, int threads);

/* The program of a prepared list; to be run once. */
mn_program *mn_cpu_list_program(mn_cpu_list *list);

#endif
