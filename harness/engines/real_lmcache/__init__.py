"""The installed LMCache: its server's modules in this process, and blocks of a device whose bytes say whose they are."""
