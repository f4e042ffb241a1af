"""The job: states, record, descriptions, attributes, periodic policies and files, as values."""
