"""MLX-LM's configuration files. Needs no framework: only PyYAML, which comes with MLX-LM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from swarm.core.errors import UsageError
from swarm.core.finetune import Places, from_config

MAX_BYTES = 64 << 10
MAX_DEPTH = 50  # of brackets: PyYAML takes time by the square of it
FLOAT = re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$")  # YAML 1.1 takes 1e-5 for a text, MLX-LM for a number


def read_config(path: Path) -> tuple[dict[str, Any], Places]:
    """(values for FineTune, places) of the file that `mlx_lm.lora -c` would take. Raises UsageError."""
    try:
        import yaml
    except ImportError as error:
        raise UsageError(f"{path}: to read it, PyYAML must be installed; it comes with swarm's extra mlx-lm") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # never the others, which make any object
        def fetch_flow_collection_start(self, token: Any) -> None:
            if self.flow_level >= MAX_DEPTH:
                raise ValueError("nested too deeply")
            super().fetch_flow_collection_start(token)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789"))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{path}: more than {MAX_BYTES} bytes are no configuration")
        config = yaml.load(data, Loader)  # a subclass of the safe one
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UsageError:
        raise
    except Exception as error:  # PyYAML's own errors, and whatever its constructors run into
        raise UsageError(f"{path}: no YAML: {' '.join(str(error).split()):.200}") from error
    if config is None:
        config = {}
    if not isinstance(config, dict):
        raise UsageError(f"{path}: a configuration has keys and values")
    try:
        return from_config(config)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
