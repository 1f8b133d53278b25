# cython: language_level=3
"""Avro's binary form as JSON: what :mod:`millrace.rowmapper.json_format` does by fastavro and ``json``.

A plan is made of the schema: ``nodes``, each a kind and its links (the first, and how many), and ``links``, each
a node and what is written in front of it. A record has a link for each field, a union one for each branch, an
array one for its items. The first node is the whole.

What JSON has no number for, text that is no UTF-8, arrays that say the size of their blocks, and bytes that are
none of the schema are left to the reference.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, strlen

from millrace.kernel.reading cimport Source, read_flag, read_long, read_uint, source_of, take
from millrace.kernel.rows cimport is_utf8, put_json_string
from millrace.kernel.writing cimport DONE, NO_MEMORY, UNUSUAL, Output, put, put_byte, put_signed, room

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char form, int precision, int flags, int* kind) except NULL
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0
    int Py_DTSF_ADD_DOT_0


# generated: JsonKind
cdef enum JsonKind:
    KIND_NULL = 0
    KIND_BOOLEAN = 1
    KIND_LONG = 2
    KIND_FLOAT = 3
    KIND_DOUBLE = 4
    KIND_STRING = 5
    KIND_BYTES = 6
    KIND_UNION = 7
    KIND_RECORD = 8
    KIND_ARRAY = 9
# end


cdef struct Node:
    int kind
    int first
    int count


cdef struct Link:
    int node
    const uint8_t* text
    Py_ssize_t size


cdef const uint8_t* _BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef class JsonWriter:
    """Writes records of one schema."""

    cdef Node* nodes
    cdef Link* links
    cdef int node_count
    cdef list texts

    def __cinit__(self, list nodes, list links):
        cdef int index, kind, first, count, node
        cdef bytes text
        self.texts = []
        self.node_count = len(nodes)
        self.nodes = <Node*> PyMem_Malloc(max(1, len(nodes)) * sizeof(Node))
        self.links = <Link*> PyMem_Malloc(max(1, len(links)) * sizeof(Link))
        if self.nodes == NULL or self.links == NULL:
            raise MemoryError
        if not nodes:
            raise ValueError("a plan has a node")
        for index, (kind, first, count) in enumerate(nodes):
            if not (0 <= kind <= <int> KIND_ARRAY and 0 <= first and 0 <= count and first + count <= len(links)):
                raise ValueError("a node of the plan is none")
            self.nodes[index].kind = kind
            self.nodes[index].first = first
            self.nodes[index].count = count
        for index, (node, text) in enumerate(links):
            if not 0 <= node < len(nodes):
                raise ValueError("a link of the plan leads nowhere")
            self.texts.append(text)
            self.links[index].node = node
            self.links[index].text = <const uint8_t*> PyBytes_AS_STRING(text)
            self.links[index].size = PyBytes_GET_SIZE(text)

    def __dealloc__(self):
        PyMem_Free(self.nodes)
        PyMem_Free(self.links)

    def write(self, bytes data not None, Py_ssize_t start, bytes before not None, bytes after not None):
        """Write the record that begins at ``start`` between two texts; None where the reference must."""
        cdef Source source = source_of(data, start, PyBytes_GET_SIZE(data))
        cdef Output out
        cdef int status
        out.data = NULL
        out.size = out.capacity = 0
        try:
            status = put(&out, <const uint8_t*> PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
            if status == DONE:
                status = self.value(&source, &out, 0)
            if status == DONE:
                status = put(&out, <const uint8_t*> PyBytes_AS_STRING(after), PyBytes_GET_SIZE(after))
            if status == NO_MEMORY:
                raise MemoryError
            if status != DONE or source.bad or source.at != source.end:
                return None
            return PyBytes_FromStringAndSize(<const char*> out.data, out.size)
        finally:
            free(out.data)

    cdef int value(self, Source* source, Output* out, int index) except -1:
        cdef Node node = self.nodes[index]
        cdef int64_t number
        if source.bad:
            return UNUSUAL
        if node.kind == KIND_NULL:
            return put(out, b"null", 4)
        if node.kind == KIND_LONG:
            return put_signed(out, read_long(source))
        if node.kind == KIND_STRING:
            return put_text(source, out)
        if node.kind == KIND_UNION:
            number = read_long(source)
            if source.bad or number < 0 or number >= node.count:
                return UNUSUAL
            return self.value(source, out, self.links[node.first + number].node)
        if node.kind == KIND_RECORD:
            return self.record(source, out, node)
        if node.kind == KIND_ARRAY:
            return self.array(source, out, node)
        if node.kind == KIND_BYTES:
            return put_base64(source, out)
        if node.kind == KIND_BOOLEAN:
            return put(out, b"true", 4) if read_flag(source) else put(out, b"false", 5)
        return put_real(source, out, node.kind == KIND_FLOAT)

    cdef int record(self, Source* source, Output* out, Node node) except -1:
        cdef int index, status
        cdef Link link
        if node.count == 0:
            return put(out, b"{}", 2)
        for index in range(node.first, node.first + node.count):
            link = self.links[index]
            status = put(out, link.text, link.size)
            if status == DONE:
                status = self.value(source, out, link.node)
            if status != DONE:
                return status
        return put_byte(out, 125)

    cdef int array(self, Source* source, Output* out, Node node) except -1:
        cdef int64_t count
        cdef int status, item
        cdef bint begun = False
        if node.count != 1:
            return UNUSUAL
        item = self.links[node.first].node
        if self.nodes[item].kind == KIND_NULL or (self.nodes[item].kind == KIND_RECORD and not self.nodes[item].count):
            return UNUSUAL  # items that take no bytes may be any number
        status = put_byte(out, 91)
        while status == DONE:
            count = read_long(source)
            if source.bad or count < 0:
                return UNUSUAL
            if count == 0:
                return put_byte(out, 93)
            while count > 0 and status == DONE:
                if begun:
                    status = put_byte(out, 44)
                begun = True
                if status == DONE:
                    status = self.value(source, out, item)
                if source.bad:
                    return UNUSUAL
                count -= 1
        return status


cdef int put_real(Source* source, Output* out, bint is_float) except -1:
    cdef uint32_t half
    cdef uint64_t whole
    cdef float single
    cdef double number
    cdef char* text
    cdef int digits, status
    if is_float:
        half = <uint32_t> read_uint(source, 4)
        memcpy(&single, &half, 4)
        number = single
    else:
        whole = read_uint(source, 8)
        memcpy(&number, &whole, 8)
    if source.bad or not isfinite(number):
        return UNUSUAL
    if is_float:
        for digits in range(6, 10):
            text = PyOS_double_to_string(single, b"g", digits, 0, NULL)
            try:
                number = PyOS_string_to_double(text, NULL, NULL)
            finally:
                PyMem_Free(text)
            if <float> number == single:
                break
    text = PyOS_double_to_string(number, b"r", 0, Py_DTSF_ADD_DOT_0, NULL)
    status = put(out, <const uint8_t*> text, strlen(text))
    PyMem_Free(text)
    return status


cdef int put_text(Source* source, Output* out) noexcept:
    cdef Py_ssize_t size = <Py_ssize_t> read_long(source)
    cdef const uint8_t* data = take(source, size)
    if data == NULL or not is_utf8(data, size, 0xF4):
        return UNUSUAL
    return put_json_string(out, data, size)


cdef int put_base64(Source* source, Output* out) noexcept:
    cdef Py_ssize_t size = <Py_ssize_t> read_long(source)
    cdef const uint8_t* data = take(source, size)
    cdef Py_ssize_t index, whole
    cdef uint8_t* into
    cdef uint32_t bits
    if data == NULL:
        return UNUSUAL
    into = room(out, (size + 2) // 3 * 4 + 2)
    if into == NULL:
        return NO_MEMORY
    into[0] = 34
    into += 1
    whole = size // 3 * 3
    for index in range(0, whole, 3):
        bits = <uint32_t> data[index] << 16 | <uint32_t> data[index + 1] << 8 | data[index + 2]
        into[0] = _BASE64[bits >> 18]
        into[1] = _BASE64[bits >> 12 & 63]
        into[2] = _BASE64[bits >> 6 & 63]
        into[3] = _BASE64[bits & 63]
        into += 4
    if whole < size:
        bits = <uint32_t> data[whole] << 16
        if size - whole == 2:
            bits |= <uint32_t> data[whole + 1] << 8
        into[0] = _BASE64[bits >> 18]
        into[1] = _BASE64[bits >> 12 & 63]
        into[2] = _BASE64[bits >> 6 & 63] if size - whole == 2 else 61
        into[3] = 61
        into += 4
    into[0] = 34
    return DONE
