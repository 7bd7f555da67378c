#!/usr/bin/env bash
# On Linux, mlx's CPU wheel multiplies matrices with the reference BLAS: many times slower than numpy's, so that a prompt takes minutes.
#
# Package     mlx and mlx-cpu 0.32.4 (`pip install 'mlx[cpu]'`), beside numpy 2.4.6
# Surprise    The wheel has a libblas of its own, 3.10.0, which is Netlib's reference implementation in Fortran, made for correctness. A
#             product of float32 matrices takes ten times and more as long as numpy's on the same core, and no message says so. A prompt of
#             650 tokens through Gemma 3 270M was not done after 100 seconds; with another BLAS put in front of it (MKL, by LD_PRELOAD) it
#             took 3.
# Who         Whoever runs mlx-lm on Linux without a GPU: tests in a CI, comparisons of engines, evaluations. Time-outs look like hangs.
# Documented  The documentation names a BLAS for builds from source; not which one the wheel has, nor that it is the reference.
# Upstream    none found.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet mlx==0.32.4 mlx-cpu==0.32.4 numpy==2.4.6
cd "$work"
OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 "$work/venv/bin/python" - <<'PYTHON'
import time
from importlib.metadata import files, version

import mlx.core as mx
import numpy as np

SIZE, TIMES = 768, 3
library = next(one.name for one in files("mlx-cpu") if one.name.startswith("libblas"))
left, right = (np.random.default_rng(seed).standard_normal((SIZE, SIZE), dtype=np.float32) for seed in (0, 1))
on_mlx = mx.array(left), mx.array(right)
mx.eval(on_mlx)


def least(product):
    """The least CPU seconds of some runs: of all threads."""
    spent = []
    for _ in range(TIMES):
        begun = time.process_time()
        product()
        spent.append(time.process_time() - begun)
    return min(spent)


of_numpy = least(lambda: left @ right)
of_mlx = least(lambda: mx.eval(on_mlx[0] @ on_mlx[1]))
close = bool(np.allclose(np.array(on_mlx[0] @ on_mlx[1]), left @ right, atol=1e-2))
print("mlx", version("mlx"), "numpy", version("numpy"), "library", library)
print("expected: a product of two float32 matrices takes about as long as with numpy\n")
print(f"{SIZE} x {SIZE}: numpy {of_numpy * 1000:.1f} ms of CPU, mlx {of_mlx * 1000:.1f} ms, {of_mlx / of_numpy:.0f} times as long; equal: {close}")
if not close or of_mlx < 5 * of_numpy or ".so.3." not in library:
    raise SystemExit("changed: the wheel's products are no slower, or of another library")
print("\nseen: the same product, many times as long")
PYTHON
