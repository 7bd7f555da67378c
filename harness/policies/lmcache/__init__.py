"""LMCache's policy, behind vLLM's scheduler: its engine, plan, mutants and test vectors."""
