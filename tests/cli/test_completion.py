"""Shell completion, installed by `rca --install-completion` and executed by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rca.commands import completion
from rca.window.causes import SPECS

#: Sources what has been installed as a login does, and prints the offered words of three command lines.
BASH = """
source ~/.bashrc
offered() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _rca_completion rca
    echo "${COMPREPLY[*]}"
}
offered rca run
offered rca runbook gpu_t
offered rca runbook hang --platform k
"""
#: Without its completion system, zsh shows what it would offer.
ZSH = """
compdef() { : }
_arguments() { print -r -- "$@" }
source ~/.zfunc/_rca
words=(rca runbook gpu_t) CURRENT=3
_rca_completion
"""
FISH = """
source ~/.config/fish/completions/rca.fish
complete --do-complete 'rca runbook gpu_t'
"""


def installed_and_run(shell: str, script: str, home: Path) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = home / "bin" / "rca"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rca.cli "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"HOME": str(home), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    # fish has no such option; the home is empty anyway.
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": []}[shell]
    ran = subprocess.run(
        [shell, *plain, "-c", f"rca --install-completion{script}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stderr == ""
    assert f"{shell} completion installed in {home}" in ran.stdout
    return ran.stdout.splitlines()[2:]


@pytest.mark.system
@pytest.mark.smoke
def test_bash_completes_commands_arguments_and_values_of_options(tmp_path: Path) -> None:
    assert installed_and_run("bash", BASH, tmp_path) == ["runbook", "gpu_throttling", "kubernetes"]


@pytest.mark.long
def test_zsh_completes_a_cause_with_its_meaning(tmp_path: Path) -> None:
    offered = installed_and_run("zsh", ZSH, tmp_path)
    assert len(offered) == 1
    assert '"gpu_throttling":"the GPU runs below its normal clock' in offered[0]


@pytest.mark.long
def test_fish_completes_a_cause_with_its_meaning(tmp_path: Path) -> None:
    offered = installed_and_run("fish", FISH, tmp_path)
    assert [line.split("\t")[0] for line in offered] == ["gpu_throttling"]
    assert "clock" in offered[0]


def test_all_causes_are_offered_with_their_meaning() -> None:
    assert completion.causes("") == [(cause, spec.meaning) for cause, spec in SPECS.items()]
    assert [cause for cause, _ in completion.causes("nic")] == ["nic_degradation"]
    assert [cause for cause, _ in completion.healthy_or_causes("h")] == ["healthy", "hang"]
    assert completion.causes("gremlins") == []
