"""Routes: how they are read, which jobs they take, and which job goes along which."""
