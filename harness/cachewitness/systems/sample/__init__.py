"""The engine `sample`: a small server that only answers, to show what is judged at answers level
without torch.

Its model is made of a recurrent state and a sum over keys, in Python's own numbers; its prefix
cache keeps both in pages of one pool. It tells nothing of its pages: prompts go in, answers come
out.
"""
