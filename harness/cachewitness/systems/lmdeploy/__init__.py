"""The installed lmdeploy's own scheduler and paging of its PyTorch engine, driven in process."""
