"""Actions on collectives and routes: collectives that avoid a slow link, and other routes."""

from __future__ import annotations

from rca.recovery.option import Gain, Option, Rejection, Weight, option
from rca.recovery.situation import Fault, Interval, Situation

#: Share of the loss that stays where collectives use the other interfaces of a node: OptCC is within 2 to 6 %
#: of a fault-free ring at half the bandwidth, R2CCL reports less than 1 %.
LEFT_BY_REBALANCING: Interval = (0.02, 0.06)


class DegradedLinkCollectives:
    """Spread a node's traffic over its sound interfaces: no restart, no machine out."""

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

    def _for(self, fault: Fault, situation: Situation) -> Option:
        least, most = (1.0 - share for share in reversed(LEFT_BY_REBALANCING))
        gain = Gain(None, None, "unknown")
        if fault.saved is not None and fault.interval is not None:
            interval = (fault.interval[0] * least, fault.interval[1] * most)
            gain = Gain(fault.saved * (least + most) / 2, interval, "published")
        return option(
            self,
            gain,
            chance=fault.probability,
            causes=[fault.cause],
            ranks=fault.ranks,
            nodes=fault.nodes,
            risk="none for convergence; the other interfaces carry the load of the slow one",
            instruction="exclude the interface at the next restart (NCCL_IB_HCA, NCCL_SOCKET_IFNAME with ^), "
            "or let the collective library fail over",
            corrected=situation.site.corrections.get(self.name, 1.0),
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
                else Gain(None, None, "unknown"),
                chance=fault.probability,
                causes=[fault.cause],
                ranks=fault.ranks,
                nodes=fault.nodes,
                one_off=situation.site.restart_cost,
                risk="none for convergence; the new place may be congested as well",
                instruction="restart the job on nodes under other leaf switches, or turn on adaptive routing",
                corrected=situation.site.corrections.get(self.name, 1.0),
            )
            for fault in faults
        ]
