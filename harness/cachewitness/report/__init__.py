"""Renderers of a run: one per format, all of them from the same report.

`counterexample` writes the witness of one failure; `terminal`, `jsonreport`, `junit` and `github`
render a run. No renderer decides anything: verdicts come from `cachewitness.sessions.run`.
"""
