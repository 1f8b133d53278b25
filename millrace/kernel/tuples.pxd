# cython: language_level=3
"""How the kernel makes objects of a class that is derived from tuple, or has slots, without a call of Python's."""

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from *:
    """
    #include <structmember.h>
    /* What tuple.__new__ does for a class that is derived from it. */
    static PyObject *new_tuple(PyObject *type, Py_ssize_t size) {
        return ((PyTypeObject *) type)->tp_alloc((PyTypeObject *) type, size);
    }
    /* An object without a size, with none of its slots set. */
    static PyObject *new_object(PyObject *type) {
        return ((PyTypeObject *) type)->tp_alloc((PyTypeObject *) type, 0);
    }
    /* What the slot's own __set__ does; the caller knows that it is a slot of the object's class. */
    static int set_slot(PyObject *made, PyObject *slot, PyObject *value) {
        return PyMember_SetOne((char *) made, ((PyMemberDescrObject *) slot)->d_member, value);
    }
    """
    object new_tuple(object type, Py_ssize_t size)
    object new_object(object type)
    int set_slot(object made, object slot, object value) except -1


cdef inline object tuple_of(object kind, tuple fields):
    # An object of ``kind``, of which the caller knows that it is a tuple's class, with these items.
    cdef Py_ssize_t index
    made = new_tuple(kind, len(fields))
    for index in range(len(fields)):
        field = fields[index]
        Py_INCREF(field)
        PyTuple_SET_ITEM(made, index, field)
    return made
