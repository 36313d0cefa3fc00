"""The built-in tools, one module per family, and the framework they are written in.

Start reading at `turn` (what a step gets) and `framework` (what tools are written in).
"""
