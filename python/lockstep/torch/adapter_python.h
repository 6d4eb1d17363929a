/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter_python.h - what the C++ form needs of CPython. The module links no Python, so that one
 * build serves all its versions: the loader finds the functions in the process, or leaves NULL.
 * (dlsym() would make a module that is built with glibc 2.34 or later need that version.)
 */
#ifndef LOCKSTEP_TORCH_ADAPTER_PYTHON_H
#define LOCKSTEP_TORCH_ADAPTER_PYTHON_H

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>

#define LS_WEAK __attribute__((weak))
extern "C" {
LS_WEAK int PyGILState_Ensure();
LS_WEAK void PyGILState_Release(int state);
LS_WEAK void *PyEval_GetFrame();
LS_WEAK void *PyFrame_GetBack(void *frame);
LS_WEAK void *PyFrame_GetCode(void *frame);
LS_WEAK int PyFrame_GetLineNumber(void *frame);
LS_WEAK int PyFrame_GetLasti(void *frame);
LS_WEAK void *PyObject_GetAttrString(void *object, const char *name);
LS_WEAK const char *PyUnicode_AsUTF8AndSize(void *string, ptrdiff_t *bytes);
LS_WEAK void PyErr_Clear();
LS_WEAK void Py_IncRef(void *object);
LS_WEAK void Py_DecRef(void *object);
LS_WEAK void *PyGILState_GetThisThreadState();
LS_WEAK void PyErr_Fetch(void **type, void **value, void **trace);
LS_WEAK void PyErr_Restore(void *type, void *value, void *trace);
LS_WEAK int PyGILState_Check();
LS_WEAK void *PyEval_SaveThread();
LS_WEAK void PyEval_RestoreThread(void *state);
}
#undef LS_WEAK

namespace lockstep_torch
{

/* An operator of PyTorch that _cpp.py implements. */
template <typename F> c10::TypedOperatorHandle<F> in_python(const char *name)
{
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

/* Objects are addresses. "new": the caller drops the reference. */
class python
{
  public:
    int (*ensure)();                                     // PyGILState_Ensure
    void (*release)(int state);                          // PyGILState_Release
    void *(*frame)();                                    // PyEval_GetFrame
    void *(*back)(void *frame);                          // PyFrame_GetBack: new
    void *(*code)(void *frame);                          // PyFrame_GetCode: new
    int (*line)(void *frame);                            // PyFrame_GetLineNumber
    int (*instruction)(void *frame);                     // PyFrame_GetLasti; NULL before 3.11
    void *(*attribute)(void *object, const char *name);  // PyObject_GetAttrString: new
    const char *(*text)(void *string, ptrdiff_t *bytes); // PyUnicode_AsUTF8AndSize
    void (*clear)();                                     // PyErr_Clear
    void (*keep)(void *object);                          // Py_IncRef
    void (*drop)(void *object);                          // Py_DecRef

    static const python &here()
    {
        static const python found;

        return found;
    }

    bool knows_this_thread() const
    {
        return is_usable && this_thread() != nullptr;
    }

    /* Runs the signal handlers that are due, if this is the main thread. What one raises is thrown
     * as PyTorch throws exceptions of Python, which reach the program as they are: the function in
     * Python is called as an operator of PyTorch (_cpp.py). */
    void run_signal_handlers() const
    {
        static const auto handlers = in_python<void()>("lockstep::run_signal_handlers");

        if (knows_this_thread())
            handlers.call();
    }

    void (*fetch)(void **type, void **value, void **trace); // PyErr_Fetch: new
    void (*restore)(void *type, void *value, void *trace);  // PyErr_Restore: drops

    int (*has_lock)();            // PyGILState_Check
    void *(*unlock)();            // PyEval_SaveThread
    void (*lock)(void *unlocked); // PyEval_RestoreThread

  private:
    void *(*this_thread)(); // PyGILState_GetThisThreadState
    bool is_usable = true;

    python()
    {
        find(ensure, PyGILState_Ensure);
        find(release, PyGILState_Release);
        find(frame, PyEval_GetFrame);
        find(back, PyFrame_GetBack);
        find(code, PyFrame_GetCode);
        find(line, PyFrame_GetLineNumber);
        instruction = PyFrame_GetLasti;
        find(attribute, PyObject_GetAttrString);
        find(text, PyUnicode_AsUTF8AndSize);
        find(clear, PyErr_Clear);
        find(keep, Py_IncRef);
        find(drop, Py_DecRef);
        find(this_thread, PyGILState_GetThisThreadState);
        find(fetch, PyErr_Fetch);
        find(restore, PyErr_Restore);
        find(has_lock, PyGILState_Check);
        find(unlock, PyEval_SaveThread);
        find(lock, PyEval_RestoreThread);
    }

    template <typename F> void find(F &function, F found)
    {
        function = found;
        is_usable = is_usable && function != nullptr;
    }
};

/* An exception on its way to Python, which PyTorch leaves in the interpreter, does not reach what
 * this thread calls meanwhile. */
class error_aside
{
  public:
    error_aside()
    {
        if (!py.knows_this_thread())
            return;
        const int state = py.ensure();

        py.fetch(&type, &value, &trace);
        py.release(state);
    }

    error_aside(const error_aside &) = delete;
    error_aside &operator=(const error_aside &) = delete;

    ~error_aside()
    {
        if (type == nullptr)
            return;
        const int state = py.ensure();

        py.restore(type, value, trace);
        py.release(state);
    }

  private:
    const python &py = python::here();
    void *type = nullptr;
    void *value = nullptr;
    void *trace = nullptr;
};

} // namespace lockstep_torch

#endif
