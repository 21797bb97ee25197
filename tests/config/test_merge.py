"""The one rule of merging, and what is made of its result."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.config import Layer, Loaded, Origin, Sourced, merge

keys = st.sampled_from(["job_root", "interface", "submit.spares", "submit.env.A", "submit.env.B"])
sourced = st.integers().map(lambda number: Sourced(number, Origin("flag", str(number))))
layers = st.lists(st.dictionaries(keys, sourced), max_size=6)


@given(layers)
def test_the_last_layer_that_has_a_key_gives_it_with_its_origin(layers: list[Layer]) -> None:
    merged = merge(layers)
    assert merged.keys() == {key for layer in layers for key in layer}
    for key, found in merged.items():
        assert found is [layer[key] for layer in layers if key in layer][-1]


@given(layers, st.integers(0, 6))
def test_layers_may_be_merged_in_parts(layers: list[Layer], cut: int) -> None:
    assert merge([merge(layers[:cut]), merge(layers[cut:])]) == merge(layers)


@given(layers)
def test_tables_are_put_together_by_name(layers: list[Layer]) -> None:
    values = merge(layers)
    submit = Loaded(values).submit
    entries = {k.rpartition(".")[2]: v.value for k, v in values.items() if ".env." in k}
    assert (submit["env"].value if "env" in submit else {}) == entries
    assert submit.get("spares") == values.get("submit.spares")
