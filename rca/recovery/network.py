"""Actions on collectives and routes: collectives that avoid a slow link, and other routes."""

from __future__ import annotations

import numpy as np

from rca.recovery.option import UNKNOWN_GAIN, Gain, Option, Rejection, Weight, option
from rca.recovery.situation import BlamedCause, Situation

#: Share of a fault-free ring that a node with a slow interface adds: OptCC is within 2 to 6 % at half the
#: bandwidth.
SLOWER_RING = (0.02, 0.06)


class DegradedLinkCollectives:
    """Spread a node's traffic over its sound interfaces; no machine leaves."""

    name = "degraded_link_collectives"
    weight: Weight = "light"

    def options(self, situation: Situation) -> list[Option | Rejection]:
        """One option for each slow interface of a node with several; or the reason against it."""
        faults = situation.of_cause("nic_degradation")
        if not faults:
            return [self._rejected("no interface of a node is slow")]
        interfaces = situation.site.nics_per_node
        if interfaces is None:
            return [self._rejected("needs the number of interfaces per node (nics_per_node)")]
        if interfaces < 2:
            return [self._rejected("the node has one interface")]
        return [self._for(fault, situation) for fault in faults]

    def _for(self, fault: BlamedCause, situation: Situation) -> Option | Rejection:
        if fault.saved is None or fault.interval is None or situation.replay is None:
            gain = UNKNOWN_GAIN
        else:
            transfer = situation.replay.transfer[np.isfinite(situation.replay.transfer)]
            ring = max(float(transfer.mean()) - fault.saved, 0.0) if transfer.size else 0.0
            least, most = (share * ring for share in SLOWER_RING)
            saved = fault.saved - (least + most) / 2
            if saved <= 0:
                return self._rejected("the longer ring costs more than the slow interface")
            gain = Gain(saved, (fault.interval[0] - most, max(fault.interval[1] - least, saved)), "published")
        return option(
            self,
            gain,
            chance=fault.probability,
            causes=[fault.cause],
            ranks=fault.ranks,
            nodes=fault.nodes,
            risk="none for convergence; the other interfaces carry the load of the slow one",
            instruction="let the collective library fail over to the other interfaces; one that cannot needs "
            "a restart without the slow one (NCCL_IB_HCA, NCCL_SOCKET_IFNAME with ^)",
        )

    def _rejected(self, reason: str) -> Rejection:
        return Rejection(action=self.name, reason=reason)


class Reroute:
    """Move the job's traffic, or the job, away from a congested part of the network."""

    name = "reroute"
    weight: Weight = "heavy"

    def options(self, situation: Situation) -> list[Option | Rejection]:
        """One option for each congestion; or the reason against it."""
        faults = situation.of_cause("network_congestion")
        if not faults:
            return [Rejection(action=self.name, reason="the network is not congested")]
        return [
            option(
                self,
                Gain(fault.saved, fault.interval and (0.0, fault.interval[1]), "attribution")
                if fault.saved is not None
                else UNKNOWN_GAIN,
                chance=fault.probability,
                causes=[fault.cause],
                ranks=fault.ranks,
                nodes=fault.nodes,
                one_off=situation.site.restart_cost,
                risk="none for convergence; the new place may be congested as well",
                instruction="restart the job on nodes under other leaf switches, or turn on adaptive routing",
            )
            for fault in faults
        ]
