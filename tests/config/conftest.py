"""A user with a home, a site and a project, all in a folder of the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.config import Loaded, SubmitKey, SubmitKeys, load_layers
from slurmmesh.errors import UsageError


def _refuse_bad(text: str) -> None:
    if text == "bad":
        raise UsageError("--partition 'bad' is bad")


# Stands for the table of submit's options: one of each kind.
KEYS: SubmitKeys = {
    "partition": SubmitKey("text", _refuse_bad),
    "gpus_per_node": SubmitKey("text"),
    "spares": SubmitKey("number"),
    "chdir": SubmitKey("path"),
    "template": SubmitKey("template"),
    "wait": SubmitKey("flag"),
    "exclusive": SubmitKey("optional"),
    "setup": SubmitKey("list", _refuse_bad),
    "env": SubmitKey("table"),
}


@dataclass
class User:
    """Writes settings files where slurmmesh looks for them, and loads them."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = self.root / "home"
        self.folder = self.root / "code" / "project" / "sub"
        self.folder.mkdir(parents=True)
        self.home.mkdir()
        self.site_file = self.root / "site.toml"
        self.user_file = self.home / ".config" / "slurmmesh" / "config.toml"
        self.project_file = self.folder.parent / "slurmmesh.toml"
        self.config_file = self.root / "extra.toml"
        self.environ = {"HOME": str(self.home), "SLURMMESH_SITE_CONFIG": ""}

    def write(self, kind: str, text: str | bytes) -> Path:
        """One of the files: site, user, project, config."""
        path: Path = getattr(self, f"{kind}_file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if kind == "site":
            self.environ["SLURMMESH_SITE_CONFIG"] = str(path)
        return path

    def load(self, *, strict: bool = True, **options: Any) -> Loaded:
        keys = KEYS if strict else None
        return load_layers(self.environ, cwd=str(self.folder), submit_keys=keys, **options)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)
