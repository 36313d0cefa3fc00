"""The built-in tools: one module per family, and the framework they are written in.

Start with `step_tools` (the tools of a step) and `framework` (the definition of a tool).
"""
