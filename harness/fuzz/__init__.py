"""Fuzzing: random work on drawn configurations until time is up or something fails, and everything that is small enough.

A campaign draws a configuration, writes a trace for it and runs it under every checker, again and again; what it drew depends
on its seed and on nothing else, so a campaign can be run again from one line. It says which rules and boundary cases its
traces reached (marks), and it first proves that it can see: a known fault is planted, and must be reported (the canary).

An exhaustive search leaves nothing to chance: within a stated bound, every trace is run.
"""
