"""HTCondor's file formats: configuration, quoting, job files. Reads and writes text; applies no policy."""
