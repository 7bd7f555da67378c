"""The harness: traces in, verdicts out.

A trace of requests (`harness.trace`) is run on an engine (`harness.engines`), what the engine did comes back as a
history (`harness.history`), a ledger (`harness.ledger`) says what every physical page truly holds, and the checkers
(`harness.checkers`) turn the two into a verdict with a witness.

Imports point one way: `suites` -> `harness` -> `reference_impl`. The ledger and the checkers import nothing of any
policy, so that a mistake in a policy cannot hide itself; `ci/lint_imports.py` enforces both.
"""

__version__ = "0.1.0"
