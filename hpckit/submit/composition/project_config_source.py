"""Hydra's access to the config tree of a project, whose files may have the spellings of earlier
releases. Only modules that compose a config import this one, as it imports Hydra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from hpckit.config import renamed_keys
from hpckit.config.config_trees import group_folders
from hpckit.config.spec_error import SpecError

_GLOBAL = "_global_"


class ProjectConfigSource(FileConfigSource):
    """Reads the files of a folder, and replaces earlier names of groups, keys, values and options
    by the present ones."""

    @staticmethod
    def scheme() -> str:
        return "hpckit"

    def load_config(self, config_path: str) -> ConfigResult:
        place = self._place(config_path)
        file = str(Path(self.path) / self._normalize_file_name(place))
        try:
            result = super().load_config(place)
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8 at byte {error.start + 1}; save it as UTF-8"
            raise SpecError([f"config: {file} {problem}"]) from None
        if package := result.header.get("package"):
            result.header["package"] = renamed_keys.current_key(package)
        if not OmegaConf.is_dict(result.config):
            raise SpecError([f"config: {file} has no keys; write lines such as KEY: VALUE"])
        values = OmegaConf.to_container(result.config, resolve=False)
        assert isinstance(values, dict)
        plain = {str(key): value for key, value in values.items()}
        own = {
            group: [option]
            for group, option in renamed_keys.RENAMED_OPTIONS
            if self.is_config(f"{group}/{option}")
        }
        result.config = OmegaConf.create(current_file(plain, config_path, file, package, own))
        return result

    def is_group(self, config_path: str) -> bool:
        return super().is_group(self._place(config_path))

    def is_config(self, config_path: str) -> bool:
        return super().is_config(self._place(config_path))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return super().list(self._place(config_path), results_filter)

    def _place(self, config_path: str) -> str:
        """Returns the path of a file or a folder, which may be in the folder of an earlier name."""
        group, slash, rest = config_path.partition("/")
        for name in group_folders(group):
            place = f"{name}{slash}{rest}"
            if super().is_config(place) or super().is_group(place):
                return place
        return config_path


def searched(tree: Path) -> str:
    """Returns the URL of a tree, for `hydra.searchpath`."""
    Plugins.instance().register(ProjectConfigSource)
    return f"{ProjectConfigSource.scheme()}://{tree}"


def current_file(
    values: Mapping[str, Any],
    config_path: str,
    origin: str,
    package: str | None = None,
    own: renamed_keys.Groups | None = None,
) -> dict[str, Any]:
    """Returns the values of a config file with present names. Warnings are its only side effect.

    Args:
        values: the content of the file, with its list of defaults.
        config_path: GROUP/OPTION.
        origin: the path of the file, for warnings.
        package: the package of its header; None: the group.
        own: the project's options with earlier names of hpckit's own, which keep their names.

    Raises:
        BothSpellingsError: a key is given by both of its names.
    """
    group = config_path.rpartition("/")[0].replace("/", ".")
    under = group if package is None else package.removeprefix(_GLOBAL).strip(".")
    now = {
        key: list(_current_defaults(value, group, origin, own))
        if key == "defaults"
        else _texts(value)
        for key, value in values.items()
    }
    return renamed_keys.current_values(now, origin=origin, under=under)


def _current_defaults(
    entries: Any, group: str, origin: str, own: renamed_keys.Groups | None
) -> Iterator[Any]:
    """Yields the entries of a list of defaults: options of this group, or of the group that they
    name."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str):
            yield _option(group, entry, origin, own)
        elif isinstance(entry, dict):
            yield dict(_default(str(key), value, origin, own) for key, value in entry.items())
        else:
            yield entry


def _default(key: str, value: Any, origin: str, own: renamed_keys.Groups | None) -> tuple[str, Any]:
    """Returns an entry like `override /group: option`."""
    *words, named = key.split()
    group = named.lstrip("/")
    now = renamed_keys.current_key(group)
    if now != group:
        renamed_keys.warn_of(group, now, origin)
    option = _option(group, value, origin, own) if isinstance(value, str) else value
    return " ".join([*words, named.replace(group, now)]), option


def _option(group: str, option: str, origin: str, own: renamed_keys.Groups | None) -> str:
    now = renamed_keys.current_option(group, option, own)
    if now != option:
        renamed_keys.warn_of(f"{group}={option}", f"{group}={now}", origin)
    return now


def _texts(value: Any) -> Any:
    """Returns a value with the present names of keys in its interpolations."""
    if isinstance(value, str):
        return renamed_keys.current_text(value)
    if isinstance(value, dict):
        return {key: _texts(inner) for key, inner in value.items()}
    return [_texts(inner) for inner in value] if isinstance(value, list) else value
