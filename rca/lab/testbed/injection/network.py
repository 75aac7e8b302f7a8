"""Faults of a node's link in its sending direction: low rate, delay, loss."""

from __future__ import annotations

import os
from functools import partial

from rca.lab.testbed.injection.injector import Injector
from rca.lab.testbed.network import HEALTHY_MBIT, TestbedNode, open_tap, redirect, relay, restore, set_rate
from rca.lab.testbed.process import ProcessPlacement, Spawned, in_namespace


class LinkRate(Injector):
    """A tighter token bucket."""

    def start(self) -> None:
        self._set(self.fault.level)

    def stop(self) -> None:
        self._set(HEALTHY_MBIT)

    def _set(self, mbit: float) -> None:
        for node in self.affected_nodes:
            set_rate(self.bed.nodes[node], mbit)


class _Relayed(Injector):
    """Frames pass through a relay process."""

    delay_seconds = 0.0
    loss_ratio = 0.0
    _relays: tuple[tuple[TestbedNode, int, Spawned], ...] = ()

    def start(self) -> None:
        self._relays = tuple(self._relay(self.bed.nodes[node]) for node in self.affected_nodes)

    def stop(self) -> None:
        for node, handle, process in self._relays:
            restore(node)
            self.bed.process_table.end(process)
            os.close(handle)

    def _relay(self, node: TestbedNode) -> tuple[TestbedNode, int, Spawned]:
        with in_namespace(node.namespace):
            handle = open_tap(node)
        work = partial(relay, handle, self.delay_seconds, self.loss_ratio, self.bed.scenario.seed)
        placement = ProcessPlacement(namespace=node.namespace, real_time=self.bed.permitted.real_time)
        process = self.bed.process_table.spawn("relay", work, placement)
        redirect(node)
        return node, handle, process


class LinkDelay(_Relayed):
    """Every frame is delayed."""

    def start(self) -> None:
        self.delay_seconds = self.fault.level * 1e-3
        super().start()


class LinkLoss(_Relayed):
    """Some frames are dropped."""

    def start(self) -> None:
        self.loss_ratio = self.fault.level
        super().start()
