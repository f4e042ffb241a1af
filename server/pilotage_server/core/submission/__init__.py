"""Submissions: validation, the optimizer chain and the submit policy.

Each job is accepted or rejected with reasons; nothing is stored here.
"""
