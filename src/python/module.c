/* The extension module `mansard._core`: makes the C API below it loadable, and has the functions that need the
 * interpreter.
 *
 * Python learns from it the path of the shared object; every other call goes through ctypes, which releases
 * the interpreter lock.
 */
#include "python/guard.h"

static PyMethodDef methods[] = {
    {"guarded", (PyCFunction)(void (*)(void))mn_guarded, METH_FASTCALL,
     "guarded(settle, function, record): function(record), settled whatever ends it."},
    {"if_free", (PyCFunction)(void (*)(void))mn_if_free, METH_FASTCALL,
     "if_free(lock, function): function() with the lock held, unless somebody has it."},
    {"guard_prepare", mn_guard_prepare, METH_VARARGS, "The classes that guarded calls use."},
    {"guard_settle_by", mn_guard_settle_by, METH_VARARGS, "Who settles guarded calls."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mansard._core",
    .m_doc = "The native core; call it through mansard.hal.native.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&core_module); }
