"""What happens to a cluster of several hosts: scenarios, each written once for all engines.

`hosts` makes the hosts, `clusters` starts an engine's cluster on them by the documented commands,
`master` is the program that runs on one of them, `scenarios` disturbs and measures.
"""
