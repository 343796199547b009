from checkpointing.structure import Inventory, Wants, difference

SPEC = ((2,), "float32")


def inventory(*names: str, values: tuple[str, ...] = ()) -> Inventory:
    return Inventory(dict.fromkeys(names, SPEC), dict.fromkeys(values))


def wants(*names: str, values: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> Wants:
    return Wants(dict.fromkeys(names, SPEC), frozenset(values), optional)


def test_ranks_may_each_want_a_part() -> None:
    stored = inventory("a", "b", values=("x", "y"))
    assert difference([wants("a", values=("x",)), wants("b", values=("y",))], stored) is None
    assert difference([wants("a", values=("x", "y"))], stored) == (
        "\n  tensors not in the state (1):\n    b"
    )


def test_everything_that_differs_is_listed() -> None:
    other = Wants({"a": ((2, 1), "int8"), "new": ((), "bool")}, frozenset({"v"}))
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


def test_optional_parts_are_wanted_only_if_there_is_any_of_them() -> None:
    mine = wants("m", "opt/state.m", values=("opt/state.n",), optional=("opt/state.",))
    assert difference([mine], inventory("m")) is None
    text = difference([mine], inventory("m", values=("opt/state.n",)))
    assert text == "\n  tensors missing in the checkpoint (1):\n    opt/state.m"
