"""Fuzzing: random traces on drawn configurations until time is up or something fails, and
exhaustive searches within a bound.

A campaign draws a configuration, writes a trace for it, runs it under every checker, and repeats.
What it draws depends on its seed alone, so one command runs a campaign again. It reports which
rules and boundary cases its traces reached (marks). Before it starts, a known fault is planted and
must be reported (the self_test).

An exhaustive search runs every trace within a stated bound.
"""
