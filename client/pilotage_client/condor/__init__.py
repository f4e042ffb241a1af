"""Commands with the names, options and output of HTCondor's, over the Python API: condor_submit, condor_q and others.

It owns what is HTCondor's: options, texts and exit codes, and the return of output to the submitter's folders. It must
not read or change jobs in another way than the other commands do.
"""
