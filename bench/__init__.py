"""Benchmarks, run from a checkout as `python -m bench.<name>`: they print figures, fail nothing.

They may use every room.
No room knows them.
"""
