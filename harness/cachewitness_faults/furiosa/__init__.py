"""Furiosa-LLM."""
