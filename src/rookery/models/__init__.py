"""Configured models: the directory, resolution, keys, options, prices and the connection to a provider."""
