"""The copy engine: chunks over a token that all copiers of a node share. Stands in for the PCIe link."""

from __future__ import annotations

import time

from rca.testbed.ranks.shared import BATCH_BYTES, Pace, Shared
from rca.testbed.ranks.wires import TOKEN, Pipe, Wires

CHUNKS = 16
CHUNK_SECONDS = 0.18e-3
# Whoever puts the token back and asks again at once would always get it; turns need a pause.
PAUSE_SECONDS = 0.02e-3


def copy(shared: Shared, wires: Wires, scale: float) -> None:
    """Copy batches from host to device memory until killed."""
    size = BATCH_BYTES // CHUNKS
    while True:
        slot = wires.copies.receive(1)[0]
        for chunk in range(CHUNKS):
            part = slice(chunk * size, (chunk + 1) * size)
            wires.link.receive(1)
            started = time.monotonic()
            shared.device_batch[part] = shared.slots[slot, part]
            seconds = CHUNK_SECONDS * scale * shared.pace[Pace.COPY]
            time.sleep(max(0.0, started + seconds - time.monotonic()))
            wires.link.send(TOKEN)
            time.sleep(PAUSE_SECONDS)
        wires.copied.send(TOKEN)


def crowd(link: Pipe, scale: float) -> None:
    """Be a foreign copier on the same link, until killed."""
    while True:
        link.receive(1)
        time.sleep(CHUNK_SECONDS * scale)
        link.send(TOKEN)
        time.sleep(PAUSE_SECONDS)
