"""OpenVINO GenAI's vectors: how its two pools are sized, where a prompt resumes, how far a chunk
goes, and whole lives.
"""
