"""Faults in the policy of vLLM, and its questions."""
