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
# One real captured window, from file to answer. Open it with Jupytext, or run it with `python`.

# %%
from pathlib import Path

import rca

root = Path(__file__).resolve().parents[1] if "__file__" in globals() else Path.cwd().parent
window = rca.read_window(root / "data" / "windows" / "cpu-contention-node")
diagnosis = rca.diagnose(window)
print(diagnosis.failure_mode, diagnosis.failure_mode_probability)

# %% [markdown]
# ## Who, and why
#
# Costs are seconds per step: what the mean step would lose if the cause were at its reference. Causes and the
# unexplained rest add up to the slowdown.

# %%
for straggler in diagnosis.stragglers:
    print(straggler.scope, straggler.ranks, straggler.nodes, straggler.straggler_type, straggler.pattern)
for cause in diagnosis.causes:
    seconds = f"{cause.seconds_per_step * 1e3:6.1f} ms per step"
    print(f"{cause.cause:20s} {seconds}  (probability {cause.probability:.2f})")
print(f"{'unexplained':20s} {diagnosis.unexplained_seconds_per_step * 1e3:6.1f} ms per step")

# %% [markdown]
# ## Looking at it yourself
#
# The features the models saw are arrays of rank x step; the late ranks stand out in `excess`.

# %%
from rca.features import extract

features = extract(window)
late = features.comparison.excess.mean(axis=1)
print({f"rank {rank}": f"{seconds * 1e3:.1f} ms" for rank, seconds in enumerate(late)})

# %% [markdown]
# ## The page for the incident channel

# %%
print(diagnosis.to_markdown())
