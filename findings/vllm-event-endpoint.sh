#!/usr/bin/env bash
# `tcp://0.0.0.0:PORT` as the endpoint of vLLM's KV events is dialled, not bound: nobody gets an event, and nobody is told.
#
# Package     vllm 0.33.0 (its Python part; `vllm.distributed.kv_events.ZmqEventPublisher`, what `--kv-events-config` configures)
# Surprise    The publisher binds an address with `*` or `::` in it and *connects* to any other, also to 0.0.0.0, which for a server is
#             the usual word for "all interfaces" (`--host 0.0.0.0`). A subscriber that connects to the port, as examples do, waits
#             for ever; the publisher counts its events as published and logs nothing. The other address of the same configuration,
#             `replay_endpoint`, is always bound, so there the same address serves.
# Who         Whoever feeds a router, an index or a record of a run from the events: everything starts, and the index stays empty.
# Documented  In the class's docstring ("`tcp://*:5557` to bind or `tcp://host:5557` to connect"); not at the option, nor of 0.0.0.0.
# Upstream    No report known.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.33.0
cd "$work"
HOME=$work VLLM_LOGGING_LEVEL=WARNING VLLM_NO_USAGE_STATS=1 PYTHONPATH=$work/src "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import socket, time
from importlib.metadata import version

import zmq
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, EventPublisherFactory, KVEventBatch

context = zmq.Context.instance()


def free_ports(count):
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in with_ports]
    for s in with_ports:
        s.close()
    return ports


def received(host):
    port, replay = free_ports(2)
    config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://{host}:{port}", replay_endpoint=f"tcp://{host}:{replay}")
    publisher = EventPublisherFactory.create(config)
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    time.sleep(0.5)
    for _ in range(3):
        publisher.publish(KVEventBatch(ts=time.time(), events=[AllBlocksCleared()]))
    got = 0
    while subscriber.poll(1500):
        subscriber.recv_multipart()
        got += 1
    asker = context.socket(zmq.DEALER)
    asker.connect(f"tcp://127.0.0.1:{replay}")
    asker.send_multipart((b"", (0).to_bytes(8, "big")))
    replayed = 0
    while asker.poll(1500) and asker.recv_multipart()[-1]:
        replayed += 1
    for s in (subscriber, asker):
        s.close(linger=0)
    publisher.shutdown()
    return got, replayed


print("vllm", version("vllm"))
print("expected: three events reach a subscriber on this machine, whether all interfaces are named * or 0.0.0.0\n")
print("endpoint                 received   kept and replayed by the other endpoint")
seen = {}
for host in ("*", "0.0.0.0"):
    seen[host] = received(host)
    print(f"tcp://{host}:PORT".ljust(25) + f"{seen[host][0]:8}   {seen[host][1]:8}")
if seen != {"*": (3, 3), "0.0.0.0": (0, 3)}:
    raise SystemExit(f"changed: {seen}")
print("\nseen: with 0.0.0.0 the publisher connects; its events go nowhere, while the replay endpoint with the same address serves them")
PYTHON
output=$(grep -i "endpoint\|bind\|connect" "$work/log" || true)
if [[ -n $output ]]; then echo "changed: vLLM now says: $output"; exit 1; fi
