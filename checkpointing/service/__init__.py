"""The checkpoint service of a node: makes staged snapshots durable, and outlives the trainers that
staged them. Without torch.

    service.py   what it does with snapshots: choose, write, commit, prune
    server.py    its connections; process.py, the process, one per node and run
    client.py    what trainers call
"""
