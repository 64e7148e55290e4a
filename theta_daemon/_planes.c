/* Words from byte planes and back, in one pass over memory: what codec.py says in numpy, which needs a pass for each step.

   Optional: where no compiler was at hand when the package was installed, codec.py does without. Both give the same bytes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Words are copied in and out, since they need not be aligned; compilers make plain moves of that.

   The top sixteen bits, rotated left by one on their way out and right by one on their way in. */
#define LEFT(h) ((uint16_t)(((h) << 1) | ((h) >> 15)))
#define RIGHT(h) ((uint16_t)(((h) >> 1) | ((h) << 15)))

static void merge2(uint8_t *const *p, uint8_t *words, Py_ssize_t n, int rotate) {
    const uint8_t *a = p[0], *b = p[1];
    for (Py_ssize_t i = 0; i < n; i++) {
        uint16_t h = (uint16_t)(a[i] | b[i] << 8);
        h = rotate ? RIGHT(h) : h;
        memcpy(words + 2 * i, &h, 2);
    }
}

static void merge4(uint8_t *const *p, uint8_t *words, Py_ssize_t n, int rotate) {
    const uint8_t *a = p[0], *b = p[1], *c = p[2], *d = p[3];
    for (Py_ssize_t i = 0; i < n; i++) {
        uint16_t h = (uint16_t)(c[i] | d[i] << 8);
        uint32_t word = (uint32_t)(rotate ? RIGHT(h) : h) << 16 | (uint32_t)b[i] << 8 | a[i];
        memcpy(words + 4 * i, &word, 4);
    }
}

static void merge8(uint8_t *const *p, uint8_t *words, Py_ssize_t n, int rotate) {
    const uint8_t *a = p[0], *b = p[1], *c = p[2], *d = p[3], *e = p[4], *f = p[5], *g = p[6], *k = p[7];
    for (Py_ssize_t i = 0; i < n; i++) {
        uint16_t h = (uint16_t)(g[i] | k[i] << 8);
        uint32_t low = (uint32_t)d[i] << 24 | (uint32_t)c[i] << 16 | (uint32_t)b[i] << 8 | a[i];
        uint32_t high = (uint32_t)(rotate ? RIGHT(h) : h) << 16 | (uint32_t)f[i] << 8 | e[i];
        uint64_t word = (uint64_t)high << 32 | low;
        memcpy(words + 8 * i, &word, 8);
    }
}

static void split2(uint8_t *const *p, const uint8_t *words, Py_ssize_t n, int rotate) {
    uint8_t *a = p[0], *b = p[1];
    for (Py_ssize_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, words + 2 * i, 2);
        h = rotate ? LEFT(h) : h;
        a[i] = (uint8_t)h;
        b[i] = (uint8_t)(h >> 8);
    }
}

static void split4(uint8_t *const *p, const uint8_t *words, Py_ssize_t n, int rotate) {
    uint8_t *a = p[0], *b = p[1], *c = p[2], *d = p[3];
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, words + 4 * i, 4);
        uint16_t h = (uint16_t)(word >> 16);
        h = rotate ? LEFT(h) : h;
        a[i] = (uint8_t)word;
        b[i] = (uint8_t)(word >> 8);
        c[i] = (uint8_t)h;
        d[i] = (uint8_t)(h >> 8);
    }
}

static void split8(uint8_t *const *p, const uint8_t *words, Py_ssize_t n, int rotate) {
    uint8_t *a = p[0], *b = p[1], *c = p[2], *d = p[3], *e = p[4], *f = p[5], *g = p[6], *k = p[7];
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t word;
        memcpy(&word, words + 8 * i, 8);
        uint16_t h = (uint16_t)(word >> 48);
        h = rotate ? LEFT(h) : h;
        a[i] = (uint8_t)word;
        b[i] = (uint8_t)(word >> 8);
        c[i] = (uint8_t)(word >> 16);
        d[i] = (uint8_t)(word >> 24);
        e[i] = (uint8_t)(word >> 32);
        f[i] = (uint8_t)(word >> 40);
        g[i] = (uint8_t)h;
        k[i] = (uint8_t)(h >> 8);
    }
}

/* Both functions' frame: planes (a sequence of buffers), words (a buffer), rotate. `out` says which of them is written. */
static PyObject *run(PyObject *arguments, int merging) {
    PyObject *given, *planes = NULL;
    Py_buffer words, views[8];
    uint8_t *starts[8];
    int rotate, opened = 0, have_words = 0, fine = 0;
    if (!PyArg_ParseTuple(arguments, "OOp", &given, &planes, &rotate))
        return NULL;
    planes = PySequence_Fast(planes, "planes must be a sequence of buffers");
    if (planes == NULL)
        return NULL;
    Py_ssize_t width = PySequence_Fast_GET_SIZE(planes);
    if (width != 2 && width != 4 && width != 8) {
        PyErr_SetString(PyExc_ValueError, "there must be 2, 4 or 8 planes");
        goto end;
    }
    if (PyObject_GetBuffer(given, &words, merging ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        goto end;
    have_words = 1;
    Py_ssize_t n = words.len / width;
    if (words.len % width) {
        PyErr_SetString(PyExc_ValueError, "there is no whole number of words");
        goto end;
    }
    for (; opened < width; opened++) {
        PyObject *plane = PySequence_Fast_GET_ITEM(planes, opened);
        if (PyObject_GetBuffer(plane, &views[opened], merging ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0)
            goto end;
        starts[opened] = views[opened].buf;
        if (views[opened].len != n) {
            opened++;
            PyErr_SetString(PyExc_ValueError, "a plane has not one byte for each word");
            goto end;
        }
    }
    Py_BEGIN_ALLOW_THREADS;
    /* `rotate` as a constant, so that the compiler makes a loop of its own for each. */
    switch ((int)width * 4 + merging * 2 + !!rotate) {
    case 8: split2(starts, words.buf, n, 0); break;
    case 9: split2(starts, words.buf, n, 1); break;
    case 10: merge2(starts, words.buf, n, 0); break;
    case 11: merge2(starts, words.buf, n, 1); break;
    case 16: split4(starts, words.buf, n, 0); break;
    case 17: split4(starts, words.buf, n, 1); break;
    case 18: merge4(starts, words.buf, n, 0); break;
    case 19: merge4(starts, words.buf, n, 1); break;
    case 32: split8(starts, words.buf, n, 0); break;
    case 33: split8(starts, words.buf, n, 1); break;
    case 34: merge8(starts, words.buf, n, 0); break;
    case 35: merge8(starts, words.buf, n, 1); break;
    }
    Py_END_ALLOW_THREADS;
    fine = 1;
end:
    while (opened > 0)
        PyBuffer_Release(&views[--opened]);
    if (have_words)
        PyBuffer_Release(&words);
    Py_DECREF(planes);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *merge(PyObject *self, PyObject *arguments) { return run(arguments, 1); }

static PyObject *split(PyObject *self, PyObject *arguments) { return run(arguments, 0); }

static PyMethodDef methods[] = {
    {"merge", merge, METH_VARARGS, "merge(words, planes, rotate): fill `words` from its byte planes, the lowest first."},
    {"split", split, METH_VARARGS, "split(words, planes, rotate): fill the byte planes of `words`, the lowest first."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "theta_daemon._planes", "Byte planes in one pass.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__planes(void) {
#if PY_BIG_ENDIAN
    PyErr_SetString(PyExc_ImportError, "words are little-endian");
    return NULL;
#else
    return PyModule_Create(&module);
#endif
}
