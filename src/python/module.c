/* The extension module `mansard._core`: makes the C API below it loadable, and has the functions that need the
 * interpreter.
 *
 * Python learns from it the path of the shared object; every other call goes through ctypes, which releases
 * the interpreter lock.
 */
#include "python/guard.h"
#include "python/handles.h"

static PyMethodDef methods[] = {
    {"guarded", (PyCFunction)(void (*)(void))mn_guarded, METH_FASTCALL,
     "guarded(settle, function, record): function(record), settled whatever ends it."},
    {"if_free", (PyCFunction)(void (*)(void))mn_if_free, METH_FASTCALL,
     "if_free(lock, function): function() with the lock held, unless somebody has it."},
    {"guard_prepare", mn_guard_prepare, METH_VARARGS, "The classes that guarded calls use."},
    {"guard_settle_by", mn_guard_settle_by, METH_VARARGS, "Who settles guarded calls."},
    {"owner", mn_owner, METH_O, "owner(release): makes objects of the handles that functions of ctypes return."},
    {"submit_held", mn_submit_held, METH_VARARGS,
     "submit_held(queue, submissions, count, held, entries): submit, and hold the entries until they are done."},
    {"drop_retired", mn_drop_retired, METH_VARARGS, "drop_retired(queue, held): let go of what is done."},
    {"forget_released", mn_forget_released, METH_O, "forget_released(objects): let go of what statuses named."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mansard._core",
    .m_doc = "The native core; call it through mansard.hal.native.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__core(void) { return mn_handles_prepare() ? NULL : PyModule_Create(&core_module); }
