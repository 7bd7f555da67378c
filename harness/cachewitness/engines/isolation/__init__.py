"""Engines in a process of their own: one that crashes, hangs or prints without end is a finding,
not the end of the run.

`messages` is what harness and engine say to each other, `process` starts, asks and ends a child,
`engine` is the engine in the harness's process that asks it, and `serve` is what runs in the child
of an engine that is written in Python.
"""
