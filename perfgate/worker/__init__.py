"""The child process: runs what one ``spec.json`` says, in one mode, for one purpose, and writes ``done.json`` last.

``python -m perfgate.worker FOLDER/spec.json``. Timing children do nothing but warm up and measure; bit digests, memory and
error to float64 are taken in unprofiled children of their own.
"""
