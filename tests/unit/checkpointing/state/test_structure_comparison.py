from checkpointing.state.structure_comparison import Inventory, StateRequirements, difference

SPEC = ((2,), "float32")


def inventory(*names: str, values: tuple[str, ...] = ()) -> Inventory:
    return Inventory(dict.fromkeys(names, SPEC), dict.fromkeys(values))


def wants(*names: str, values: tuple[str, ...] = ()) -> StateRequirements:
    return StateRequirements(dict.fromkeys(names, SPEC), frozenset(values))


def test_ranks_may_each_want_a_part() -> None:
    stored = inventory("a", "b", values=("x", "y"))
    assert difference([wants("a", values=("x",)), wants("b", values=("y",))], stored) is None
    assert difference([wants("a", values=("x", "y"))], stored) == (
        "\n  tensors not in the state (1):\n    b"
    )


def test_everything_that_differs_is_listed() -> None:
    other = StateRequirements({"a": ((2, 1), "int8"), "new": ((), "bool")}, frozenset({"v"}))
    assert difference([other], inventory("a", "old", values=("w",))) == (
        "\n  tensors missing in the checkpoint (1):\n    new"
        "\n  tensors not in the state (1):\n    old"
        "\n  tensors of another shape or dtype (1):"
        "\n    a: float32[2] in the checkpoint, int8[2, 1] in the state"
        "\n  values missing in the checkpoint (1):\n    v"
        "\n  values not in the state (1):\n    w"
    )


def test_long_lists_are_cut() -> None:
    text = difference([wants(*(f"t{i:03d}" for i in range(100)))], inventory())
    assert text is not None
    assert text.startswith("\n  tensors missing in the checkpoint (100):\n    t000")
    assert text.endswith("\n    t019\n    ... and 80 more")


def test_what_else_does_not_fit_is_said_first_and_once() -> None:
    mine = StateRequirements({"a": SPEC}, frozenset(), ("optimizer 'o' was saved as SGD",))
    assert difference([mine, mine], inventory("a", "b")) == (
        "\n  optimizer 'o' was saved as SGD\n  tensors not in the state (1):\n    b"
    )


def test_of_a_part_the_names_below_count() -> None:
    stored = inventory("a/x", "a/y", "ab/z", "b/a/x", values=("a/v", "a"))
    assert stored.below("a") == Inventory({"x": SPEC, "y": SPEC}, {"v": None})
