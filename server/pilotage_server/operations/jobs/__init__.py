"""Operations on jobs: submission, changes, edits, queries, periodic policies and retention. Each is one transaction."""
