"""Output of squeue, as it is asked by `hpckit.slurm.squeue`."""

from __future__ import annotations

from pathlib import Path


def marked(mark: str, *jobs: tuple[str, ...]) -> str:
    """The output for jobs of these fields."""
    return "".join(f"{mark}#{f'{mark}.'.join(job)}\n" for job in jobs)


def fields(number: str, name: str, state: str = "PENDING", **more: str) -> tuple[str, ...]:
    """A job of one node."""
    told = {"start": "N/A", "end": "N/A", "limit": "UNLIMITED", "nodes": "1", "partition": "low"}
    told |= {"hosts": "", "dependency": "(null)", "reason": "None"} | more
    fixed = ("start", "end", "limit", "nodes", "partition", "hosts", "dependency", "reason")
    free = (name, told.get("comment", "(null)"), told.get("command", "(null)"))
    return (number, state, *(told[key] for key in fixed), *free)


def stand_in(folder: Path, *jobs: tuple[str, ...]) -> None:
    """Write a squeue that knows these jobs."""
    lines = "".join(f"@#{'@.'.join(job)}\n" for job in jobs)
    (folder / "queue").write_text(lines)
    tool = folder / "squeue"
    tool.write_text(
        "#!/bin/sh\n"
        'for word; do case $word in --format=*) mark=${word#--format=}; mark=${mark%%"#"*};; esac; '
        "done\n"
        f'while IFS= read -r line; do printf "%s\\n" "$line"; done < {folder}/queue '
        '| /bin/sed "s|@|$mark|g"\n'
    )
    tool.chmod(0o755)
