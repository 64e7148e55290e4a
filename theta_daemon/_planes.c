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

static PyObject *split(PyObject *self, PyObject *arguments) {
    PyObject *given, *planes = NULL;
    Py_buffer words, views[8];
    uint8_t *starts[8];
    int rotate, opened = 0, have_words = 0, fine = 0;
    (void)self;
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
    if (PyObject_GetBuffer(given, &words, PyBUF_SIMPLE) < 0)
        goto end;
    have_words = 1;
    Py_ssize_t n = words.len / width;
    if (words.len % width) {
        PyErr_SetString(PyExc_ValueError, "there is no whole number of words");
        goto end;
    }
    for (; opened < width; opened++) {
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(planes, opened), &views[opened], PyBUF_WRITABLE) < 0)
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
    switch ((int)width * 2 + !!rotate) {
    case 4: split2(starts, words.buf, n, 0); break;
    case 5: split2(starts, words.buf, n, 1); break;
    case 8: split4(starts, words.buf, n, 0); break;
    case 9: split4(starts, words.buf, n, 1); break;
    case 16: split8(starts, words.buf, n, 0); break;
    case 17: split8(starts, words.buf, n, 1); break;
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

/* Sections, as codec.py describes them. Planes are read where they lie; one that zstd has compressed is asked of
   `inflate(view, size)`, which raises or returns exactly `size` bytes. */

typedef struct {
    const uint8_t *start;
    Py_ssize_t step; /* 0 for a plane that is given by its only value */
    PyObject *owner;
} Plane;

enum { RAW = 0, CONSTANT = 1, ZSTD = 2 };

/* Reads `width` planes of `count` bytes each, which must fill [at, end) exactly. 1, 0 when they do not, -1 with an error. */
static int read_planes(Plane *planes, int width, uint32_t count, const uint8_t *at, const uint8_t *end, PyObject *inflate) {
    for (int i = 0; i < width; i++) {
        if (at == end)
            return 0;
        uint8_t how = *at++;
        uint32_t length = how == CONSTANT ? 1 : count;
        if (how == ZSTD) {
            if (end - at < 4)
                return 0;
            length = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
            at += 4;
        } else if (how != RAW && how != CONSTANT) {
            return 0;
        }
        if ((uint64_t)length > (uint64_t)(end - at))
            return 0;
        planes[i].start = at;
        planes[i].step = how != CONSTANT;
        if (how == ZSTD) {
            PyObject *packed = PyMemoryView_FromMemory((char *)at, (Py_ssize_t)length, PyBUF_READ);
            if (packed == NULL)
                return -1;
            PyObject *plain = PyObject_CallFunction(inflate, "OI", packed, count);
            Py_DECREF(packed);
            if (plain == NULL)
                return -1;
            planes[i].owner = plain;
            if (!PyBytes_Check(plain) || PyBytes_GET_SIZE(plain) != (Py_ssize_t)count)
                return 0;
            planes[i].start = (const uint8_t *)PyBytes_AS_STRING(plain);
        }
        at += length;
    }
    return at == end;
}

static void merge(uint8_t *const *planes, int width, uint8_t *words, Py_ssize_t n, int rotate) {
    switch (width * 2 + !!rotate) { /* as above */
    case 2: case 3: memcpy(words, planes[0], (size_t)n); break;
    case 4: merge2(planes, words, n, 0); break;
    case 5: merge2(planes, words, n, 1); break;
    case 8: merge4(planes, words, n, 0); break;
    case 9: merge4(planes, words, n, 1); break;
    case 16: merge8(planes, words, n, 0); break;
    case 17: merge8(planes, words, n, 1); break;
    }
}

static PyObject *join(PyObject *self, PyObject *arguments) {
    Py_buffer words, body;
    PyObject *inflate, *answer = NULL;
    int width, rotate, state = 0;
    Plane planes[8] = {{0}};
    uint8_t *starts[8], *constants = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "w*iy*pO", &words, &width, &body, &rotate, &inflate))
        return NULL;
    if ((width != 1 && width != 2 && width != 4 && width != 8) || words.len % width || words.len / width > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "words have 1, 2, 4 or 8 bytes, and there is a whole number of them");
        goto end;
    }
    Py_ssize_t n = words.len / width;
    state = read_planes(planes, width, (uint32_t)n, body.buf, (const uint8_t *)body.buf + body.len, inflate);
    if (state > 0) {
        size_t filled = 0;
        for (int k = 0; k < width; k++)
            filled += planes[k].step ? 0 : (size_t)n;
        if (filled && (constants = PyMem_RawMalloc(filled)) == NULL) {
            PyErr_NoMemory();
            state = -1;
        }
    }
    if (state > 0) {
        uint8_t *next = constants;
        Py_BEGIN_ALLOW_THREADS;
        for (int k = 0; k < width; k++) {
            starts[k] = (uint8_t *)planes[k].start;
            if (!planes[k].step) {
                memset(next, *planes[k].start, (size_t)n);
                starts[k] = next;
                next += n;
            }
        }
        merge(starts, width, words.buf, n, rotate);
        Py_END_ALLOW_THREADS;
    }
    if (state >= 0)
        answer = PyBool_FromLong(state);
end:
    PyMem_RawFree(constants);
    for (int k = 0; k < 8; k++)
        Py_XDECREF(planes[k].owner);
    PyBuffer_Release(&words);
    PyBuffer_Release(&body);
    return answer;
}

/* A list of changes, as sparse.py describes it. */

static uint64_t word_at(const Plane *planes, int width, int rotate, Py_ssize_t i) {
    uint64_t word = 0;
    for (int k = 0; k < width; k++)
        word |= (uint64_t)planes[k].start[i * planes[k].step] << (8 * k);
    if (rotate && width > 1) {
        int top = 8 * width - 16;
        uint16_t h = (uint16_t)(word >> top);
        word = (word & (((uint64_t)1 << top) - 1)) | (uint64_t)RIGHT(h) << top;
    }
    return word;
}

/* Where the changes go; 0 when one lies outside. */
static int find_places(const Plane *gaps, uint32_t count, Py_ssize_t n, uint32_t *places) {
    uint64_t next = 0;
    for (uint32_t i = 0; i < count; i++) {
        next += word_at(gaps, 4, 0, i);
        if (next >= (uint64_t)n)
            return 0;
        places[i] = (uint32_t)next++;
    }
    return 1;
}

static PyObject *scatter(PyObject *self, PyObject *arguments) {
    Py_buffer words, body;
    PyObject *inflate, *answer = NULL;
    int width, rotate, state = 0;
    Plane planes[12] = {{0}};
    uint32_t *places = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "w*iy*pO", &words, &width, &body, &rotate, &inflate))
        return NULL;
    if ((width != 1 && width != 2 && width != 4 && width != 8) || words.len % width || words.len / width > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "words have 1, 2, 4 or 8 bytes, and there is a whole number of them");
        goto end;
    }
    const uint8_t *at = body.buf, *end = at + body.len;
    Py_ssize_t n = words.len / width;
    if (body.len >= 8) {
        uint32_t count = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        uint32_t gap_bytes = (uint32_t)at[4] | (uint32_t)at[5] << 8 | (uint32_t)at[6] << 16 | (uint32_t)at[7] << 24;
        at += 8;
        if (count > 0 && (uint64_t)count <= (uint64_t)n && (uint64_t)gap_bytes <= (uint64_t)(end - at)) {
            state = read_planes(planes, 4, count, at, at + gap_bytes, inflate);
            if (state > 0)
                state = read_planes(planes + 4, width, count, at + gap_bytes, end, inflate);
            if (state > 0 && (places = PyMem_RawMalloc((size_t)count * sizeof *places)) == NULL) {
                PyErr_NoMemory();
                state = -1;
            }
            if (state > 0) {
                Py_BEGIN_ALLOW_THREADS;
                state = find_places(planes, count, n, places);
                for (uint32_t i = 0; state > 0 && i < count; i++) {
                    uint64_t word = word_at(planes + 4, width, rotate, i);
                    memcpy((uint8_t *)words.buf + (Py_ssize_t)places[i] * width, &word, (size_t)width);
                }
                Py_END_ALLOW_THREADS;
            }
        }
    }
    if (state >= 0)
        answer = PyBool_FromLong(state);
end:
    PyMem_RawFree(places);
    for (int i = 0; i < 12; i++)
        Py_XDECREF(planes[i].owner);
    PyBuffer_Release(&words);
    PyBuffer_Release(&body);
    return answer;
}

static PyMethodDef methods[] = {
    {"join", join, METH_VARARGS,
     "join(words, width, sections, rotate, inflate): fill `words` from its encoded planes; False if they are malformed."},
    {"split", split, METH_VARARGS, "split(words, planes, rotate): fill the byte planes of `words`, the lowest first."},
    {"scatter", scatter, METH_VARARGS,
     "scatter(words, width, body, rotate, inflate): apply a list of changes; False, and nothing written, if it is malformed."},
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
