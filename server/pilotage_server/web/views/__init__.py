"""The views: for each one a function that collects what its template shows."""
