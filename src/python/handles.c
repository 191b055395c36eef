#include "python/handles.h"

#include "mansard_core.h"

#define TOKENS 256

/* ---- handles that Python owns ----------------------------------------------------------------- */

typedef void (*releaser)(void *handle);

typedef struct {
    PyObject_HEAD
    void *handle;
    releaser release;
} owned_handle;

static PyTypeObject *owned_type;

static void end_owned(PyObject *self) {
    owned_handle *owned = (owned_handle *)self;
    if (owned->handle) owned->release(owned->handle);
    PyObject_Free(self);
    Py_DECREF(owned_type);
}

static PyObject *get_handle(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromVoidPtr(((owned_handle *)self)->handle);
}

static PyGetSetDef owned_attributes[] = {
    {"handle", get_handle, NULL, "The address of the object of the core.", NULL},
    {"_as_parameter_", get_handle, NULL, "What ctypes passes to functions.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot owned_slots[] = {
    {Py_tp_dealloc, end_owned},
    {Py_tp_getset, owned_attributes},
    {Py_tp_doc, "A reference to an object of the core, released with this object."},
    {0, NULL},
};

static PyType_Spec owned_spec = {
    .name = "mansard._core.Owned",
    .basicsize = sizeof(owned_handle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = owned_slots,
};

int mn_handles_prepare(void) {
    if (!owned_type) owned_type = (PyTypeObject *)PyType_FromSpec(&owned_spec);
    return owned_type ? 0 : -1;
}

/* Called by ctypes with the result, the function and its arguments; `self` is the releasing function's address. */
static PyObject *take_over(PyObject *self, PyObject *arguments) {
    PyObject *result, *function, *parameters;
    if (!PyArg_ParseTuple(arguments, "OOO", &result, &function, &parameters)) return NULL;
    if (result == Py_None) Py_RETURN_NONE;
    releaser release = (releaser)(uintptr_t)PyLong_AsVoidPtr(self);
    void *handle = PyLong_AsVoidPtr(result);
    owned_handle *owned = PyObject_New(owned_handle, owned_type);
    if (!owned) {
        release(handle);
        return NULL;
    }
    owned->handle = handle;
    owned->release = release;
    return (PyObject *)owned;
}

static PyMethodDef take_over_method = {"take_over", take_over, METH_VARARGS, "Own the handle that a function returns."};

PyObject *mn_owner(PyObject *module, PyObject *release) {
    (void)module;
    if (!PyLong_Check(release)) {
        PyErr_SetString(PyExc_TypeError, "owner takes the address of a function");
        return NULL;
    }
    return PyCFunction_NewEx(&take_over_method, release, NULL);
}

/* ---- objects that the core holds by token ------------------------------------------------------ */

static void drop(PyObject *objects, const uint64_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        PyObject *token = PyLong_FromUnsignedLongLong(tokens[i]);
        if (!token || PyDict_DelItem(objects, token)) PyErr_Clear(); /* interrupted before it was put there */
        Py_XDECREF(token);
    }
}

PyObject *mn_submit_held(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long queue, submissions;
    unsigned int count;
    PyObject *held, *entries;
    if (!PyArg_ParseTuple(arguments, "KKIO!O!", &queue, &submissions, &count, &PyDict_Type, &held, &PyDict_Type,
                          &entries))
        return NULL;
    /* First: what is submitted may be done, and its token retired, before the core returns. */
    if (PyDict_Update(held, entries)) return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = mn_queue_submit((mn_queue *)(uintptr_t)queue, (const mn_submission_desc *)(uintptr_t)submissions, count);
    Py_END_ALLOW_THREADS
    if (code != MN_OK) {
        PyObject *token, *object;
        Py_ssize_t position = 0;
        while (PyDict_Next(entries, &position, &token, &object))
            if (PyDict_DelItem(held, token)) PyErr_Clear();
    }
    return PyLong_FromLong(code);
}

PyObject *mn_drop_retired(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long queue;
    PyObject *held;
    uint64_t tokens[TOKENS];
    size_t count;
    if (!PyArg_ParseTuple(arguments, "KO!", &queue, &PyDict_Type, &held)) return NULL;
    while ((count = mn_queue_retired((mn_queue *)(uintptr_t)queue, tokens, TOKENS))) drop(held, tokens, count);
    Py_RETURN_NONE;
}

PyObject *mn_forget_released(PyObject *module, PyObject *objects) {
    (void)module;
    uint64_t tokens[TOKENS];
    size_t count;
    if (!PyDict_Check(objects)) {
        PyErr_SetString(PyExc_TypeError, "forget_released takes a dict");
        return NULL;
    }
    while ((count = mn_status_take_released(tokens, TOKENS))) drop(objects, tokens, count);
    Py_RETURN_NONE;
}
