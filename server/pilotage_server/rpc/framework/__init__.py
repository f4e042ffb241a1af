"""The common parts of all servicers: dispatch, access check, tokens, error mapping. Independent of any service."""
