"""The hunt for seeded faults, with the workloads that every engine gets.

A fault is killed if the checker that it names reports the anomaly that it names, on a workload that
was not written for the fault, while the same trace passes on the engine without it. `workloads`
yields those traces, `hunt` runs them until a kill, `minimal_trace` shrinks and keeps the killing
trace, `detectors` asks which other detectors see the fault, and `matrix` puts everything into a
table.
"""
