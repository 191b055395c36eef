/* The extension module `mansard._core`: a shell that makes the C API below it loadable.
 *
 * Python imports it only to learn the path of the shared object; every call goes through ctypes,
 * which releases the interpreter lock. No Python API is used besides this initialiser.
 */
#include <Python.h>

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mansard._core",
    .m_doc = "The native core; call it through mansard.hal.native.",
    .m_size = 0,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&core_module); }
