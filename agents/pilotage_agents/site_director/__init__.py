"""Submits pilots to the queues of sites and follows their glideins.

`planning` and `queues` decide and are pure; the rest acts.
"""
