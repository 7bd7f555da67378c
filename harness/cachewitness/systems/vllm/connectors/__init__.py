"""vLLM's own KV connectors, scheduler side and worker side; the copies that they ask the device
for are the ledger's.
"""
