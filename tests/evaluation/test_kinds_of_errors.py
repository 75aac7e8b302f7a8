"""Every wrong answer is of one kind, and a right one of none."""

from __future__ import annotations

from judged import HEALTHY, SILENT, row, slow_answer, slow_label

from rca.lab.evaluation.answer import MethodAnswer, NamedCause
from rca.lab.evaluation.error_kinds import KINDS, kind_of_error
from rca.lab.evaluation.tables import errors_table
from rca.sources.labels import WindowLabel
from tests.for_each import for_each

ONE = slow_label(ranks=(5, 6))
TWO = WindowLabel.model_validate(
    {
        "failure_mode": "fail_slow",
        "causes": [{"cause": "gpu_throttling", "ranks": [6]}, {"cause": "cpu_contention", "ranks": [2]}],
    }
)
APART = MethodAnswer(
    "fail_slow",
    frozenset((5, 6)),
    tuple(NamedCause("gpu_throttling", frozenset((rank,))) for rank in (5, 6)),
)


@for_each(
    ("answer", "label", "kind"),
    [
        (SILENT, HEALTHY, "right"),
        (slow_answer(ranks=(5, 6)), ONE, "right"),
        (slow_answer(), HEALTHY, "false alarm"),
        (SILENT, ONE, "missed"),
        (MethodAnswer("healthy", abstained=True), ONE, "left open"),
        (MethodAnswer("fail_stop", frozenset((5, 6))), ONE, "other failure mode"),
        (MethodAnswer("fail_slow"), ONE, "no ranks named"),
        (slow_answer(ranks=(6,)), TWO, "one of several"),
        (slow_answer(ranks=(4, 5, 6)), ONE, "too many ranks"),
        (slow_answer(ranks=(5,)), ONE, "too few ranks"),
        (slow_answer(ranks=(4, 5)), ONE, "some other ranks"),
        (slow_answer(ranks=(1,)), ONE, "only other ranks"),
        (slow_answer("gpu_contention", ranks=(5, 6)), ONE, "other cause"),
        (APART, ONE, "divided otherwise"),
    ],
)
def test_the_first_thing_that_is_wrong_names_the_kind(
    answer: MethodAnswer, label: WindowLabel, kind: str
) -> None:
    assert kind in KINDS
    assert kind_of_error(answer, label) == kind


def test_what_is_not_judged_has_no_kind() -> None:
    unfelt = WindowLabel.model_validate(
        {"failure_mode": "healthy", "injected": [{"cause": "gpu_throttling"}]}
    )
    assert kind_of_error(slow_answer(), unfelt) == ""
    assert kind_of_error(MethodAnswer("fail_slow", aspects=frozenset({"ranks"})), ONE) == ""


def test_the_table_counts_kinds_in_order_and_leaves_out_what_does_not_occur() -> None:
    rows = [
        row(SILENT),
        row(MethodAnswer("healthy", abstained=True), ONE),
        row(slow_answer(ranks=(5, 6)), ONE),
    ]
    table = errors_table(rows)
    assert [(line[0], *line[2:]) for line in table.rows] == [
        ("right", "2", "0.667", "0"),
        ("left open", "1", "0.333", "1"),
    ]
