"""Continue from the trees of an earlier bundle instead of learning everything again.

The trees of an earlier bundle may know many more windows than a new training has. New trees are added to
them by boosting on the new windows (LightGBM's ``init_model``). Where the earlier bundle lacks a feature, its
trees do not split on it. Where it lacks a class, its score of that class is 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rca.arrays import IntArray
from rca.diagnosis.bundle import Bundle
from rca.errors import InvalidInput

#: A tree that adds nothing, as LightGBM writes one without a split.
_NO_TREE = (
    "num_leaves=1\nnum_cat=0\nsplit_feature=\nsplit_gain=\nthreshold=\ndecision_type=\nleft_child=\n"
    "right_child=\nleaf_value=0\nleaf_weight=\nleaf_count=\ninternal_value=\ninternal_weight=\n"
    "internal_count=\nis_linear=0\nshrinkage=1\n\n\n"
)


@dataclass(frozen=True)
class EarlierTrees:
    """The heads of a bundle to continue from.

    Attributes
    ----------
    sha256 : str
        Of the bundle.
    texts : dict of str to str
        LightGBM text per head.
    columns : dict of str to ndarray of int
        Per head the column of the feature table that each of its inputs is.
    """

    sha256: str
    texts: Mapping[str, str]
    columns: Mapping[str, IntArray]
    classes: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, folder: Path) -> EarlierTrees:
        """Read a bundle folder.

        Raises
        ------
        BundleError
            If it is no bundle, or its features are not computed any more.
        """
        bundle = Bundle.load(folder)
        heads = bundle.classifier.heads
        return cls(
            sha256=bundle.model.sha256,
            texts={name: head.booster.text for name, head in heads.items()},
            columns={name: head.columns for name, head in heads.items()},
            classes={name: head.classes for name, head in heads.items()},
        )

    def booster(self, head: str, n_features: int, classes: tuple[str, ...]) -> Any:
        """LightGBM booster of a head over the current features and classes.

        Parameters
        ----------
        n_features : int
            Of the current feature table.
        classes : tuple of str
            Current classes of the head, in their order.

        Raises
        ------
        InvalidInput
            If the earlier bundle has a class that the head no longer has.
        """
        import lightgbm

        lost = sorted(set(self.classes[head]) - set(classes))
        if lost:
            raise InvalidInput(
                f"head {head}: the earlier bundle has classes that the catalogue lacks: {', '.join(lost)}",
                hint="train without --continue-from",
            )
        text = with_columns(self.texts[head], self.columns[head], n_features)
        if self.classes[head] != classes:
            text = with_classes(text, [classes.index(name) for name in self.classes[head]], len(classes))
        return lightgbm.Booster(model_str=text)


def with_columns(text: str, columns: IntArray, n_features: int) -> str:
    """The LightGBM text with its inputs at other columns of a wider table.

    Parameters
    ----------
    columns : ndarray of shape (n_inputs,), int
        Column of each input of the model.
    n_features : int
        Columns of the table.
    """

    def moved(found: re.Match[str]) -> str:
        return "split_feature=" + " ".join(str(int(columns[int(number)])) for number in found[1].split())

    text = re.sub(r"^split_feature=(.*)$", moved, text, flags=re.MULTILINE)
    (ranges,) = re.findall(r"^feature_infos=(.*)$", text, flags=re.MULTILINE)
    infos = ["none"] * n_features
    for column, info in zip(columns, ranges.split(), strict=True):
        infos[int(column)] = info
    header = {
        "max_feature_idx": str(n_features - 1),
        "feature_names": " ".join(f"Column_{number}" for number in range(n_features)),
        "feature_infos": " ".join(infos),
    }
    return _with_header(text, header)


def with_classes(text: str, places: list[int], n_classes: int) -> str:
    """The LightGBM text of a model of several classes with more classes, for which its score is 0.

    Parameters
    ----------
    places : list of int
        New place of each class of the model.
    """
    begin, end = text.index("Tree=0\n"), text.index("end of trees")
    trees = re.split(r"^Tree=\d+\n", text[begin:end], flags=re.MULTILINE)[1:]
    blocks: list[str] = []
    for first in range(0, len(trees), len(places)):
        of_round = dict(zip(places, trees[first : first + len(places)], strict=True))
        blocks += [of_round.get(place, _NO_TREE) for place in range(n_classes)]
    numbered = [f"Tree={number}\n{block}" for number, block in enumerate(blocks)]
    header = {
        "num_class": str(n_classes),
        "num_tree_per_iteration": str(n_classes),
        "objective": f"multiclass num_class:{n_classes}",
        "tree_sizes": " ".join(str(len(block.encode())) for block in numbered),
    }
    return _with_header(text[:begin] + "".join(numbered) + text[end:], header)


def _with_header(text: str, values: Mapping[str, str]) -> str:
    """The text with other values in its header; sizes of trees that do not fit any more are left out."""
    begin = text.index("Tree=0\n")
    header, rest = text[:begin], text[begin:]
    if "tree_sizes" not in values:
        # Without them LightGBM finds the trees by itself.
        header = re.sub(r"^tree_sizes=.*\n", "", header, flags=re.MULTILINE)
    for key, value in values.items():
        header = re.sub(rf"^{key}=.*$", f"{key}={value}", header, flags=re.MULTILINE)
    return header + rest
