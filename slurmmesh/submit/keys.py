"""The options of submit that settings files and variables may give defaults for."""

from __future__ import annotations

from collections.abc import Callable

from slurmmesh.config import SubmitKey, SubmitKeys
from slurmmesh.errors import UsageError
from slurmmesh.slurm.container.image import RUNTIMES
from slurmmesh.slurm.options import OPTIONS, Option
from slurmmesh.slurm.passthrough import directive_of
from slurmmesh.slurm.quoting import directive_value


def submit_keys() -> SubmitKeys:
    """What may stand in ``[submit]``, by the fields of ``SlurmJob`` and ``Request``."""
    return {**{name: _of_sbatch(option) for name, option in OPTIONS.items()}, **_OURS}


def _of_sbatch(option: Option) -> SubmitKey:
    def check(text: str) -> None:
        directive_value(text, f"--{option.name}")
        option.check(text)

    if option.field == "chdir":
        return SubmitKey("path", check)
    if option.value_optional:
        return SubmitKey("optional", check)
    return SubmitKey("text" if option.metavar else "flag", check)


def _one_of(*words: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in words:
            raise UsageError(f"{text!r} is none of {', '.join(words)}")

    return check


_OURS: SubmitKeys = {
    "spares": SubmitKey("number"),
    "template": SubmitKey("template"),
    "setup": SubmitKey("list"),
    "env": SubmitKey("table"),
    "container": SubmitKey("text"),
    "container_runtime": SubmitKey("text", _one_of(*RUNTIMES)),
    "sbatch": SubmitKey("list", directive_of),
    "cluster": SubmitKey("text", _one_of("auto", "slurm", "local")),
    "wait": SubmitKey("flag"),
    "follow": SubmitKey("flag"),
}
