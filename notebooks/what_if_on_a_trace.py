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
# # What would the job take without its stragglers?
#
# A trace of operations is replayed with some of them changed. Each repair then has a price before it is
# made. Open this notebook with Jupytext, or run it with `python`.

# %% [markdown]
# ## The trace
#
# One row per operation: rank, type, microbatch, begin and duration. `docs/how-to/what-if.md` says how
# profiler traces become one. Here the simulator writes it: 4 data ranks by 4 pipeline stages. The GPU of
# rank 6 is throttled, and the last stage has more work than the others.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

import rca
from rca.lab.simulation import Benign, Fault, SimulationScenario, Telemetry, Workload, simulate
from rca.window.job import Parallelism

job = SimulationScenario(
    dialect="gpu_cluster",
    parallelism=Parallelism(data=4, pipeline=4),
    ranks_per_node=4,
    n_steps=20,
    workload=Workload(forward_seconds=0.25, backward_seconds=0.5, microbatches=8),
    faults=(
        Fault(cause="gpu_throttling", ranks=(6,), severity=0.6),
        Fault(cause="stage_imbalance", ranks=(12, 13, 14, 15), severity=0.3),
    ),
    benign=Benign(warmup_steps=0, hiccup_probability=0.0, sequence_jitter=0.0),
    telemetry=Telemetry(ops=True),
)
folder = TemporaryDirectory()
trace = Path(folder.name, "trace.parquet")
pq.write_table(simulate(job).window.ops, trace)
sizes = {"dp_size": 4, "pp_size": 4, "world_size": 16}

# %% [markdown]
# ## The price of all stragglers
#
# Read the fidelity first. It says how far the replay without changes is from the measured steps.

# %%
answer = rca.what_if(trace, sizes)
print(f"a step takes {answer.measured.mean():.3f} s, without stragglers {answer.ideal.mean():.3f} s")
print(f"slowdown {answer.slowdown:.2f}, {answer.waste:.0%} of the job's time")
print(f"the replay is within {answer.fidelity:.1%} of the measured steps")
for finding in answer.findings:
    print(f"finding: {finding.text}")

# %% [markdown]
# ## Which worker, which stage
#
# Each cell is the slowdown if only this worker had its delays. A dark cell is a machine, a dark column is a
# stage.

# %%
import matplotlib.pyplot as plt

from rca.whatif.report import worker_grid

figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
image = axes.imshow(worker_grid(answer), cmap="YlOrRd", vmin=1.0)
axes.set(xlabel="pipeline stage", ylabel="data rank", xticks=range(4), yticks=range(4))
_ = figure.colorbar(image, label="slowdown by this worker alone")

# %% [markdown]
# ## What each repair would save
#
# A scenario is a list of changes. `peers` gives the selected operations the times of the same stage's other
# ranks. `move_to_stage` moves a share of a stage's work.

# %%
from rca.whatif import scenarios_of

new_gpu = {"select": {"ranks": [6], "kind": "compute"}, "to": "peers"}
move = {"select": {"stages": [3]}, "to": "move_to_stage", "value": 0.12, "stage": 0}
repairs = {
    "as it is": [],
    "another GPU for rank 6": [new_gpu],
    "12 % of stage 3 to stage 0": [move],
    "both": [new_gpu, move],
}
seconds = scenarios_of(trace, [{"name": name, "changes": made} for name, made in repairs.items()], sizes)
step = dict(zip(repairs, seconds.mean(axis=1), strict=True))
for name, mean in step.items():
    print(f"{name:28s} {mean:.3f} s per step, {1e3 * (step['as it is'] - mean):6.1f} ms saved")

# %%
figure, axes = plt.subplots(figsize=(6, 2.5), layout="constrained")
axes.barh(list(step), list(step.values()), color=["0.3", "0.6", "0.6", "0.6"])
axes.axvline(answer.ideal.mean(), color="tab:red", linestyle="--", label="without stragglers")
axes.invert_yaxis()
axes.set_xlabel("seconds per step")
_ = figure.legend(loc="outside upper right", frameon=False)

# %% [markdown]
# Savings do not add up: while the slow GPU holds the pipeline up, the balanced stages only wait longer. So
# the order of the repairs matters, and the replay gives it.

# %%
alone = step["as it is"] - step["12 % of stage 3 to stage 0"]
after = step["another GPU for rank 6"] - step["both"]
print(f"moving work saves {1e3 * alone:.1f} ms now, and {1e3 * after:.1f} ms once rank 6 has another GPU")

# %% [markdown]
# ## One step on a time line
#
# Open the file at <https://ui.perfetto.dev>: each stage as traced, and below it without stragglers.

# %%
from rca.whatif.analysis import replay_of
from rca.whatif.report import write_timeline
from rca.whatif.timeline import timeline

write_timeline(Path(folder.name, "step.json"), timeline(replay_of(trace, sizes)))
print(f"{Path(folder.name, 'step.json').stat().st_size / 1e3:,.0f} kB")
folder.cleanup()
