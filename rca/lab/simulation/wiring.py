"""Wiring of simulated nodes: PCIe switches, network adapters and leaf switches."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rca.frozen import Frozen

Count = Annotated[int, Field(ge=1)]


class Wiring(Frozen):
    """What the nodes' GPUs are connected to; all nodes are alike.

    Attributes
    ----------
    nodes_per_leaf : int
        Nodes on one leaf switch.
    gpus_per_switch : int
        GPUs of a node behind one PCIe switch.
    adapters : int
        Network adapters of a node. GPUs use them in order, evenly. An adapter's index is its rail.
    """

    nodes_per_leaf: Count = 2
    gpus_per_switch: Count = 2
    adapters: Count = 1

    def leaf(self, node: int) -> str:
        """Leaf switch of a node."""
        return f"leaf-{node // self.nodes_per_leaf}"

    def switch(self, gpu: int) -> str:
        """PCIe switch of a GPU, on its node."""
        return f"plx-{gpu // self.gpus_per_switch}"

    def rail(self, gpu: int, ranks_per_node: int) -> int:
        """Index of a GPU's adapter."""
        return gpu * self.adapters // ranks_per_node

    def columns(self, node: int, gpu: int, ranks_per_node: int) -> dict[str, str]:
        """Hardware of one rank, as columns of the job's ranks."""
        rail = self.rail(gpu, ranks_per_node)
        return {
            "pcie_switch": self.switch(gpu),
            "nic": f"mlx5_{rail}",
            "leaf_switch": self.leaf(node),
            "rail": str(rail),
        }
