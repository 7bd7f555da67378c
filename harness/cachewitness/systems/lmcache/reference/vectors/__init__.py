"""LMCache's vectors: its settings and start-up checks, how much is served, what a hit needs, and
whole lives behind vLLM.
"""
