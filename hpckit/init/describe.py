"""A site asked, chosen for and written down as the text of a file."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from datetime import date

from hpckit.doctor import machine
from hpckit.doctor.asking import AskError, ask_node
from hpckit.init.facts import SiteFacts, ask_site
from hpckit.init.files import File
from hpckit.init.site import Site, Wanted, choose, nodes_with_gpus, partition_of
from hpckit.init.sitefile import is_name, render, site_name
from hpckit.launch.compose import compose_spec
from hpckit.launch.trees import conf_dir
from hpckit.run.parse import SpecError


@dataclass(frozen=True)
class Described:
    """A site and its file."""

    name: str
    site: Site
    file: File


def describe(name: str | None, wanted: Wanted, asks_node: bool) -> Described | None:
    """The file of the site around this machine; None: there is no Slurm here.

    Args:
        name: of the site; None: what Slurm calls the cluster.
        asks_node: have a job tell what a node has.

    Raises:
        SpecError: Slurm or the node does not answer, or it has not what is wanted.
    """
    try:
        facts = ask_site(getpass.getuser())
    except AskError as error:
        without = "hpckit init --only starter does without"
        raise SpecError([f"Slurm is out of reach: {error} (scontrol ping); {without}"]) from None
    if facts is None:
        return None
    chosen = _named(name, facts)
    here = _node(facts, wanted) if asks_node else machine.ask()
    site = choose(facts, here, asks_node, wanted)
    text = render(chosen, site, facts, date.today())
    return Described(chosen, site, File(f"conf/cluster/{chosen}.yaml", text))


def _named(name: str | None, facts: SiteFacts) -> str:
    chosen = name or site_name(facts.config.get("ClusterName", ""))
    if not is_name(chosen):
        raise SpecError([f"--site {chosen!r}: write letters, digits, - and _"])
    if (conf_dir() / "cluster" / f"{chosen}.yaml").is_file():
        raise SpecError([f"{chosen} is the name of hpckit's own cluster={chosen}; say --site NAME"])
    return chosen


def _node(facts: SiteFacts, wanted: Wanted) -> machine.MachineFacts:
    partition, _ = partition_of(facts, wanted.partition)
    words = ["cluster=slurm", f"cluster.slurm.partition={partition['PartitionName']}"]
    words += [f"cluster.slurm.account={wanted.account}"] if wanted.account else []
    words += [] if nodes_with_gpus(partition, facts.nodes) else ["cluster.slurm.gpus=none"]
    try:
        return ask_node(compose_spec(words, conf_dir()), None)
    except AskError as error:
        raise SpecError([f"--node: a node did not answer: {error}"]) from None
