"""Checks shell commands against the options of their programs, by the programs' manuals.

Sources: kubectl 1.32 `--help`; the manuals of Slurm 22.05, ethtool 6.1, iproute2 6.1 (tc, ip, rdma),
infiniband-diags 44, perftest 4.5, sysstat 12.6, util-linux 2.38, procps 4.0, pciutils 3.9,
smartmontools 7.3, nfs-utils 2.6, ipmitool 1.8 and chrony 4.3; `nvidia-smi -h` of driver 535 and
nvidia-smi(1); DCGM's reference of `dcgmi`; py-spy's README.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from rca.cli import app
from rca.commands import COMMANDS

#: Program, with its sub-commands: options; those that end in "=" take a value.
OPTIONS = {
    "awk": "",
    "cat": "",
    "chronyc tracking": "",
    "dcgmi diag": "-r= --run= -i= --entity-id= --group= -v --verbose -j --json --host=",
    "df": "-h",
    "dmesg": "-T --ctime -l= --level= --since=",
    "ethtool": "-S= --statistics= -r= --negotiate= -i= -a= -m=",
    "grep": "-i -E -r -v -H",
    "head": "-n=",
    "ib_write_bw": "-d= --ib-dev= -p= -i= -s= -a -n=",
    "ibqueryerrors": "-s= -c --suppress-common -r --report-port --data --switch --ca --details -G=",
    "ibstat": "-l -s -p",
    "ionice": "-c= -n= -p= -t",
    "iostat": "-c -d -h -k -m -N -s -t -x -y -z",
    "ip link show": "-brief -br -s",
    "ipmitool sdr type": "",
    "kill": "-9",
    "kubectl cordon": "--dry-run= -l=",
    "kubectl uncordon": "--dry-run= -l=",
    "kubectl debug": "-i -t -q --quiet --profile= --image= -c=",
    "kubectl delete pod": "-n= --namespace= --force --grace-period= --wait",
    "kubectl describe pod": "-n= --namespace=",
    "kubectl exec": "-n= --namespace= -c= -i -t -q",
    "kubectl get pods": "-A --all-namespaces -n= --namespace= -o= --output= --field-selector= --sort-by= -l=",
    "kubectl logs": "-n= --namespace= -c= -p --previous --since= --tail= --timestamps -f",
    "kubectl patch job": "-n= --namespace= -p= --patch= --type=",
    "lspci": "-v -vv -s= -t",
    "ls": "-l -t",
    "nfsiostat": "-a -d -h -l= -p -s",
    "nproc": "",
    "nvidia-smi": (
        "-q -i= -d= -L --query-gpu= --query-compute-apps= --format= -l= -pl= --power-limit= -lgc= -rgc -c= "
        "-r --gpu-reset -pm="
    ),
    "nvidia-smi dmon": "-i= -d= -c= -s= -o=",
    "nvidia-smi nvlink": "-h -i= -l= -s -e -c",
    "nvidia-smi pmon": "-i= -d= -c= -s= -o=",
    "pgrep": "-a -f -l",
    "pidstat": "-u -r -d -C= -p= -t -h",
    "ps": "-e -o= -p= --sort=",
    "py-spy dump": "--pid= -p= --native --locals -l -j --json -n -s --subprocesses",
    "rdma statistic show link": "",
    "renice": "-n= -p= -g= -u=",
    "sacct": "-j= --jobs= -o= --format= -P -X",
    "scancel": "-s= --signal= -f --full -b --batch",
    "scontrol cancel_reboot": "",
    "scontrol reboot": "",
    "scontrol release": "",
    "scontrol requeue": "",
    "scontrol requeuehold": "",
    "scontrol show": "",
    "scontrol update": "",
    "sed": "-i -e= -E -n",
    "smartctl": "-a --all -x -H -i -A",
    "squeue": "-w= --nodelist= -j= --jobs= -t= --states= -o= --format= --sort= -u=",
    "srun": "--jobid= --overlap -w= --nodelist= -n= --ntasks= -N= --nodes=",
    "ssh": "",
    "systemctl reboot": "",
    "systemctl status": "--no-pager",
    "tail": "-n=",
    "tc qdisc show": "",
    "tc qdisc del": "",
    "tc qdisc add": "",
    "vmstat": "-a -d -s -w",
}
#: Options before the sub-command.
BEFORE = {"tc": {"-s"}, "ip": {"-brief", "-br", "-s"}}
#: Options that are written as a number of lines, such as `tail -20`.
COUNTED = {"head", "tail"}
#: Single letters that may be joined, such as `-it` and `-eo`.
JOINED = {"kubectl debug", "kubectl exec", "dmesg", "grep", "ps", "ls"}


def _words(text: str) -> set[str]:
    return set(text.split())


NVIDIA_GPU = _words(
    "index uuid pci.bus_id utilization.gpu clocks.sm clocks.max.sm temperature.gpu power.draw power.limit "
    "pcie.link.gen.current pcie.link.gen.max pcie.link.width.current pcie.link.width.max "
    "ecc.errors.uncorrected.volatile.total"
)
NVIDIA_DISPLAY = _words(
    "MEMORY UTILIZATION ECC TEMPERATURE POWER CLOCK COMPUTE PIDS PERFORMANCE SUPPORTED_CLOCKS "
    "PAGE_RETIREMENT ACCOUNTING ENCODER_STATS SUPPORTED_GPU_TARGET_TEMP VOLTAGE FBC_STATS "
    "ROW_REMAPPER RESET_STATUS"
)
#: Values of an option, joined by commas.
VALUES = {
    ("nvidia-smi", "-d"): NVIDIA_DISPLAY,
    ("nvidia-smi", "--query-gpu"): NVIDIA_GPU,
    ("nvidia-smi", "--format"): {"csv", "noheader", "nounits"},
    ("nvidia-smi", "-c"): {"DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED"},
    ("kubectl debug", "--profile"): {"legacy", "general", "baseline", "netadmin", "restricted", "sysadmin"},
    ("kubectl get pods", "--output"): {"wide", "json", "yaml", "name"},
    ("kubectl patch job", "--type"): {"json", "merge", "strategic"},
    ("sacct", "--format"): {"JobID", "State", "ExitCode", "DerivedExitCode", "NodeList", "MaxRSS", "Elapsed"},
    ("scancel", "--signal"): {"TERM", "KILL", "INT", "USR1"},
    ("squeue", "--states"): {"RUNNING", "PENDING", "all"},
    ("ps", "-o"): _words("pid ppid user lstart etime stat wchan:32 rss comm cmd"),
    ("ps", "--sort"): {"-rss", "rss", "-pcpu"},
    ("dmesg", "--level"): _words("emerg alert crit err warn notice info debug"),
    ("dcgmi diag", "--run"): {"1", "2", "3", "4"},
    ("ionice", "-c"): {"0", "1", "2", "3"},
}
#: What may stand before "=" in arguments of scontrol.
SCONTROL_KEYS = {
    "update": {"NodeName", "State", "Reason", "JobId", "Switches", "ExcNodeList"},
    "reboot": {"nextstate", "reason"},
}
SCONTROL_STATES = {"DRAIN", "RESUME", "DOWN", "UNDRAIN", "CANCEL_REBOOT"}
_SEPARATORS = {"|", "&&", "||", ";"}


class WrongCommandError(Exception):
    """A command that its program refuses."""


def check(command: str) -> None:
    """Check one command line.

    Raises
    ------
    WrongCommandError
        With the program and what is wrong.
    """
    for words in _simple_commands(command):
        _check_words(words)


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a pipeline or list."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError as error:
        raise WrongCommandError(f"{line}: {error}") from None
    for token in [*tokens, ";"]:
        if token in _SEPARATORS:
            if not words:
                raise WrongCommandError(f"{line}: nothing before {token}")
            yield words
            words = []
        else:
            words.append(token)


def _check_words(words: list[str]) -> None:
    program = words[0]
    if program == "rca":
        _check_rca(words[1:])
    elif program == "ssh":
        _check_inner(words[2:], words)
    elif program == "chroot":
        _check_words(words[2:])
    elif program == "sh":
        if words[1:2] != ["-c"] or len(words) != 3:
            raise WrongCommandError(f"{words}: sh -c needs one word")
        check(words[2])
    else:
        _check_program(words)


def _check_program(words: list[str]) -> None:
    program = words[0]
    lead = [word for word in words[1:2] if word in BEFORE.get(program, ())]
    rest = words[1 + len(lead) :]
    name = _name(program, rest)
    arguments = rest[len(name.split()) - 1 :]
    inner: list[str] = []
    if name in ("kubectl debug", "kubectl exec"):
        if "--" not in arguments:
            raise WrongCommandError(f"{name} needs -- and a command")
        at = arguments.index("--")
        arguments, inner = arguments[:at], arguments[at + 1 :]
    positional = _check_options(name, arguments)
    if name == "srun":
        inner = positional
    if inner:
        _check_words(inner)
    if program == "scontrol":
        _check_scontrol(name, positional)


def _name(program: str, rest: list[str]) -> str:
    """The program with as many sub-commands as are known."""
    for length in range(min(4, len(rest)), -1, -1):
        name = " ".join((program, *rest[:length]))
        if name in OPTIONS:
            return name
    raise WrongCommandError(f"{' '.join((program, *rest))}: unknown program or sub-command")


def _check_inner(inner: list[str], words: list[str]) -> None:
    if not inner:
        raise WrongCommandError(f"{words}: no command")
    # A remote shell splits the words again.
    check(inner[0] if len(inner) == 1 else " ".join(inner))


def _check_options(name: str, arguments: list[str]) -> list[str]:
    """Check the options; gives the other arguments."""
    known = OPTIONS[name].split()
    flags = {word for word in known if not word.endswith("=")}
    valued = {word[:-1] for word in known if word.endswith("=")}
    program = name.split()[0]
    positional: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if name == "srun" and positional:
            positional += [word, *rest]
            break
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        option, given, value = word.partition("=")
        if program in COUNTED and re.fullmatch(r"-\d+", word):
            continue
        if given and option in valued and option.startswith("--"):
            _check_value(name, option, value)
        elif word in flags:
            continue
        elif word in valued:
            if not rest:
                raise WrongCommandError(f"{name}: {word} needs a value")
            _check_value(name, word, rest.pop(0))
        elif name in JOINED and not word.startswith("--"):
            rest = _check_joined(name, word, flags, valued, rest)
        else:
            raise WrongCommandError(f"{name}: no option {word}")
    return positional


def _check_joined(name: str, word: str, flags: set[str], valued: set[str], rest: list[str]) -> list[str]:
    """Options of one letter in one word, of which the last may take a value."""
    *first, last = (f"-{letter}" for letter in word[1:])
    for option in first:
        if option not in flags:
            raise WrongCommandError(f"{name}: no option {option} in {word}")
    if last in valued and rest:
        _check_value(name, last, rest[0])
        return rest[1:]
    if last not in flags:
        raise WrongCommandError(f"{name}: no option {last} in {word}")
    return rest


def _check_value(name: str, option: str, value: str) -> None:
    if not value:
        raise WrongCommandError(f"{name}: {option} has no value")
    allowed = VALUES.get((name, option))
    wrong = [] if allowed is None else [each for each in value.split(",") if each not in allowed]
    if wrong:
        raise WrongCommandError(f"{name}: {option} has no {wrong[0]}")


def _check_scontrol(name: str, positional: list[str]) -> None:
    verb = name.split()[1]
    for word in positional:
        key, given, value = word.partition("=")
        if given and key not in SCONTROL_KEYS.get(verb, set()):
            raise WrongCommandError(f"{name}: no {key}")
        if given and key == "State" and value not in SCONTROL_STATES:
            raise WrongCommandError(f"{name}: no state {value}")


def _check_rca(words: list[str]) -> None:
    if not words or words[0] not in COMMANDS:
        raise WrongCommandError(f"rca has no command {words[:1]}")
    wrong = [
        word for word in words[1:] if word.startswith("-") and word.split("=")[0] not in _options(words[0])
    ]
    if wrong:
        raise WrongCommandError(f"rca: no option {wrong[0]}")


@cache
def _options(name: str) -> frozenset[str]:
    """The options of a command of this package without sub-commands."""
    root: Any = typer.main.get_command(app)
    command = root.get_command(root.context_class(root), name)
    return frozenset(option for parameter in command.params for option in parameter.opts)
