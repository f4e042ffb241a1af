"""What commands show: tables, columns, colours, progress, live views, and the JSON objects with their schemas."""
