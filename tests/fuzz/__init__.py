"""Random and mutated inputs for every door of the system, and bounds that must hold meanwhile.

The server and the broker are real processes. Readers of files run in a child process, which an input may crash. It owns
nothing of the product, and trusts only status codes, log lines, and what the kernel says about the processes.
"""
