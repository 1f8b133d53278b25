# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""The ordinary packets of a replication dump: each one whole event, in a packet that the buffer holds whole.

What is not ordinary is left to :class:`millrace.mysql.packets.EventSplitter`, which says what a packet is.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from millrace.kernel.tuples cimport tuple_of

__all__ = ["take_events"]

cdef enum:
    PACKET_HEADER = 4
    STATUS = 1
    HEADER_LENGTH = 19
    MAX_PAYLOAD = 0xFFFFFF


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
        event = PyBytes_FromStringAndSize(<const char*> data + start, length)
        pieces.append(tuple_of(piece, (event, True, True, length)))
        start += length
        sequence = (sequence + 1) & 0xFF
    return start, sequence
