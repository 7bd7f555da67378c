"""Who kills whom: seeded faults against the workloads that every engine gets.

A kill counts if the anomaly that a fault names in advance is raised, by the checker that it names, on a workload that was not
written for the fault, while the same trace passes on the engine without it. `workloads` says which traces those are, `hunt`
runs them until a kill, `witness` makes the killing trace small and keeps it, `detectors` asks who else sees the fault, and
`matrix` puts everything into a table.
"""
