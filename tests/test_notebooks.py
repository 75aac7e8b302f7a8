import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
#: `tests/training/test_retraining_notebook.py` runs the one that trains.
NOTEBOOKS = sorted(path for path in FOLDER.glob("*.py") if path.stem != "retraining")


@pytest.mark.system
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
