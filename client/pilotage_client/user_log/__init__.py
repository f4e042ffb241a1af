"""HTCondor's user logs, written by the submitter: the events of jobs as text, in files that grow only at their end.

It owns the format, the files and their locks. It must not change jobs, and it decides nothing about them.
"""
