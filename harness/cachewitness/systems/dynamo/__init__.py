"""Dynamo's indexer of key events, as a router that `cachewitness route` takes."""
