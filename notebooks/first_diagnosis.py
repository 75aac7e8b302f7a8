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
# # A first diagnosis
#
# From the file of one captured window to its diagnosis. Open this notebook with Jupytext, or run it with
# `python`.

# %%
from pathlib import Path

import rca

root = Path(__file__).resolve().parents[1] if "__file__" in globals() else Path.cwd().parent
window = rca.read_window(root / "data" / "windows" / "cpu-contention-node")
diagnosis = rca.diagnose(window)
print(diagnosis.failure_mode, diagnosis.failure_mode_probability)

# %% [markdown]
# ## Which ranks, and why
#
# A cost is in seconds per step: the mean step would be that much shorter without the cause. The costs of the
# causes and the unexplained rest add up to the slowdown.

# %%
for straggler in diagnosis.stragglers:
    print(straggler.scope, straggler.ranks, straggler.nodes, straggler.straggler_type, straggler.pattern)
for cause in diagnosis.causes:
    seconds = f"{cause.seconds_per_step * 1e3:6.1f} ms per step"
    print(f"{cause.cause:20s} {seconds}  (probability {cause.probability:.2f})")
print(f"{'unexplained':20s} {diagnosis.unexplained_seconds_per_step * 1e3:6.1f} ms per step")

# %% [markdown]
# ## The features
#
# Features are arrays of shape (ranks, steps). `excess` is the lateness of each rank compared with its peers.

# %%
from rca.features import extract

features = extract(window)
late = features.comparison.excess.mean(axis=1)
print({f"rank {rank}": f"{seconds * 1e3:.1f} ms" for rank, seconds in enumerate(late)})

# %% [markdown]
# ## The page for the incident channel

# %%
print(diagnosis.to_markdown())
