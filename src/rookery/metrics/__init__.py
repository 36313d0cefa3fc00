"""The metrics of a replica: read from the counters of other modules at each scrape.

Lower layers count for themselves and never import this package. Start with `export`, whose tables hold all families.
"""
