"""vLLM's HiSparse: sparse attention whose blocks lie in the host's memory, with copies of some
on the device.
"""
