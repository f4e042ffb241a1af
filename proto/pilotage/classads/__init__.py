"""ClassAd text and values: tokens, references, limits, and evaluation by HTCondor's library.

These modules know nothing of jobs and slots.
"""
