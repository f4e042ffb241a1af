"""How a pilot gets jobs: what it requests, prefetches and places on slots.

Sends nothing: it returns instructions.
"""
