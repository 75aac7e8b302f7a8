"""The loader process: it reads from disk, decodes, and keeps two batches ahead."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import time
from pathlib import Path

import numpy as np

from rca.arrays import FloatArray
from rca.lab.testbed.ranks.models import BATCH_SAMPLES, MAX_TOKENS, SEQUENCES, TYPICAL_TOKENS
from rca.lab.testbed.ranks.shared import BATCH_BYTES, BATCH_READY, ByteArray, Knob, Pipes, RankMemory
from rca.lab.testbed.scenario import Model

READ_BYTES = 512 * 1024
DATASET_BYTES = 64 * READ_BYTES
DECODE_SECONDS = 1.0e-3


def write_dataset(path: Path, seed: int) -> None:
    """Write the file that all loaders read from."""
    noise = np.random.default_rng(seed).integers(0, 256, DATASET_BYTES, dtype=np.uint8)
    path.write_bytes(noise.tobytes())


def load(
    model: Model,
    shared: RankMemory,
    pipes: Pipes,
    dataset: Path,
    seed: int,
    *,
    direct: bool,
    number: int = 0,
    n_ranks: int = 1,
) -> None:
    """Serve batches until killed.

    Parameters
    ----------
    seed : int
        A thousand times that of the job, plus the rank.
    number : int
        0 is the rank's own loader. Others end when ``MORE_LOADERS`` falls below their number.
    n_ranks : int
        Of the job.
    """
    draw = np.random.default_rng(seed)
    handle = os.open(dataset, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    buffer = mmap.mmap(-1, READ_BYTES)  # page-aligned, as direct reads need
    raw = np.frombuffer(buffer, np.uint8)
    for batch in itertools.count():
        slot = pipes.slots.receive(1)[0]
        if number > shared.knobs[Knob.MORE_LOADERS]:
            pipes.slots.send(bytes([slot]))
            return
        offset = int(draw.integers(DATASET_BYTES // READ_BYTES)) * READ_BYTES
        os.preadv(handle, [buffer], offset)
        time.sleep(shared.knobs[Knob.LOADER_DELAY_SECONDS])
        shared.slots[slot] = _decode(raw, DECODE_SECONDS + shared.knobs[Knob.DECODE_SECONDS])
        spread = float(shared.knobs[Knob.LENGTH_SPREAD])
        drawn = draw_lengths(draw, spread, 1)
        if shared.knobs[Knob.BALANCED_LENGTHS]:
            # The same draw on every rank, so that all have the same batch.
            drawn = draw_lengths(np.random.default_rng([seed // 1000, batch]), spread, n_ranks)
        samples, tokens, squares, length = _lengths(model, balanced_length(drawn))
        pipes.batches.send(BATCH_READY.pack(slot, samples, tokens, squares, length))


def _decode(raw: ByteArray, seconds: float) -> ByteArray:
    """Use this much CPU time on the bytes, as an image decoder does."""
    until = time.process_time() + seconds
    part = raw[:BATCH_BYTES]
    decoded = part
    while time.process_time() < until:
        decoded = np.cumsum(part, dtype=np.uint8) ^ part
    return decoded


def draw_lengths(draw: np.random.Generator, spread: float, count: int) -> FloatArray:
    """Tokens per sequence of some batches, shape (count,).

    One length for a whole batch, as bucketing by length does; ranks then differ most.
    """
    tokens = np.round(TYPICAL_TOKENS * np.exp(draw.normal(0.0, 0.01 + spread, count)))
    return np.clip(tokens, 6, MAX_TOKENS)


def balanced_length(lengths: FloatArray) -> int:
    """Length of a batch that costs as much as the mean of some: half by tokens, half by their squares."""
    relative = lengths / TYPICAL_TOKENS
    cost = float(np.mean(relative + relative**2))
    return round(TYPICAL_TOKENS * (math.sqrt(1 + 4 * cost) - 1) / 2)


def _lengths(model: Model, length: int) -> tuple[float, float, float, float]:
    """Samples, tokens, summed squared lengths and the longest sequence of a batch."""
    if model != "transformer":
        return float(BATCH_SAMPLES), np.nan, np.nan, 0.0
    return float(SEQUENCES), float(SEQUENCES * length), float(SEQUENCES * length**2), float(length)
