# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""The ordinary packets of a replication dump: each one whole event, in a packet that the buffer holds whole.

What is not ordinary is left to :class:`millrace.mysql.packets.EventSplitter`, which says what a packet is.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport uint8_t

__all__ = ["take_events"]

cdef extern from *:
    """
    /* What tuple.__new__ does for a class that is derived from it. */
    static PyObject *new_tuple(PyObject *type, Py_ssize_t size) {
        return ((PyTypeObject *) type)->tp_alloc((PyTypeObject *) type, size);
    }
    """
    object new_tuple(object type, Py_ssize_t size)

cdef enum:
    PACKET_HEADER = 4
    STATUS = 1
    HEADER_LENGTH = 19
    MAX_PAYLOAD = 0xFFFFFF
    PIECE_FIELDS = 4


def take_events(bytearray buffer not None, Py_ssize_t start, Py_ssize_t end, int sequence, type piece not None,
                list pieces not None):
    """Append the events of the packets from ``start`` on to ``pieces``; give the start and number of the next packet.

    ``piece`` is millrace.mysql.packets.EventPiece; ``sequence`` is the number that the next packet must have.
    """
    cdef const uint8_t* data = <const uint8_t*> PyByteArray_AS_STRING(buffer)
    cdef Py_ssize_t length
    if not issubclass(piece, tuple) or piece.__basicsize__ != tuple.__basicsize__:
        raise TypeError("pieces are tuples")
    if start < 0 or end > PyByteArray_GET_SIZE(buffer):
        raise ValueError("beyond the buffer")
    while end - start >= PACKET_HEADER + STATUS:
        length = data[start] | data[start + 1] << 8 | data[start + 2] << 16
        if (
            data[start + 3] != sequence
            or length < STATUS + HEADER_LENGTH
            or length == MAX_PAYLOAD
            or length > end - start - PACKET_HEADER
            or data[start + PACKET_HEADER]
        ):
            break
        start += PACKET_HEADER + STATUS
        length -= STATUS
        pieces.append(whole(piece, PyBytes_FromStringAndSize(<const char*> data + start, length), length))
        start += length
        sequence = (sequence + 1) & 0xFF
    return start, sequence


cdef object whole(type piece, bytes data, size):
    event = new_tuple(piece, PIECE_FIELDS)
    cdef Py_ssize_t index
    for index, field in enumerate((data, True, True, size)):
        Py_INCREF(field)
        PyTuple_SET_ITEM(event, index, field)
    return event
