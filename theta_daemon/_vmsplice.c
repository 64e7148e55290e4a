/* vmsplice(2), which Python's os module does not have. What it is for, and the rule that its caller must keep: lending.py. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/uio.h>

/* More buffers than a pipe of 1 MiB can take in packets; the kernel copies the whole list each time. */
#define VECTORS 64

static PyObject *lend(PyObject *self, PyObject *arguments) {
    PyObject *buffers;
    Py_ssize_t first, offset;
    int fd;
    struct iovec vectors[VECTORS];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iO!nn", &fd, &PyList_Type, &buffers, &first, &offset))
        return NULL;
    Py_ssize_t total = PyList_GET_SIZE(buffers);
    int count = 0;
    if (first < 0 || first > total || offset < 0) {
        PyErr_SetString(PyExc_ValueError, "there is no such buffer");
        return NULL;
    }
    for (; count < VECTORS && first + count < total; count++) {
        Py_buffer view;
        if (PyObject_GetBuffer(PyList_GET_ITEM(buffers, first + count), &view, PyBUF_SIMPLE) < 0)
            return NULL;
        vectors[count].iov_base = view.buf;
        vectors[count].iov_len = (size_t)view.len;
        PyBuffer_Release(&view); /* the list keeps its owner */
    }
    if (offset > 0) {
        if (count == 0 || (size_t)offset >= vectors[0].iov_len) {
            PyErr_SetString(PyExc_ValueError, "the first buffer is shorter");
            return NULL;
        }
        vectors[0].iov_base = (char *)vectors[0].iov_base + offset;
        vectors[0].iov_len -= (size_t)offset;
    }
    ssize_t done;
    Py_BEGIN_ALLOW_THREADS;
    done = vmsplice(fd, vectors, (unsigned long)count, 0);
    Py_END_ALLOW_THREADS;
    if (done < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    size_t rest = (size_t)done;
    int whole = 0;
    while (whole < count && rest >= vectors[whole].iov_len)
        rest -= vectors[whole++].iov_len;
    if (whole == 0)
        rest += (size_t)offset;
    return Py_BuildValue("nnn", first + whole, (Py_ssize_t)rest, (Py_ssize_t)done);
}

static PyMethodDef methods[] = {
    {"lend", lend, METH_VARARGS,
     "lend(fd, buffers, first, offset): lend the pipe what it has room for, from byte `offset` of buffer `first` on.\n"
     "Which buffer and byte come next, and how many bytes it has taken."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "theta_daemon._vmsplice", "vmsplice(2).", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__vmsplice(void) { return PyModule_Create(&module); }
#else
PyMODINIT_FUNC PyInit__vmsplice(void) {
    PyErr_SetString(PyExc_ImportError, "only Linux has vmsplice");
    return NULL;
}
#endif
