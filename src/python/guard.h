/* The functions of the extension module that need the interpreter: guarded calls. */
#ifndef MANSARD_GUARD_H
#define MANSARD_GUARD_H

#include <Python.h>

/* guarded(settle, function, record): function(record); when that raises and the record still holds something,
 * settle(record, error) has run on the service thread before the error goes on. */
PyObject *mn_guarded(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* guard_prepare(queue class, its error when empty, class of errors of an interpreter that ends) */
PyObject *mn_guard_prepare(PyObject *module, PyObject *arguments);

/* guard_settle_by(put, thread): that thread settles what `put` accepts, or nobody does (None, 0). */
PyObject *mn_guard_settle_by(PyObject *module, PyObject *arguments);

/* if_free(lock, function): call the function with the lock held, which whatever ends it releases; False when
 * somebody else has the lock. */
PyObject *mn_if_free(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
