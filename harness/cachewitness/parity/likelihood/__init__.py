"""Likelihood of what comes next, compared: a server cold against cached, or two servers."""
