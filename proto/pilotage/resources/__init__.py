"""The resource tree, requirements, and the evaluator of eligibility that every process uses. Pure."""
