"""Configured models: directory, resolution, keys, options, prices, and the connection to a provider."""
