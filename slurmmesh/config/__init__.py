"""Settings: from files, profiles and variables, each value with where it comes from.

``docs/settings.md`` tells users how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmmesh._doors import front_door

if TYPE_CHECKING:
    from slurmmesh.config.layers import Layer, Origin, Sourced, merge
    from slurmmesh.config.load import Loaded, load_layers, load_settings
    from slurmmesh.config.names import is_variable
    from slurmmesh.config.nearest import near
    from slurmmesh.config.options import SubmitKey, SubmitKeys
    from slurmmesh.config.settings import SETTINGS, Settings
    from slurmmesh.config.variables import NODE_FOLDER, NODE_FOLDERS, OF_A_JOB

__all__ = [
    "NODE_FOLDER",
    "NODE_FOLDERS",
    "OF_A_JOB",
    "SETTINGS",
    "Layer",
    "Loaded",
    "Origin",
    "Settings",
    "Sourced",
    "SubmitKey",
    "SubmitKeys",
    "is_variable",
    "load_layers",
    "load_settings",
    "merge",
    "near",
]

__getattr__, __dir__ = front_door(
    __name__,
    {
        "slurmmesh.config.layers": (
            "Layer",
            "Origin",
            "Sourced",
            "merge",
        ),
        "slurmmesh.config.load": (
            "Loaded",
            "load_layers",
            "load_settings",
        ),
        "slurmmesh.config.names": ("is_variable",),
        "slurmmesh.config.nearest": ("near",),
        "slurmmesh.config.options": (
            "SubmitKey",
            "SubmitKeys",
        ),
        "slurmmesh.config.settings": (
            "SETTINGS",
            "Settings",
        ),
        "slurmmesh.config.variables": (
            "NODE_FOLDER",
            "NODE_FOLDERS",
            "OF_A_JOB",
        ),
    },
)
