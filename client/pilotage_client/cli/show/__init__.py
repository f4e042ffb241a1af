"""What commands show: tables, columns, colours, progress, live views, and the JSON objects with their schemas.

It asks no server: commands pass the values.
"""
