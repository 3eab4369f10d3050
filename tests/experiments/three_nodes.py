"""A Ray cluster of three nodes on this machine, each with one processor.

    python three_nodes.py

Prints the address, and at each line on standard input kills the last node.
"""

import logging
import os
import sys

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")

import ray
from ray.cluster_utils import Cluster

arguments = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
cluster = Cluster(
    initialize_head=True, head_node_args=arguments | {"include_dashboard": False}
)
nodes = [cluster.add_node(**arguments) for _ in range(2)]
ray.init(address=cluster.address, logging_level=logging.ERROR)
cluster.wait_for_nodes()
ray.shutdown()
print(cluster.address, flush=True)
for _ in sys.stdin:
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
