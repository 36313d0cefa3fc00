"""The launcher: a program that drops privileges, starts one sandbox, and reports its process.

It also runs on machines that are reached by ssh. It needs Python 3.9, and imports only the standard library and this
package. Start reading at `run.py`.
"""
