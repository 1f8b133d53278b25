"""Comparisons of topics with what they were made from: ``millrace verify``, the demo, and the tests."""
