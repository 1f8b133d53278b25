"""The service of the reader, which :mod:`millrace.reader` is."""
