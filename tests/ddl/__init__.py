"""DDL made at random and executed on real servers, whose catalogue tells what the history must make of it."""
