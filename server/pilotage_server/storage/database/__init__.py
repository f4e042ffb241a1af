"""The database itself: engine, connections, transactions, group commit, tables, bulk SQL.

Knows no rule of the domain.
"""
