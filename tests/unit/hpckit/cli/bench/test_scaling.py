"""What is trained to see how models scale, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpckit.cli.bench.scaling_figures import (
    ScalingPoint,
    by_model,
    conclusion,
    doubt,
    point,
    records,
    trusted_efficiency,
)
from hpckit.cli.bench.scaling_plot import draw
from hpckit.cli.bench.world_shapes import (
    ScalingWorkload,
    WorldShape,
    doubling,
    overrides_of,
    parse_world,
    threads_of,
)
from hpckit.cli.main import app
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.submit.compose import compose_spec

COUNTS = st.integers(1, 1000)


def point_on(
    ranks: int, step_s: float, communication: float | None, batch: int = 8
) -> ScalingPoint:
    return ScalingPoint(
        "small", WorldShape(1, ranks), batch * ranks, step_s, None, communication, 0.0
    )


def step(number: int, **fields: float) -> Event:
    about = {"step": number, "step_s": 0.1, "tokens_per_s": 640.0, "data_wait_s": 0.02}
    return event_of(0.0, "step", {**about, **fields})


@given(COUNTS, COUNTS)
def test_worlds_double_up_to_all(nodes: int, workers: int) -> None:
    worlds = doubling(nodes, workers)
    ranks = [world.ranks for world in worlds]
    assert ranks[0] == 1
    assert worlds[-1] == WorldShape(nodes, workers)
    assert all(a < b <= 2 * a for a, b in pairwise(ranks))
    assert all(parse_world(str(world)) == world for world in worlds)


@pytest.mark.parametrize("text", ["", "2", "0x2", "2x", "x2", "2x2x2", "-1x2"])
def test_what_is_no_world_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not a number of nodes and workers; give NODESxWORKERS"
    ):
        parse_world(text)


def test_each_rank_has_a_micro_batch_or_all_share_a_batch() -> None:
    typed = ["parallel=fsdp_tp", "parallel.tensor=2", "train.micro_batch=4"]
    spec = compose_spec([*typed, "launch.nproc_per_node=4"])
    for strong, batch in ((False, 8), (True, spec.train.global_batch)):
        words = overrides_of(
            spec, typed, "gpt_nano", WorldShape(1, 4), ScalingWorkload(60, strong), "/runs", 3
        )
        assert words[-1] == f"train.global_batch={batch}"
    made = compose_spec(words)
    assert (made.train.steps, made.root, made.checkpoint.every_steps) == (60, "/runs", None)
    assert made.launch.threads_per_worker == 3
    alone, sizes = WorldShape(1, 1), ScalingWorkload(60, False)
    with pytest.raises(SpecError, match="1x1: 1 rank cannot be divided"):
        overrides_of(spec, typed, "gpt_nano", alone, sizes, "/runs", 3)


@pytest.mark.parametrize(
    ("words", "cores", "expected"),
    [
        ([], 16, 2),
        ([], 4, 1),
        (["launch.threads_per_worker=5"], 16, 5),
        (["cluster=slurm", "cluster.slurm.cpus_per_node=48"], 16, 12),
        (["cluster=slurm"], 16, 1),
    ],
)
def test_a_rank_has_as_many_threads_in_each_world(
    words: list[str], cores: int, expected: int
) -> None:
    worlds = [WorldShape(1, 1), WorldShape(1, 4), WorldShape(2, 4)]
    assert threads_of(compose_spec(words), worlds, cores) == expected


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_a_pipeline_has_the_micro_batches_that_keep_it_busy(schedule: str) -> None:
    typed = ["parallel=pp", f"parallel.schedule={schedule}", "parallel.replicate=2"]
    typed += ["train.micro_batch=2", "launch.nproc_per_node=4"]
    spec = compose_spec([*typed, "model=gpt_tiny"])
    for ranks, batch in ((2, 4), (4, 8), (8, 16)):
        words = overrides_of(
            spec, typed, "gpt_mini", WorldShape(1, ranks), ScalingWorkload(60, False), "/runs", 1
        )
        if schedule != "interleaved" or ranks < 8:  # eight stages are more than its blocks
            assert compose_spec(words).train.global_batch == batch


def test_a_point_is_of_steps_that_are_neither_the_first_nor_traced() -> None:
    steps = [step(number, step_s=9.0) for number in range(1, 6)]
    steps += [step(number) for number in range(6, 9)]
    steps += [step(9, step_s=5.0, traced_step_s=4.0, communication_exposed_s=1.0)]
    found = point("small", WorldShape(1, 2), 16, steps)
    assert (found.step_s, found.samples_per_s, found.communication) == (0.1, 160.0, 0.25)
    assert found.tokens_per_s == pytest.approx(640.0)
    assert found.data_wait == pytest.approx(0.2)
    assert point("small", WorldShape(1, 2), 16, steps[:-1]).communication is None
    with pytest.raises(ValueError, match="no step after the first 5"):
        point("small", WorldShape(1, 2), 16, steps[:5])


def test_efficiency_is_that_of_a_rank() -> None:
    points = [point_on(1, 0.1, 0.0), point_on(4, 0.2, 0.3)]
    assert [one.efficiency(points[0]) for one in points] == [1.0, 0.5]
    other = ScalingPoint("other", WorldShape(1, 1), 8, 1.0, None, 0.0, 0.0)
    assert list(by_model([*reversed(points), other])) == ["small", "other"]
    assert [each["efficiency"] for each in records(points)] == [1.0, 0.5]


def test_more_than_all_is_not_given_as_an_efficiency() -> None:
    points = [point_on(1, 1.051, 0.0), point_on(2, 0.1, 0.1), point_on(4, 0.2, 0.1)]
    assert [one["efficiency"] for one in records(points)] == [1.0, None, None]
    assert [trusted_efficiency(one, points) for one in points] == [1.0, None, None]
    text = conclusion(points)
    assert text.startswith("efficiency is not given: a rank of 2 would do 1,051% of what one of 1")
    assert "so 1x1 was measured too slow; free the machine" in text
    assert "of perfect" not in text
    assert "communication stays below half" in text


def test_more_than_all_within_noise_is_given() -> None:
    points = [point_on(1, 0.104, 0.0), point_on(2, 0.1, 0.1)]
    assert doubt(points) is None
    assert trusted_efficiency(points[1], points) == pytest.approx(1.04)
    wide = [replace(point_on(1, 0.13, 0.0), uncertainty=0.15), point_on(2, 0.1, 0.1)]
    assert doubt(wide) is None
    assert doubt([replace(wide[0], uncertainty=0.05), wide[1]]) is not None


@given(st.lists(st.floats(0.001, 100.0), min_size=2, max_size=8))
def test_no_efficiency_exceeds_all_by_more_than_noise(times: list[float]) -> None:
    points = [point_on(2**number, step_s, None) for number, step_s in enumerate(times)]
    given_shares = [trusted_efficiency(one, points) for one in points]
    assert all(share is None or share <= 1.05 + 1e-9 for share in given_shares)


def test_the_spread_of_the_steps_says_how_certain_their_median_is() -> None:
    steady = point("small", WorldShape(1, 1), 8, [step(n) for n in range(6, 60)], 4)
    uneven = [step(n, step_s=0.1 if n % 2 else 0.3) for n in range(6, 60)]
    assert (steady.uncertainty, steady.threads) == (0.0, 4)
    assert point("small", WorldShape(1, 1), 8, uneven).uncertainty > 0.1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(1, 0.1, 0.0)], ["only 1 rank: nothing to compare"]),
        (
            [(1, 0.1, 0.0), (2, 0.11, 0.1), (4, 0.2, 0.6)],
            ["80% of perfect or more up to 2 ranks", "half of a step from 4 ranks on"],
        ),
        (
            [(1, 0.1, 0.0), (2, 0.3, 0.2)],
            ["below 80% of perfect from 2 ranks on", "below half", "slower on 2 ranks than on 1"],
        ),
        ([(1, 0.1, 0.0), (2, 0.1, None)], ["no step of several ranks was traced"]),
    ],
)
def test_what_is_concluded(steps: list[tuple[int, float, float | None]], said: list[str]) -> None:
    text = conclusion([point_on(*each) for each in steps])
    for words in said:
        assert words in text


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    points = [point_on(1, 0.1, 0.0), point_on(2, 0.2, None)]
    draw(by_model(points), "weak scaling", tmp_path / "folder" / "scaling.svg")
    assert "small" in (tmp_path / "folder" / "scaling.svg").read_text()
    doubtful = [point_on(1, 9.0, 0.0), point_on(2, 0.2, None)]
    draw(by_model(doubtful), "weak scaling", tmp_path / "doubtful.svg")
    assert "small: not to be trusted" in (tmp_path / "doubtful.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--worlds", "2"], "--worlds: '2' is not a number of nodes and workers"),
        (["-o", "scaling.txt"], "scaling.txt must end in .html, .svg, .png or .pdf"),
        (["--models", "gpt_nono"], "gpt_nono"),
        (["--worlds", "1x1", "parallel=tp", "parallel.tensor=3"], "tensor 3 = 3 ranks"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    words: list[str], said: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["bench", "scaling", f"root={tmp_path}/runs", *words])
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()
