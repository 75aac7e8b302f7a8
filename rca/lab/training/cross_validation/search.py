"""Search of LightGBM's settings by Optuna; the present ones are the first trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rca.errors import MissingExtra
from rca.lab.training.heads import PARAMETERS
from rca.lab.training.settings import TUNABLE, Bounds

Values = dict[str, float]

#: The first trial of every search, so that a search ends no worse on its own folds.
PRESENT: Values = {name: PARAMETERS[name] for name in TUNABLE}
#: Random trials before the sampler uses the results.
STARTUP_TRIALS = 5


def search(loss: Callable[[Values], float], n_trials: int, seed: int) -> Values:
    """The best settings of `n_trials`; the present settings are the first trial."""
    optuna = import_optuna()
    space = {name: _distribution(optuna, bounds) for name, bounds in TUNABLE.items()}
    sampler = optuna.samplers.TPESampler(seed=seed % 2**31, n_startup_trials=STARTUP_TRIALS)
    study = optuna.create_study(sampler=sampler)
    study.add_trial(optuna.trial.create_trial(params=PRESENT, distributions=space, value=loss(PRESENT)))
    for _ in range(n_trials - 1):
        trial = study.ask(space)
        study.tell(trial, loss(trial.params))
    best: Values = study.best_trial.params
    return best


def import_optuna() -> Any:
    """Optuna, without its log messages.

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


def _distribution(optuna: Any, bounds: Bounds) -> Any:
    if bounds.whole:
        return optuna.distributions.IntDistribution(int(bounds.low), int(bounds.high), log=bounds.decades)
    return optuna.distributions.FloatDistribution(bounds.low, bounds.high, log=bounds.decades)
