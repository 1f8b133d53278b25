# cython: language_level=3
"""How the kernel makes objects of a class that is derived from tuple, without a call of Python's."""

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from *:
    """
    /* What tuple.__new__ does for a class that is derived from it. */
    static PyObject *new_tuple(PyObject *type, Py_ssize_t size) {
        return ((PyTypeObject *) type)->tp_alloc((PyTypeObject *) type, size);
    }
    """
    object new_tuple(object type, Py_ssize_t size)


cdef inline object tuple_of(object kind, tuple fields):
    # An object of ``kind``, of which the caller knows that it is a tuple's class, with these items.
    cdef Py_ssize_t index
    made = new_tuple(kind, len(fields))
    for index in range(len(fields)):
        field = fields[index]
        Py_INCREF(field)
        PyTuple_SET_ITEM(made, index, field)
    return made
