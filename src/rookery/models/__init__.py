"""Which model answers, with which key, options and price: the directory of configured models."""
