"""How a run is told: one renderer per format, all of them from the same report.

`witness` writes what a person reads of one failure, `store` puts failing traces where they can be replayed, `terminal`,
`jsonreport`, `junit` and `github` render a run. No renderer decides anything: verdicts are `harness.run`'s.
"""
