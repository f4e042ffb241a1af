"""Contents of files by their SHA-256: in a folder, or in an S3-compatible object store."""
