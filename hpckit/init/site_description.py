"""Queries a site and writes its description as the text of a file."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from datetime import date

from hpckit.config.config_trees import conf_dir
from hpckit.config.spec_error import NoAnswerError
from hpckit.config.spec_parser import SpecError
from hpckit.doctor import machine
from hpckit.doctor.node_probe import ProbeError, ask_node
from hpckit.init.project_files import NewFile
from hpckit.init.site_choice import (
    SiteChoice,
    SiteRequest,
    choose_site,
    gpu_option,
    nodes_with_gpus,
    partition_of,
)
from hpckit.init.site_facts import SiteFacts, ask_site
from hpckit.init.site_file import is_name, render, site_name
from hpckit.slurm.sbatch_variables import with_sbatch_variables
from hpckit.submit.compose import compose_spec


@dataclass(frozen=True)
class DescribedSite:
    """A site and its file."""

    name: str
    site: SiteChoice
    file: NewFile


def describe(name: str | None, wanted: SiteRequest, asks_node: bool) -> DescribedSite | None:
    """Return the file of the site of this machine, or None if this machine has no Slurm.

    Args:
        name: the name of the site; None: Slurm's name of the cluster.
        asks_node: whether a job inspects a node.

    Raises:
        SpecError: a choice of the user does not exist.
        NoAnswerError: Slurm or the node does not answer.
    """
    try:
        facts = ask_site(getpass.getuser())
    except ProbeError as error:
        without = "hpckit init --only starter works without it"
        raise NoAnswerError(
            [f"Slurm does not answer: {error} (scontrol ping); {without}"]
        ) from None
    if facts is None:
        return None
    chosen = _named(name, facts)
    here = _node(facts, wanted) if asks_node else machine.ask()
    site = choose_site(facts, here, asks_node, wanted, os.environ)
    text = render(chosen, site, facts, date.today())
    return DescribedSite(chosen, site, NewFile(f"conf/cluster/{chosen}.yaml", text))


def _named(name: str | None, facts: SiteFacts) -> str:
    chosen = name or site_name(facts.config.get("ClusterName", ""))
    if not is_name(chosen):
        raise SpecError([f"--site {chosen!r}: use letters, digits, - and _"])
    if (conf_dir() / "cluster" / f"{chosen}.yaml").is_file():
        raise SpecError(
            [
                f"{chosen} is the name of hpckit's own cluster={chosen}; give another one "
                "with --site NAME"
            ]
        )
    return chosen


def _node(facts: SiteFacts, wanted: SiteRequest) -> machine.MachineFacts:
    partition, _ = partition_of(facts, wanted.partition)
    words = ["cluster=slurm", f"cluster.slurm.partition={partition['PartitionName']}"]
    words += [f"cluster.slurm.account={wanted.account}"] if wanted.account else []
    has_gpus = nodes_with_gpus(partition, facts.nodes) > 0
    words += [f"cluster.slurm.gpus={gpu_option(facts.config) if has_gpus else 'none'}"]
    try:
        spec, _ = with_sbatch_variables(compose_spec(words, conf_dir()), os.environ)
        return ask_node(spec, None)
    except ProbeError as error:
        raise NoAnswerError([f"--node: a node did not answer: {error}"]) from None
