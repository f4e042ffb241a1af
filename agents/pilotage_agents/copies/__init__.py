"""The places that copies of jobs go to: queues of batch systems, and other servers."""
