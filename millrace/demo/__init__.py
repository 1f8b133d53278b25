"""``millrace demo``: the whole pipeline on one machine, with a workload, checked against the tables."""
