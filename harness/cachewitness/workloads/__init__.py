"""What is asked of an engine: the trace format, layouts, configurations, hand-written and random
traces, and the shrinker.
"""
