"""Seeded faults, and the questions of test vectors: what the checkers of cachewitness are shown to
find.

A distribution of its own, cachewitness-faults, since whoever tests an engine needs neither. The
harness finds what is here by entry points (`ci/faults/pyproject.toml`). There is one folder for
each system, as in `cachewitness.systems`: `reference` has the faults that are planted into its
reference and the questions that it is asked, the files beside it the faults in the installed
system. `toy` has the faults of a device and of kernels.
"""
