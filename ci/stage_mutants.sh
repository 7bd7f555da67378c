#!/usr/bin/env bash
# Hunts every seeded fault, under five seeds, with the workloads that any engine gets, and fails if one survives: a quarter of
# an hour on two cores. Needs the `dev` extra in the Python that `python` names and, for faults of a device, the extra `toy`;
# without it they are listed as not run, and the status is 5. Arguments go to `cachewitness mutants`.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD/harness:$PWD/reference_impl
exec </dev/null

# Threads that wait for one another on a busy core are slower than one thread.
export OMP_NUM_THREADS=1 GOMP_SPINCOUNT=0 OMP_WAIT_POLICY=PASSIVE
exec python -m cachewitness.cli mutants --seeds 5 "$@"
