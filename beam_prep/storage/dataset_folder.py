"""Folders that `datasets` wrote with `save_to_disk`: which files hold their rows, in order."""

import json
import os
from collections.abc import Callable
from typing import Any

from beam_prep.errors import InputError

STATE, SPLITS = "state.json", "dataset_dict.json"


def rows_files(folder: str, read: Callable[[str], bytes]) -> list[str]:
    """The names of the Arrow files of a folder that has a `state.json`, in the order of their rows.

    Args:
        folder: its path, for errors.
        read: reads a file of the folder by its name.

    Raises:
        InputError: rows are in another order than that of the files, or there are none; or it cannot be read.
    """
    state = _parsed(folder, STATE, read)
    # A view of the rows (a selection, an order) lies in a file of its own, which earlier versions of datasets wrote.
    if any(value for name, value in state.items() if "indices" in name):
        raise InputError(
            f"{folder!r} is a dataset whose rows are selected or ordered by a file of indices: load it with datasets, "
            "and save it again: dataset.flatten_indices().save_to_disk(...)"
        )
    try:
        names = [each["filename"] for each in state["_data_files"]]
        good = all(name == os.path.basename(name) and name.endswith(".arrow") for name in names)
    except (KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise InputError(f"{folder}/{STATE} does not name the dataset's .arrow files: save it again with datasets")
    if not names:
        raise InputError(f"{folder!r} is a dataset without rows: leave it out")
    return names


def splits_problem(folder: str, read: Callable[[str], bytes]) -> InputError:
    """The error of a folder that has a `dataset_dict.json`: it holds several datasets."""
    splits = _parsed(folder, SPLITS, read).get("splits")
    names = [str(name) for name in splits] if isinstance(splits, list) else []
    one = f"{folder.rstrip('/')}/{names[0] if names else 'train'}"
    return InputError(f"{folder!r} is a dataset with the splits {', '.join(names)}: name one, for instance {one!r}")


def _parsed(folder: str, name: str, read: Callable[[str], bytes]) -> dict[str, Any]:
    try:
        found = json.loads(read(name))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/{name} cannot be read ({error}): save the dataset again with datasets") from None
    if not isinstance(found, dict):
        raise InputError(f"{folder}/{name} is no JSON object: save the dataset again with datasets")
    return found
