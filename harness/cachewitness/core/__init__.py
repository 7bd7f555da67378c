"""What happened: the events of an engine and of the worker that executes its block tables, in
one total order.
"""
