"""The program that starts one workspace: drops its rights, builds the sandbox, detaches, says which process it is.

It runs by itself, on this machine and on those that ssh reaches, so it needs Python 3.9 and imports nothing but the
standard library and its own package. Start reading at `run.py`.
"""
