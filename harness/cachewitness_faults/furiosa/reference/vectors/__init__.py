"""The questions that Furiosa-LLM is asked for test vectors."""
