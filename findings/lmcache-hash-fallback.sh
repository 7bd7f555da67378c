#!/usr/bin/env bash
# An LMCache server that is told to hash with sha256_cbor hashes with Python's hash() if vLLM is not installed, and says sha256_cbor.
#
# Package     lmcache 0.5.6 (`lmcache.v1.multiprocess.token_hasher.TokenHasher`, what `lmcache server --hash-algorithm` sets)
# Surprise    All algorithms but blake3 are taken from an installed vLLM. On a machine that runs the server alone there is none, so the
#             builtin `hash` is taken, with a warning, and the name that the server reports stays the one asked for. The warning asks
#             for PYTHONHASHSEED, which does not help on Python 3.10 and 3.11: what is hashed ends in `None`, whose hash is its address,
#             and that is another one in each process where the interpreter's is loaded at a random one.
# Who         Whoever keeps a store beyond a restart or shares it between servers: no key is met again, every request is cold, and
#             everything is stored once more. A check that compares the servers' reported algorithms finds them equal.
# Documented  The warning of the fallback. Not that PYTHONHASHSEED is not enough.
# Upstream    LMCache/LMCache#2136 and #2979: the same `None`, mended in `TokenDatabase`, which is another class.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip numpy==2.2.6 numba==0.68.1 blake3==1.0.11
pip --no-deps lmcache==0.5.6
cd "$work"
cat >hashes.py <<'PYTHON'
import sys

from lmcache.v1.multiprocess.token_hasher import TokenHasher

hasher = TokenHasher(chunk_size=16, hash_algorithm=sys.argv[1])
keys = hasher.compute_chunk_hashes(list(range(32)))
print(hasher.hash_algorithm_name, getattr(hasher.hash_func, "__name__", "?"), keys[-1].hex()[:16])
PYTHON
hashes() { HOME=$work PYTHONHASHSEED=0 LMCACHE_DISABLE_BANNER=1 LMCACHE_TRACK_USAGE=false "$work/venv/bin/python" hashes.py "$1" 2>>"$work/log" | tail -1; }
"$work/venv/bin/python" -c 'from importlib.metadata import version; import sys; print("lmcache", version("lmcache"), "on Python", sys.version.split()[0])'
none() { "$work/venv/bin/python" -c 'print(hash(None))'; }
if [[ $(none) == "$(none)" && $(none) == "$(none)" ]]; then
    echo "changed: not the package but the interpreter, whose hash(None) is always the same: take one of 3.10 or 3.11 whose addresses vary"
    exit 2
fi
echo "expected: sha256_cbor, or an error; and with PYTHONHASHSEED=0 the same key for the same tokens in each process"
echo
for algorithm in blake3 sha256_cbor; do
    for process in 1 2; do
        read -r "reported_$algorithm" function "key_${algorithm}_$process" < <(hashes "$algorithm" || true)
        key=key_${algorithm}_$process reported=reported_$algorithm
        echo "--hash-algorithm $algorithm, process $process: reported ${!reported}, function $function, key of the second chunk ${!key}"
    done
done
if [[ -z $key_sha256_cbor_1 || $key_blake3_1 != "$key_blake3_2" ]]; then
    tail -5 "$work/log" >&2
    echo "changed: the hasher cannot be made here, or blake3 differs between processes"
    exit 1
fi
if [[ $reported_sha256_cbor != sha256_cbor || $function != hash || $key_sha256_cbor_1 == "$key_sha256_cbor_2" ]]; then
    echo "changed: sha256_cbor without vLLM is reported as $reported_sha256_cbor, done by $function, with keys $key_sha256_cbor_1 and $key_sha256_cbor_2"
    exit 1
fi
echo
echo "seen: hash() under the name sha256_cbor, and another key for the same tokens in each process"
