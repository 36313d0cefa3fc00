"""Model providers, model configs, keys, usage and spending."""
