"""The database itself: engine, connections, transactions, group commit, tables, bulk SQL, fence, installation.

Knows no rule of the domain but those of a restore.
"""
