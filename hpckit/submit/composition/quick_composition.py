"""Composes as `hydra_values.compose_values` does, in half the time, unless anything is unusual.

Hydra's own functions compose, but only the config of the run: not Hydra's own config, which is
dropped after composing. libyaml parses hpckit's files, and plain overrides need no parser. Nothing
is explained here: for any error, the composition is left to `compose_values`. So it is if PyYAML
was built without libyaml, or if a later version of Hydra has other internals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.override_parser.types import Override, OverrideType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader

from hpckit.config.config_trees import ambiguous, group_options
from hpckit.submit.composition import hydra_values
from hpckit.submit.composition.composed_values import ComposedValues
from hpckit.submit.composition.plain_overrides import parse_plain
from hpckit.submit.composition.project_config_source import ProjectConfigSource, searched

_HEADER = 512
"""The characters of a file in which Hydra looks for its package."""


class UnusualConfigError(Exception):
    """Raised if a config has to be composed by `compose_values`."""


def compose_quickly(
    overrides: Sequence[str], conf: Path, yours: Path | None = None
) -> ComposedValues:
    """Returns what `compose_values` returns for the same arguments, or raises any error: then that
    has to compose. It is for a process that composes once and ends: what Hydra keeps of a
    composition is not restored."""
    groups = group_options(conf, yours)
    items = [
        parse_plain(text) or hydra_values.parse_one(text)
        for text in hydra_values.present(overrides, groups)
    ]
    refused = {line: item for item in items for line in hydra_values.refusals(item, groups)}
    usable = [_force_added(one, groups) for one in items if one not in refused.values()]
    return ComposedValues(_composed(usable, conf, yours), list(refused))


def _force_added(item: Override, groups: hydra_values.Groups) -> Override:
    """Returns an override with Hydra's `++`, as `compose_values` adds values."""
    if item.type != OverrideType.CHANGE or item.key_or_group in groups:
        return item
    return replace(item, type=OverrideType.FORCE_ADD, input_line=f"++{item.input_line}")


def _composed(overrides: list[Override], conf: Path, yours: Path | None) -> dict[str, Any]:
    version.setbase(hydra_values.VERSION_BASE)
    loader = ConfigLoaderImpl(_search_path(conf, yours))
    loader.ensure_main_config_source_available()
    repository = CachingConfigRepository(loader.repository)
    found = create_defaults_list(
        repository, "config", overrides, prepend_hydra=False, skip_missing=False
    )
    config = loader._compose_config_from_defaults_list(found.defaults, repository)
    if "hydra" in config or (yours and ambiguous(found.overrides.known_choices, conf, yours)):
        raise UnusualConfigError
    OmegaConf.set_struct(config, True)  # as Hydra does: overrides change keys that are there
    loader._apply_overrides_to_config(found.config_overrides, config)
    return hydra_values.plain_values(config)


def _search_path(conf: Path, yours: Path | None) -> ConfigSearchPathImpl:
    for source in (_OwnConfigSource, ProjectConfigSource, StructuredConfigSource):
        SourcesRegistry.instance().register(source)
    path = ConfigSearchPathImpl()
    path.append("main", f"{_OwnConfigSource.scheme()}://{conf}")
    if yours is not None:
        path.append("yours", searched(yours))
    path.append("schema", f"{StructuredConfigSource.scheme()}://")
    return path


class _OwnConfigSource(FileConfigSource):
    """Reads the files of hpckit's own config tree as Hydra reads them, by libyaml."""

    @staticmethod
    def scheme() -> str:
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        text = (Path(self.path) / self._normalize_file_name(config_path)).read_text("utf-8")
        config = OmegaConf.create(yaml.load(text, _OwnLoader))
        assert isinstance(config, DictConfig)
        header = ConfigSource._get_header_dict(text[:_HEADER])
        return ConfigResult(self.provider, f"{self.scheme()}://{self.path}", config, header)


class _OwnLoader(yaml.CSafeLoader):
    """Reads scalars as OmegaConf does. hpckit's own files have no key twice, which it refuses."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers
