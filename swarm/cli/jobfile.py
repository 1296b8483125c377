"""A whole job in a TOML file (`-c FILE`): its keys are the command's options without their dashes; what stands on the command
line wins."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from swarm.core.errors import UsageError
from swarm.core.plaintext import plain, shown

TABLES = ("options", "optimizer-options")
"""Keys that hold a table: options of the task, and of the framework's own optimizer."""
METHODS = ("diloco", "fedavg")
MAX_BYTES = 256 << 10
_META = "swarm.jobfile"
_NOT_THERE = ("config", "task_options", "optimizer_options", "as_json", "help")  # by the names of their parameters


def tables_of(name: str) -> dict[str, Any]:
    """The table of that name in the current command's job file; empty without one."""
    tables: dict[str, dict[str, Any]] = click.get_current_context().meta.get(_META, {})
    return tables.get(name, {})


def _load(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        file = _JobFile(value, ctx)
        ctx.default_map = {**(ctx.default_map or {}), **file.values}
        ctx.meta[_META] = file.tables


job_file_option = click.option(
    "-c",
    "--config",
    "config",
    metavar="FILE",
    is_eager=True,  # before the options whose defaults it gives
    expose_value=False,
    callback=_load,
    help="A TOML file with the job: these options without their dashes, and the task's own ones in a table [options].",
)


class _JobFile:
    def __init__(self, path: str, ctx: click.Context) -> None:
        """Raises UsageError that names the file, the place in it, and what may stand there."""
        self._path, self._ctx, self._method = path, ctx, str(ctx.info_name)
        self._text = _read(path)
        self._known = {
            max(p.opts, key=len).lstrip("-"): p
            for p in ctx.command.params
            if isinstance(p, click.Option) and p.name not in _NOT_THERE
        }
        self._tables = TABLES if any(p.name == "optimizer_options" for p in ctx.command.params) else TABLES[:1]
        self.values: dict[str, Any] = {}  # by names of parameters
        self.tables: dict[str, dict[str, Any]] = {}
        self._given: set[str] = set()
        try:
            document = tomllib.loads(self._text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of more digits than Python reads
            words = "nested too deeply" if isinstance(error, RecursionError) else plain(str(error), 300)
            raise UsageError(f"{path}: no TOML: {words}") from None
        self._take(document, "")

    def _take(self, table: Mapping[str, Any], inside: str) -> None:
        for written, value in table.items():
            key = written.replace("_", "-")
            if not inside and key == "method":
                self._is_for(value)
            elif not inside and key in METHODS and isinstance(value, dict):
                self._is_for(key)
                self._take(value, key)
            elif key in self._tables and isinstance(value, dict):
                self._once(key, written)
                self.tables[key] = {name: self._plain(name, each, f"[{key}]") for name, each in value.items()}
            elif key in self._known and not isinstance(value, dict):
                self._once(key, written)
                param = self._known[key]
                assert param.name is not None
                self.values[param.name] = self._checked(param, written, value)
            else:
                raise UsageError(f"{self._place(written)}: {self._unknown(written, key, value, inside)}")

    def _is_for(self, method: Any) -> None:
        if method != self._method:
            known = method in METHODS
            hint = f"`swarm start {method} -c {self._path}`" if known else f"there are {' and '.join(METHODS)}"
            which = plain(method) if isinstance(method, str) else shown(method)
            raise UsageError(f"{self._place('method')}: a job for {which}, not for {self._method}: {hint}")

    def _once(self, key: str, written: str) -> None:
        if key in self._given:
            raise UsageError(f"{self._place(written)}: {written} is given twice")
        self._given.add(key)

    def _plain(self, name: str, value: Any, where: str) -> Any:
        if not (isinstance(value, str | float | bool) or _is_int(value)):
            raise UsageError(f"{self._place(name)}: {where} {name} must be one value, got {shown(value, 40)}")
        return value

    def _checked(self, param: click.Option, key: str, value: Any) -> Any:
        kind = param.type
        if isinstance(kind, click.types.BoolParamType):
            ok, words = isinstance(value, bool), "true or false"
        elif isinstance(kind, click.types.IntParamType):
            ok, words = _is_int(value), "a whole number"
        elif isinstance(kind, click.types.FloatParamType):
            ok, words = _is_int(value) or type(value) is float, "a number"
        elif isinstance(kind, click.Choice):
            ok, words = isinstance(value, str), f"one of {', '.join(map(str, kind.choices))}"
        elif isinstance(kind, click.types.StringParamType):
            ok, words = isinstance(value, str), "a text"
        else:  # it says itself what it takes
            ok, words = _is_int(value) or isinstance(value, str), ""
        if not ok:
            raise UsageError(f"{self._place(key)}: {key} must be {words or 'one value'}, got {shown(value, 40)}")
        try:
            return kind.convert(value, param, self._ctx)
        except click.BadParameter as error:
            raise UsageError(f"{self._place(key)}: {key}: {error.message}") from None

    def _unknown(self, written: str, key: str, value: Any, inside: str) -> str:
        shown = plain(written, 40)
        if key in (*self._known, *TABLES):
            if key in TABLES and key not in self._tables:
                return f"[{shown}] is no table of a {self._method} job"
            return f"{shown} is {'one value, not a table' if isinstance(value, dict) else 'a table: [' + key + ']'}"
        every = [*self._known, *self._tables, *([] if inside else ["method", self._method])]
        close = difflib.get_close_matches(key, every, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"`swarm start {self._method} --help` lists what there is"
        return f"unknown key {shown!r}: {hint}"

    def _place(self, key: str) -> str:
        """The file, and the line where the key stands, if it can be found."""
        wanted = re.compile(rf"""\s*(?:\[\s*)?["']?{re.escape(key)}["']?\s*(?:[=\].])""")
        lines = [n for n, line in enumerate(self._text.splitlines(), 1) if wanted.match(line)]
        return f"{self._path}, line {lines[-1]}" if lines else self._path


def _is_int(value: Any) -> bool:
    """Whether it is a whole number, of a size that can be written down."""
    return type(value) is int and value.bit_length() < 64


def _read(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{path}: more than {MAX_BYTES} bytes are no job")
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: no TOML: it is not a text in UTF-8") from None
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
