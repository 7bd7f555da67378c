"""What is asked: the trace format, the layouts and configurations that traces are written for, and who writes them."""
