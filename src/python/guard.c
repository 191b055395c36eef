/* Guarded calls: what a Python function took is given back whatever ends it.
 *
 * CPython runs signal handlers, and raises what they raise, between byte codes: also inside `finally`, `except` and
 * `__exit__`. Here is C, where none run: between the end of the function and the hand-over of its record there is
 * no place for one. The record is settled on the service thread, where no signal handler runs at all.
 */
#include <Python.h>
#include <dlfcn.h>

#include <stdbool.h>

#include "python/guard.h"

#define SETTLE_SECONDS 5.0

static PyObject *put;            /* of the inbox: takes (settle, record, error, acknowledge) */
static PyObject *new_queue;      /* makes the queue that acknowledges */
static PyObject *empty;          /* the class of its error when the time is up */
static PyObject *ending;         /* the class of the error of calls in an interpreter that ends */
static unsigned long settling_thread;
static int (*is_finalizing)(void);

/* Settle by this thread: it is the service thread, or there is none. */
static void settle_here(PyObject *settle, PyObject *record, PyObject *error) {
    PyObject *result = PyObject_CallFunctionObjArgs(settle, record, error, NULL);
    if (!result) PyErr_WriteUnraisable(settle);
    Py_XDECREF(result);
}

/* Hand over to the service thread, and wait until it has settled; false when it was not handed over. An error
 * that is set then came of a signal that arrived meanwhile. */
static bool settle_there(PyObject *settle, PyObject *record, PyObject *error) {
    PyObject *acknowledged = PyObject_CallNoArgs(new_queue);
    PyObject *item = acknowledged ? PyTuple_Pack(4, settle, record, error, acknowledged) : NULL;
    PyObject *accepted = item ? PyObject_CallFunctionObjArgs(put, item, NULL) : NULL;
    bool handed_over = accepted != NULL;
    if (!handed_over) PyErr_Clear(); /* no memory */
    Py_XDECREF(accepted);
    Py_XDECREF(item);
    if (handed_over) {
        PyObject *done = PyObject_CallMethod(acknowledged, "get", "Od", Py_True, SETTLE_SECONDS);
        if (!done && PyErr_ExceptionMatches(empty)) PyErr_Clear();
        Py_XDECREF(done);
    }
    Py_XDECREF(acknowledged);
    return handed_over;
}

/* Whether a record still holds something; it says so by its attribute `held`, if it has one. */
static bool holds(PyObject *record) {
    PyObject *held = PyObject_GetAttrString(record, "held");
    bool answer = held != Py_False;
    if (!held) PyErr_Clear();
    Py_XDECREF(held);
    return answer;
}

static void settle_failed(PyObject *settle, PyObject *record) {
    PyObject *type, *error, *trace, *later_type, *later, *later_trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    if (!holds(record)) {
        PyErr_Restore(type, error, trace);
        return;
    }
    bool here = !put || PyThread_get_thread_ident() == settling_thread || is_finalizing();
    if (here || !settle_there(settle, record, error)) settle_here(settle, record, error);
    PyErr_Fetch(&later_type, &later, &later_trace);
    if (!later_type) {
        PyErr_Restore(type, error, trace);
        return;
    }
    PyErr_NormalizeException(&later_type, &later, &later_trace);
    if (later_trace) PyException_SetTraceback(later, later_trace);
    if (later != error) PyException_SetContext(later, Py_NewRef(error));
    PyErr_Restore(later_type, later, later_trace);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
}

static int never(void) { return 0; }

PyObject *mn_guard_prepare(PyObject *module, PyObject *arguments) {
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO", &new_queue, &empty, &ending)) return NULL;
    Py_INCREF(new_queue);
    Py_INCREF(empty);
    Py_INCREF(ending);
    Py_RETURN_NONE;
}

PyObject *mn_guard_settle_by(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *accept, *previous = put;
    unsigned long thread;
    if (!PyArg_ParseTuple(arguments, "Ok", &accept, &thread)) return NULL;
    put = accept == Py_None ? NULL : Py_NewRef(accept);
    settling_thread = thread;
    Py_XDECREF(previous);
    Py_RETURN_NONE;
}

PyObject *mn_guarded(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "guarded takes a function that settles, a function, and its argument");
        return NULL;
    }
    if (!is_finalizing) {
        is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
        if (!is_finalizing) is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"); /* before 3.13 */
        if (!is_finalizing) is_finalizing = never;
    }
    if (is_finalizing() && ending) {
        PyErr_SetString(ending, "the interpreter is shutting down: no model can be used any more");
        return NULL;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(arguments[1], arguments[2], NULL);
    if (!result) settle_failed(arguments[0], arguments[2]);
    return result;
}

PyObject *mn_if_free(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "if_free takes a lock and a function");
        return NULL;
    }
    PyObject *taken = PyObject_CallMethod(arguments[0], "acquire", "O", Py_False), *type, *error, *trace;
    if (!taken || taken == Py_False) return taken;
    PyObject *result = PyObject_CallNoArgs(arguments[1]);
    PyErr_Fetch(&type, &error, &trace);
    PyObject *released = PyObject_CallMethod(arguments[0], "release", NULL);
    if (!released) PyErr_WriteUnraisable(arguments[0]);
    Py_XDECREF(released);
    PyErr_Restore(type, error, trace);
    if (!result) Py_CLEAR(taken);
    Py_XDECREF(result);
    return taken;
}
