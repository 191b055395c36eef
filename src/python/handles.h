/* What Python holds of the core and what the core holds of Python: taken and given back in C, where no signal
 * handler comes between a thing and its record. */
#ifndef MANSARD_HANDLES_H
#define MANSARD_HANDLES_H

#include <Python.h>

/* owner(release): an `errcheck` of ctypes functions that return a handle. It makes an object of it with the
 * attribute `handle`, whose end calls the C function at the address `release`; None of NULL. */
PyObject *mn_owner(PyObject *module, PyObject *release);

/* submit_held(queue, submissions, count, held, entries): mn_queue_submit, with the dict `entries`, objects by
 * token, added to the dict `held` if the queue took all of them. Returns the code. */
PyObject *mn_submit_held(PyObject *module, PyObject *arguments);

/* drop_retired(queue, held): take the objects of a queue's retired submissions out of `held`. */
PyObject *mn_drop_retired(PyObject *module, PyObject *arguments);

/* forget_released(objects): take the objects of statuses that are gone out of a dict by token. */
PyObject *mn_forget_released(PyObject *module, PyObject *objects);

/* Prepare the type of owned handles; -1 with an error set. */
int mn_handles_prepare(void);

#endif
