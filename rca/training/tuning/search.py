"""One search: trials by a seeded sampler, kept in a study that a later run goes on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rca.errors import MissingExtra
from rca.training.heads import PARAMETERS
from rca.training.settings import TUNABLE, Bounds

Values = dict[str, float]

#: A search that begins with what is used today can only end with something at least as good on its folds.
PRESENT: Values = {name: PARAMETERS[name] for name in TUNABLE}
#: Trials drawn at random before the sampler makes use of what it has seen.
STARTUP_TRIALS = 5
#: Numbers from which the samplers of one seed are told apart.
_SEEDS = 2**31


def import_optuna() -> Any:
    """Optuna, told to keep its remarks to itself.

    Raises
    ------
    MissingExtra
        If it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("tuning needs Optuna", hint="pip install 'straggler-rca[train]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@dataclass(frozen=True)
class Search:
    """A study in a file, of any number that the file holds.

    Attributes
    ----------
    file : Path
        SQLite database; made when it is not there.
    name : str
        Of the study; has to say what the losses follow from, as another run with the same name goes on.
    seed : int
    """

    file: Path
    name: str
    seed: int

    def run(self, loss: Callable[[Values], float], n_trials: int) -> Values:
        """The best settings of `n_trials`, the present ones first; finished trials are not run again.

        Every trial has a sampler of its own, seeded by its number, so that a search that was stopped comes to
        the same end as one that was not.
        """
        optuna = import_optuna()
        study = self._study(optuna)
        space = {name: _distribution(optuna, bounds) for name, bounds in TUNABLE.items()}
        for cut_off in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            # Of a run that was stopped: the sampler would go on to keep away from it.
            study.tell(cut_off.number, state=optuna.trial.TrialState.FAIL)
        if not self._finished(optuna, study):
            known = optuna.trial.create_trial(params=PRESENT, distributions=space, value=loss(PRESENT))
            study.add_trial(known)
        while (done := self._finished(optuna, study)) < n_trials:
            study.sampler = optuna.samplers.TPESampler(
                seed=(self.seed + done) % _SEEDS, n_startup_trials=STARTUP_TRIALS
            )
            trial = study.ask(space)
            study.tell(trial, loss(trial.params))
        best: Values = study.best_trial.params
        return best

    def known(self, fact: str) -> Any:
        """What was kept beside the trials; None if nothing was."""
        return self._study(import_optuna()).user_attrs.get(fact)

    def keep(self, fact: str, value: Any) -> None:
        """Keep plain data beside the trials."""
        self._study(import_optuna()).set_user_attr(fact, value)

    def _study(self, optuna: Any) -> Any:
        storage = _storage(str(self.file.resolve()))
        return optuna.create_study(storage=storage, study_name=self.name, load_if_exists=True)

    @staticmethod
    def _finished(optuna: Any, study: Any) -> int:
        return len(study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)))


@cache
def _storage(file: str) -> Any:
    """One per file and process: opening a database checks its whole schema."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    return import_optuna().storages.RDBStorage(f"sqlite:///{file}")


def _distribution(optuna: Any, bounds: Bounds) -> Any:
    if bounds.whole:
        return optuna.distributions.IntDistribution(int(bounds.low), int(bounds.high), log=bounds.decades)
    return optuna.distributions.FloatDistribution(bounds.low, bounds.high, log=bounds.decades)
