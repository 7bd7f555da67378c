"""One folder for each cache policy: everything that the harness adds to the specification in
`reference_impl`.
"""
