"""The launcher, a program that starts one workspace: drops its rights, builds the sandbox, detaches, reports its
process.

It runs standalone, on this machine and on those that ssh reaches, so it needs Python 3.9 and imports only the standard
library and its own package. Start reading at `run.py`.
"""
