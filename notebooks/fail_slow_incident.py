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
# # A fail-slow incident, from the window to the confirmation
#
# CPU hogs ran on one node of a real job. The steps below are those of an on-call engineer. Open this notebook
# with Jupytext, or run it with `python`. A cell that ends with `diagnosis` shows its page with pictures.

# %%
from pathlib import Path

import rca

root = Path(__file__).resolve().parents[1] if "__file__" in globals() else Path.cwd().parent
window = rca.read_window(root / "data" / "windows" / "cpu-contention-node")
diagnosis = rca.diagnose(window)

# %% [markdown]
# ## Who, since when, how sure

# %%
from rca.runbook.phrases import plain
from rca.runbook.summary import Summary

summary = Summary.from_diagnosis(diagnosis)
print(plain(summary.headline))
for title, lines in summary.rows:
    for line in lines:
        print(f"{title:10s}{plain(line)}")

# %% [markdown]
# ## What to do, and when it pays off
#
# Costs of the site change the order. Here a restart takes four minutes, and 20,000 steps are left.

# %%
plan = rca.plan(diagnosis, window, site=rca.Site(restart_seconds=240, steps_left=20_000))
for option in plan.options:
    saved = option.seconds_per_step_saved
    gain = "an unknown time" if saved is None else f"{saved * 1e3:.1f} ms"
    print(f"{option.action:28s} saves {gain} per step, costs {option.one_off_seconds:,.0f} s once")

# %% [markdown]
# ## The runbook, filled with this incident

# %%
from rca.runbook.procedures import DiagnosedCause, Library, runbook
from rca.runbook.procedures.pages import text

cause = diagnosis.causes[0].cause
incident = DiagnosedCause.of(diagnosis, cause, window.job)
print(text(runbook(Library.read(), cause, platform="slurm", incident=incident)))

# %% [markdown]
# ## Did it help?
#
# The same job without the hogs. A service does this by itself once an action is recorded
# (`POST /v1/incidents/{id}/actions`).

# %%
after = rca.diagnose(rca.read_window(root / "data" / "windows" / "healthy"))
print(after.verdict, f"{after.slowdown.ratio:.2f}x of the ideal step")
