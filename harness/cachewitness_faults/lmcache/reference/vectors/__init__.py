"""The questions that LMCache is asked for test vectors."""
