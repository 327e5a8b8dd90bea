"""What a notebook or a prompt keeps of earlier results."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from gpuheap._frameworks.step import NotApplicable, Step

__all__ = ["steps"]

_RESULTS = ("_", "__", "___")


def _shell() -> Any | None:
    ipython = sys.modules.get("IPython")
    find = getattr(ipython, "get_ipython", None)
    return None if find is None else find()


def _forget(shell: Any) -> int:
    names: dict[str, Any] = shell.user_ns
    hook = getattr(shell, "displayhook", None)
    forgotten = 0
    for table in ("Out", "_oh"):
        outputs = names.get(table)
        if type(outputs) is dict:
            forgotten += len(outputs)
            outputs.clear()
    for name in list(names):
        if type(name) is str and len(name) > 1 and name[0] == "_" and name[1:].isdigit():
            del names[name]
    for name in _RESULTS:
        # A variable of that name that the program made itself (`for _ in …`) is not what the notebook keeps.
        if hook is not None and hasattr(hook, name):
            if name in names and names[name] is getattr(hook, name):
                names[name] = ""
            setattr(hook, name, "")
    return forgotten


def steps() -> list[Step]:
    """On request: `Out`, `_`, `__`, `___` and `_1`, `_2`, …. Inputs (`_i`, `In`) are text and stay."""

    def outputs() -> str:
        shell = _shell()
        if shell is not None:
            return f"{_forget(shell)} outputs"
        names = builtins.__dict__
        if "_" in names and not callable(names["_"]):
            # Python's own prompt. A callable there is gettext's.
            del names["_"]
            return "the prompt's last result"
        raise NotApplicable("no notebook and no prompt")

    return [Step("outputs of the notebook", outputs)]
