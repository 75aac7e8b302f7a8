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
# # Retraining on one's own incidents
#
# A model learns from labelled windows of your cluster, MLflow records it, and a gate compares it with the
# model in use. Here the training is far too short on purpose: the gate has to say that the result is worse.
# Open this notebook with Jupytext, or run it with `python`. It needs the extra `train` and takes about two
# minutes.

# %% [markdown]
# ## The incidents
#
# A collection is a folder of windows with a manifest. Each window has a `label.json` with the cause that
# was found. `split` names the part: test windows are never learned from, so that they can judge. The
# service writes such a folder from feedback (`rca feedback export`).

# %%
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

root = Path(__file__).resolve().parents[1] if "__file__" in globals() else Path.cwd().parent
work = TemporaryDirectory()
mine = Path(work.name, "my-incidents")
parts = {
    "slow-dataset": "train",
    "cpu-contention-node": "train",
    "nic-rate-limited": "train",
    "killed-rank": "test",
    "garbage-collection": "test",
    "healthy": "test",
}
for name in parts:
    shutil.copytree(root / "data" / "windows" / name, mine / name)
entries = [{"id": name, "path": name, "split": part} for name, part in parts.items()]
(mine / "manifest.json").write_text(json.dumps({"format": 1, "windows": entries}))
label = json.loads((mine / "slow-dataset" / "label.json").read_text())
print(label["failure_mode"], [(each["cause"], each["ranks"]) for each in label["causes"]])

# %% [markdown]
# ## The training
#
# The same as `rca train --windows 200 --collection my-incidents`. A model for use has 96,000 simulated
# windows beside the incidents, which takes an hour.

# %%
from rca.lab.training.run import train

store = f"sqlite:///{Path(work.name, 'mlflow.db')}"
trained = train(Path(work.name, "candidate"), n_windows=200, seed=3, collections=[mine], tracking_uri=store)
accuracy = trained.real_scores["my-incidents"]["failure_mode_accuracy"]
print(f"version {trained.version} is the challenger")
print(f"right failure mode on {accuracy['value']:.0%} of {accuracy['n']:.0f} own test windows")

# %% [markdown]
# ## The gate
#
# Champion and challenger answer the same windows: simulated scenarios that no training uses, and your own
# test windows. Nothing is promoted that is worse on either. Without a champion the shipped model has to be
# matched. `rca models promote` asks 2,000 scenarios. Here they are 16.

# %%
from rca.lab.training.promotion import promote
from rca.lab.training.registry import Registry

registry = Registry(store)
result = promote(registry, collections=[mine], n_windows=16)
print(f"version {result.version} is {result.verdict.outcome} than the shipped model")
print("promoted" if result.promoted else "not promoted, the shipped model stays in use")
for reason in result.verdict.reasons:
    print(f"- {reason}")

# %% [markdown]
# The same as a picture: left of the line the challenger is worse. An interval that crosses the line shows
# no difference.

# %%
import matplotlib.pyplot as plt

from rca.lab.evaluation.summary import LOWER_IS_BETTER

scores = [check for check in result.verdict.checks if check.name != "latency"]
colours = {"worse": "tab:red", "as good": "0.5", "better": "tab:green"}
figure, axes = plt.subplots(figsize=(7, 0.35 * len(scores) + 1), layout="constrained")
for row, check in enumerate(scores):
    sign = -1 if check.name in LOWER_IS_BETTER else 1
    ends = sorted((sign * check.difference.low, sign * check.difference.high))
    axes.plot(ends, [row, row], color=colours[check.finding], linewidth=2)
    axes.plot(sign * check.difference.value, row, "o", color=colours[check.finding])
axes.axvline(0, color="black", linewidth=1)
axes.set(yticks=range(len(scores)), yticklabels=[f"{check.source}: {check.name}" for check in scores])
axes.invert_yaxis()
_ = axes.set_xlabel("gain of the challenger, with its 95 % interval")

# %% [markdown]
# ## What MLflow has
#
# A run is named after what it learned from. After the gate its description says how it compares. For a store
# of your own, `mlflow ui --backend-store-uri URL` shows this in a browser.

# %%
client = registry.client()
experiments = [each.experiment_id for each in client.search_experiments()]
for run in client.search_runs(experiments):
    print(f"{run.info.run_name}\n  {run.data.tags['mlflow.note.content'][:200]}")

# %% [markdown]
# ## What to do about it
#
# - Train with more simulated windows: without `--windows` they are 96,000. The incidents add to them.
# - Collect more incidents before you judge: the test part needs windows of each cause that matters to you.
# - `rca models promote --force REASON` promotes against the verdict, and keeps the reason.
# - `rca models rollback` undoes a promotion.

# %%
for version in registry.versions():
    aliases = ", ".join(version.aliases) or "no alias"
    print(f"version {version.number} ({aliases}): {version.tags['gate.outcome']} than the shipped model")
work.cleanup()
