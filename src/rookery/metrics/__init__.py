"""The metrics of a replica, read from the counters of other packages at each scrape.

Other packages count by themselves and never import this package. Start with `export`, whose tables list all families.
"""
