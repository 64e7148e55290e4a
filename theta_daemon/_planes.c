/* Words from byte planes and back, in one pass over memory, and the parts of a chain, one after the other, while a chunk is in
   the cache: what codec.py and updates/ say in numpy, which needs a pass for each step.

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

static uint32_t number(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

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
            length = number(at);
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

/* Planes are merged in blocks, so that what is made of them on the way stays in the nearest cache. */
enum { BLOCK = 1024 };

typedef struct {
    const Plane *planes;
    int width, rotate;
    uint8_t constants[8][BLOCK]; /* a block of each plane that is given by its only value */
} Merger;

static void begin(Merger *merger, const Plane *planes, int width, int rotate, Py_ssize_t n) {
    merger->planes = planes;
    merger->width = width;
    merger->rotate = rotate;
    for (int k = 0; k < width; k++)
        if (!planes[k].step)
            memset(merger->constants[k], *planes[k].start, (size_t)(n < BLOCK ? n : BLOCK));
}

/* Words [from:from + n] of what the planes hold; n is at most BLOCK. */
static void merge_block(Merger *merger, Py_ssize_t from, Py_ssize_t n, uint8_t *words) {
    uint8_t *starts[8];
    for (int k = 0; k < merger->width; k++)
        starts[k] = merger->planes[k].step ? (uint8_t *)merger->planes[k].start + from : merger->constants[k];
    merge(starts, merger->width, words, n, merger->rotate);
}

static void put_planes(const Plane *planes, int width, uint8_t *words, Py_ssize_t n, int rotate) {
    Merger merger;
    begin(&merger, planes, width, rotate, n);
    for (Py_ssize_t from = 0; from < n; from += BLOCK)
        merge_block(&merger, from, n - from < BLOCK ? n - from : BLOCK, words + from * width);
}

static void let_go(Plane *planes, int count) {
    for (int k = 0; k < count; k++)
        Py_CLEAR(planes[k].owner);
}

static int wrong_words(const Py_buffer *words, int width) {
    if ((width == 1 || width == 2 || width == 4 || width == 8) && words->len % width == 0 && words->len / width <= UINT32_MAX)
        return 0;
    PyErr_SetString(PyExc_ValueError, "words have 1, 2, 4 or 8 bytes, and there is a whole number of them");
    return 1;
}

static PyObject *join(PyObject *self, PyObject *arguments) {
    Py_buffer words, body;
    PyObject *inflate, *answer = NULL;
    int width, rotate;
    Plane planes[8] = {{0}};
    (void)self;
    if (!PyArg_ParseTuple(arguments, "w*iy*pO", &words, &width, &body, &rotate, &inflate))
        return NULL;
    if (!wrong_words(&words, width)) {
        Py_ssize_t n = words.len / width;
        int state = read_planes(planes, width, (uint32_t)n, body.buf, (const uint8_t *)body.buf + body.len, inflate);
        if (state > 0) {
            Py_BEGIN_ALLOW_THREADS;
            put_planes(planes, width, words.buf, n, rotate);
            Py_END_ALLOW_THREADS;
        }
        if (state >= 0)
            answer = PyBool_FromLong(state);
        let_go(planes, 8);
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&body);
    return answer;
}

/* A list of changes, as sparse.py describes it: gaps in four planes, then the words in theirs. */

/* The place after the last change. Below 2**32 gaps below 2**32 each, and as many changes: below 2**64. */
static uint64_t list_end(const Plane *gaps, uint32_t count) {
    uint64_t end = count;
    for (int k = 0; k < 4; k++) {
        uint64_t sum = 0;
        if (gaps[k].step)
            for (uint32_t i = 0; i < count; i++)
                sum += gaps[k].start[i];
        else
            sum = (uint64_t)count * *gaps[k].start;
        end += sum << (8 * k);
    }
    return end;
}

#define PUT(width)                                                      \
    for (Py_ssize_t i = 0; i < some; i++) {                             \
        place += gaps[i];                                               \
        memcpy(words + place++ * (width), changed + i * (width), width); \
    }

/* All places are known to lie inside `words`. */
static void put_listed(const Plane *planes, int width, uint32_t count, uint8_t *words, int rotate) {
    Merger gap_merger, word_merger;
    uint32_t gaps[BLOCK];
    uint8_t changed[8 * BLOCK];
    uint64_t place = 0;
    begin(&gap_merger, planes, 4, 0, count);
    begin(&word_merger, planes + 4, width, rotate, count);
    for (Py_ssize_t from = 0; from < (Py_ssize_t)count; from += BLOCK) {
        Py_ssize_t some = (Py_ssize_t)count - from < BLOCK ? (Py_ssize_t)count - from : BLOCK;
        merge_block(&gap_merger, from, some, (uint8_t *)gaps);
        merge_block(&word_merger, from, some, changed);
        switch (width) {
        case 1: PUT(1) break;
        case 2: PUT(2) break;
        case 4: PUT(4) break;
        case 8: PUT(8) break;
        }
    }
}

/* Folded differences, as delta.py describes them: unfolded and added, in the order of the numbers if those are floats. */

#define ADD(bits)                                                                                   \
    static void add##bits(uint8_t *words, const uint8_t *folded, Py_ssize_t n, int floats) {         \
        const uint##bits##_t sign = (uint##bits##_t)((uint##bits##_t)1 << (bits - 1));               \
        for (Py_ssize_t i = 0; i < n; i++) {                                                        \
            uint##bits##_t word, by;                                                                \
            memcpy(&word, words + i * (bits / 8), bits / 8);                                        \
            memcpy(&by, folded + i * (bits / 8), bits / 8);                                         \
            by = (uint##bits##_t)((by >> 1) ^ (uint##bits##_t)(0 - (by & 1)));                      \
            if (floats)                                                                             \
                word ^= (uint##bits##_t)((uint##bits##_t)(0 - (word >> (bits - 1))) | sign);        \
            word = (uint##bits##_t)(word + by);                                                     \
            if (floats)                                                                             \
                word ^= (uint##bits##_t)((uint##bits##_t)((word >> (bits - 1)) - 1) | sign);        \
            memcpy(words + i * (bits / 8), &word, bits / 8);                                        \
        }                                                                                           \
    }
ADD(8)
ADD(16)
ADD(32)
ADD(64)

static void add_planes(const Plane *planes, int width, uint8_t *words, Py_ssize_t n, int floats) {
    Merger merger;
    uint8_t folded[8 * BLOCK];
    int unchanged = 1;
    for (int k = 0; k < width; k++)
        unchanged = unchanged && !planes[k].step && !*planes[k].start;
    if (unchanged)
        return;
    begin(&merger, planes, width, 0, n);
    for (Py_ssize_t from = 0; from < n; from += BLOCK) {
        Py_ssize_t some = n - from < BLOCK ? n - from : BLOCK;
        uint8_t *at = words + from * width;
        merge_block(&merger, from, some, folded);
        switch (width * 2 + !!floats) { /* as above */
        case 2: add8(at, folded, some, 0); break;
        case 3: add8(at, folded, some, 1); break;
        case 4: add16(at, folded, some, 0); break;
        case 5: add16(at, folded, some, 1); break;
        case 8: add32(at, folded, some, 0); break;
        case 9: add32(at, folded, some, 1); break;
        case 16: add64(at, folded, some, 0); break;
        case 17: add64(at, folded, some, 1); break;
        }
    }
}

/* One chunk's part of a record: what dense.py, sparse.py and delta.py say of it. The letters are `codec`'s. */
enum { LISTED = 1, REPLACED = 2, DELTA = 3 };

/* From so many words on others may use the interpreter meanwhile; for fewer, handing it over takes longer than they do. */
enum { MANY = 1 << 14 };

/* Bytes of the only part of a whole record, as updates/base.py describes it: the part, its length, then version, width of a
   word, zero, and one chunk. -1 when it is something else. */
static Py_ssize_t only_part(const uint8_t *record, Py_ssize_t length, int width) {
    Py_ssize_t part = length - 12;
    if (part < 0 || number(record + part) != (uint64_t)part)
        return -1;
    return number(record + part + 4) == (1u | (uint32_t)width << 8) && number(record + part + 8) == 1 ? part : -1;
}

/* Applies one part. 1; 0, and nothing is written, when it is malformed; -1 with an error. */
static int apply(const Py_buffer *part, char script, uint8_t *words, int width, uint32_t n, int floats, PyObject *inflate) {
    int whole = script >= 'A' && script <= 'Z';
    Py_ssize_t length = whole ? only_part(part->buf, part->len, width) : part->len;
    const uint8_t *at = part->buf, *end = at + length;
    Plane planes[12] = {{0}};
    uint32_t count = n;
    int how = REPLACED, state = 1;
    script = (char)(whole ? script - 'A' + 'a' : script);
    if (length < 0 || (script != 'p' && script != 'c' && script != 'd'))
        return 0;
    if (script != 'p') { /* else planes, with no byte that says so */
        if (at == end)
            return 1;
        how = *at++;
        if (how < LISTED || how > (script == 'd' ? DELTA : REPLACED))
            return 0;
    }
    if (how == LISTED) {
        if (end - at < 8)
            return 0;
        count = number(at);
        uint32_t gap_bytes = number(at + 4);
        at += 8;
        if (count == 0 || count > n || (uint64_t)gap_bytes > (uint64_t)(end - at))
            return 0;
        state = read_planes(planes, 4, count, at, at + gap_bytes, inflate);
        at += gap_bytes;
    }
    if (state > 0)
        state = read_planes(planes + 4, width, count, at, end, inflate);
    if (state > 0 && how == LISTED)
        state = list_end(planes, count) <= n;
    if (state > 0) {
        PyThreadState *saved = count >= MANY ? PyEval_SaveThread() : NULL;
        if (how == LISTED)
            put_listed(planes, width, count, words, floats);
        else if (how == REPLACED)
            put_planes(planes + 4, width, words, n, floats);
        else
            add_planes(planes + 4, width, words, n, floats);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
    }
    let_go(planes, 12);
    return state;
}

static PyObject *replay(PyObject *self, PyObject *arguments) {
    Py_buffer words, part;
    PyObject *parts, *inflate, *answer = NULL;
    const char *scripts;
    Py_ssize_t count, done = 0;
    int width, floats, state = 1;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "w*iy#OpO", &words, &width, &scripts, &count, &parts, &floats, &inflate))
        return NULL;
    parts = PySequence_Tuple(parts);
    if (parts == NULL || wrong_words(&words, width))
        goto end;
    if (PyTuple_GET_SIZE(parts) != count) {
        PyErr_SetString(PyExc_ValueError, "each part has one script");
        goto end;
    }
    while (state > 0 && done < count) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(parts, done), &part, PyBUF_SIMPLE) < 0)
            goto end;
        state = apply(&part, scripts[done], words.buf, width, (uint32_t)(words.len / width), floats, inflate);
        PyBuffer_Release(&part);
        done += state > 0;
    }
    if (state < 0) { /* it will be met again, by who can say where */
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            goto end;
        PyErr_Clear();
    }
    answer = PyLong_FromSsize_t(done);
end:
    Py_XDECREF(parts);
    PyBuffer_Release(&words);
    return answer;
}

static PyObject *equal(PyObject *self, PyObject *arguments) {
    Py_buffer one, other;
    int same;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*y*", &one, &other))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    same = one.len == other.len && memcmp(one.buf, other.buf, one.len) == 0;
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&one);
    PyBuffer_Release(&other);
    return PyBool_FromLong(same);
}

static PyMethodDef methods[] = {
    {"equal", equal, METH_VARARGS, "equal(one, other): whether two buffers have the same bytes."},
    {"join", join, METH_VARARGS,
     "join(words, width, sections, rotate, inflate): fill `words` from its encoded planes; False if they are malformed."},
    {"split", split, METH_VARARGS, "split(words, planes, rotate): fill the byte planes of `words`, the lowest first."},
    {"replay", replay, METH_VARARGS,
     "replay(words, width, scripts, parts, floats, inflate): apply chunks' parts in order, up to the first malformed one; how many."},
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
