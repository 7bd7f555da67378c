"""Executable specifications of cache policies, one self-contained package per system.

A policy package is read from top to bottom and runs as it is read. It imports the standard library
and `cachewitness_reference.primitives`, never another policy: two policies that do the same thing
each say it in their own terms. One package is not a system's: `vllm_extended` builds on `vllm` and
adds what only a tester wants.
"""
