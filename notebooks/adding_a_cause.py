# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Adding a cause
#
# A site saw a fault that the catalogue does not have: after a restart, processes run on the cores of the
# wrong CPU socket. Copies to the GPU cross the link between the sockets, and kernels are launched late. No
# counter of the PCIe link changes. This notebook adds the cause up to a trained head. Open it with
# Jupytext, or run it with `python`.
#
# [How a cause is added](../docs/how-to/add-a-cause.md) lists the files.
#
# Here entry and mechanism are put in place for the running process only. In the code each is one line of
# its file.

# %% [markdown]
# ## 1. The catalogue entry
#
# It says which phases the cause lengthens and which evidence changes with it. The next check is the one
# that excludes or confirms it.

# %%
from rca.window.causes import CAUSES, SPECS, CauseSpec

spec = CauseSpec(
    id="numa_misplacement",
    type="host",
    owner="infrastructure",
    phases=("host_to_device", "forward", "optimizer"),
    resources=(),
    meaning="the process runs on cores of another CPU socket than its GPU",
    next_check="compare `taskset -cp PID` with the CPU affinity in `nvidia-smi topo -m`",
)
assert spec.id not in CAUSES, "ids are added, never renamed"

# %% [markdown]
# ## 2. The mechanism
#
# A fault changes resources, and neither phases nor metrics: the simulator derives both, so all symptoms
# agree. This one makes copies and launches slower. It leaves the link's width and rate alone, unlike
# `pcie_degradation`.

# %%
import numpy as np

from rca.lab.simulation import FAULTS, Fault, SimulationScenario
from rca.lab.simulation.faults.kind import FaultKind, envelope, jitter, ranks_of
from rca.lab.simulation.resources import Resources


def numa_misplacement(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Run on another socket: copies cross the sockets' link, launches miss the caches."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    uneven = jitter(rng, (ranks.size, scenario.n_steps), 0.05)
    worst = fault.strength * fault.force * active * uneven
    resources.copy_stretch[ranks] *= 1 + 4.0 * worst
    resources.launch_stretch[ranks] *= 1 + 1.5 * worst


kind = FaultKind("host", "rank", numa_misplacement, ("socket",))

# %% [markdown]
# ## 3. Simulated windows of the cause and of its neighbours
#
# The neighbours are what it would be confused with. Places, times and severities are drawn. The label has
# the cost: the same job runs again without the fault.

# %%
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from rca.lab.simulation import LabelledWindow, Telemetry, simulate
from rca.lab.simulation.sampling import sample_fault

CLASSES = (spec.id, "pcie_degradation", "cpu_contention")
WINDOWS = 18  # of each class; `make train` draws 96,000 windows of all classes


@contextmanager
def registered() -> Iterator[None]:
    """Entry and mechanism are in place within this block."""
    with ExitStack() as stack:
        for registry, entry in ((CAUSES, spec), (SPECS, spec), (FAULTS, kind)):
            stack.enter_context(patch.dict(registry, {spec.id: entry}))
        yield


def drawn(cause: str, seed: int) -> LabelledWindow:
    """A small job with one drawn fault."""
    rng = np.random.default_rng([seed, CLASSES.index(cause)])
    job = SimulationScenario(
        seed=int(rng.integers(2**31)),
        dialect="mixed",
        n_steps=30,
        telemetry=Telemetry(exporters=("cpu", "pressure", "process", "container", "dcgm")),
    )
    return simulate(job.model_copy(update={"faults": (sample_fault(rng, job, cause),)}))


with registered():
    windows = [drawn(cause, seed) for cause in CLASSES for seed in range(WINDOWS)]
costs = [each.label["causes"][0]["seconds_per_step"] for each in windows if each.label["causes"]]
print(f"{len(costs)} of {len(windows)} windows have a fault that slows its steps by 5 % or more:")
print(f"{1e3 * min(costs):.0f} to {1e3 * max(costs):.0f} ms per step, mean over the window")

# %% [markdown]
# ## 4. What the model says today
#
# It does not have the class. A good answer is `unknown` or none. A known cause with high probability would
# send people to the wrong machine.

# %%
from collections import Counter

import rca

unseen = [each.window for each in windows[:WINDOWS] if each.label["causes"]][:5]
answers = map(rca.diagnose, unseen)
print(Counter("undecided" if each.abstained or not each.causes else each.causes[0].cause for each in answers))

# %% [markdown]
# ## 5. Does its evidence differ?
#
# Before any training: the features of the blamed ranks have to separate the cause from its neighbours. If
# they do not, a signal is missing, and more windows do not help.

# %%
import matplotlib.pyplot as plt

from rca.features.table import RANK_FEATURES
from rca.lab.training.corpus import example, stack
from rca.sources.labels import WindowLabel

corpus = stack(
    example(each.window, WindowLabel.model_validate(each.label), group=f"scenario-{number}", seed=number)
    for number, each in enumerate(windows)
)
rows, cause = corpus.rank[corpus.faulty], np.array(corpus.rank_cause)[corpus.faulty]
figure, every_axes = plt.subplots(1, 2, figsize=(9, 3.5), sharex=True, layout="constrained")
for axes, other in zip(every_axes, ("forward_excess", "pcie_vs_peers"), strict=True):
    for name, mark in zip(CLASSES, "o^s", strict=True):
        x, y = (rows[cause == name, RANK_FEATURES.index(each)] for each in ("host_to_device_excess", other))
        axes.plot(x, y, mark, label=name, alpha=0.7)
    axes.set(xlabel="host_to_device_excess [steps]", ylabel=other)
    axes.set_xscale("symlog", linthresh=0.01)
_ = every_axes[0].legend()

# %% [markdown]
# ## 6. The head
#
# `make train` fits all heads. Here the head `cause` alone learns three classes with the functions of the
# training. A scenario is in one part only: the head is judged on scenarios that it has not seen.

# %%
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.lab.training.heads import Target, fit_head

owner = corpus.owner[corpus.faulty]
part, group = np.array(corpus.part)[owner], np.array(corpus.group)[owner]
target = Target(rows, tuple(cause), CLASSES, part, np.ones(cause.size), group)
fitted = fit_head("cause", target, seed=1, settings={"min_data_in_leaf": 5})
head = Head.load("cause", fitted.entry(), fitted.text, HEADS["cause"])

held_out = np.isin(part, ("validation", "test"))
probabilities = head.probabilities(rows[held_out])
answered, true = np.array(CLASSES)[probabilities.argmax(axis=1)], cause[held_out]
print(f"{np.mean(answered == true):.0%} of {true.size} held-out ranks have the right cause")
for name in CLASSES:
    counts = Counter(answered[true == name])
    print(f"{name:20s} " + ", ".join(f"{each} {n}" for each, n in counts.items()))

# %% [markdown]
# ## 7. The runbook
#
# A file per cause: verify, contain, fix, escalate, confirm. Shared steps such as `cordon` are used by name.
# A step that changes something says how it is undone.

# %%
import yaml

from rca.runbook.procedures import Library, runbook
from rca.runbook.procedures.pages import text
from rca.runbook.procedures.sources import RunbookSource

written = """
verify:
  - do: Compare the cores that the process may use with those beside its GPU.
    at: rank
    run: taskset -cp {{ pid }}; nvidia-smi topo -m
    confirmed: The list of cores lies outside the CPU affinity of the GPU.
    otherwise: The cores are those of the GPU's socket.
fix:
  - do: Bind the cores of the rank to the GPU's socket, by the launcher's option.
  - use: restart
escalate:
  - when: The launcher binds the cores, and they change again
    to: "{{ infrastructure_contact }}"
    send: node, process id and both outputs
confirm:
  - use: diagnose_again
"""
shipped = Library.read()
library = Library(
    {**shipped.runbooks, spec.id: RunbookSource.model_validate(yaml.safe_load(written))}, shipped.common
)
with registered():
    print(text(runbook(library, spec.id, platform="slurm")))

# %% [markdown]
# ## 8. The test
#
# It states what the cause does on its rank, and what it leaves alone. It fails if the mechanism changes.


# %%
def test_copies_and_launches_are_slower_and_the_link_is_whole() -> None:
    job = SimulationScenario(dialect="mixed")
    resources = Resources.healthy(job)
    fault = Fault(cause=spec.id, ranks=(2,), severity=0.8)
    numa_misplacement(resources, fault, job, np.random.default_rng(0))
    assert resources.copy_stretch[2].mean() > 2
    assert resources.launch_stretch[2].mean() > 1.5
    assert resources.lost_lanes.max() == resources.lost_generations.max() == 0
    assert (resources.copy_stretch[[0, 1, 3]] == 1).all()


test_copies_and_launches_are_slower_and_the_link_is_whole()
print("the test passes; ids of the catalogue are unchanged:", spec.id not in CAUSES)
