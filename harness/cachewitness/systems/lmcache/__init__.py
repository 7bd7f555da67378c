"""The engine `real-lmcache`: the installed LMCache's own modules in process, its connector behind
vLLM's scheduler, and the policy `lmcache`.
"""
