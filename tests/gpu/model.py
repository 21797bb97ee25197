"""Device memory against a model: any order of what can be done with it, compared step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from slurmmesh import gpu
from slurmmesh.gpu import DeviceMemory, ExportedMemory
from tests.gpu.alive import alive
from tests.gpu.programs import UNIT, leaves_nothing

# Only the first bytes of each unit are compared: 2 MiB of each would make it slow.
WINDOW = 16


@dataclass(eq=False)
class Extent:
    """A part of memory, which several may have mapped."""

    units: int
    windows: list[bytearray]


@dataclass(eq=False)
class Modelled:
    """What a DeviceMemory must be like."""

    real: DeviceMemory
    capacity: int
    extents: list[Extent]
    imported: bool = False
    tensors: list[Any] = field(default_factory=list)
    address: int = 0

    @property
    def units(self) -> int:
        return sum(extent.units for extent in self.extents)

    def window(self, unit: int) -> bytearray:
        return [window for extent in self.extents for window in extent.windows][unit]


class MemoryMachine(RuleBasedStateMachine):
    """Reserve, grow, write, export, import, tensors, free."""

    memories = Bundle("memories")
    exports = Bundle("exports")
    tensors = Bundle("tensors")

    @initialize()
    def begin(self) -> None:
        self.before = alive()
        self.live: list[Modelled] = []
        self.exported: list[ExportedMemory] = []
        self.held: list[list[Any]] = []

    def _extent(self, memory: DeviceMemory, start: int, units: int) -> Extent:
        """New memory, whose contents are made known."""
        for unit in range(start, start + units):
            memory.fill(0, WINDOW, unit * UNIT)
        return Extent(units, [bytearray(WINDOW) for _ in range(units)])

    @rule(target=memories, units=st.integers(1, 3), room=st.integers(0, 5), odd=st.integers(0, 9))
    def reserve(self, units: int, room: int, odd: int) -> Modelled:
        real = DeviceMemory.reserve(units * UNIT - odd, capacity=(units + room) * UNIT - odd)
        made = Modelled(real, units + room, [self._extent(real, 0, units)], address=real.address)
        self.live.append(made)
        return made

    @rule(one=memories, units=st.integers(1, 8))
    def grow(self, one: Modelled, units: int) -> None:
        try:
            size = one.real.grow(units * UNIT)
        except ValueError:
            refused = one.real.freed or one.imported or units > one.capacity
            assert refused
            return
        assert not one.real.freed
        more = units - one.units
        if more > 0:
            assert not one.imported
            one.extents.append(self._extent(one.real, one.units, more))
        assert size == one.units * UNIT

    @rule(one=memories, unit=st.integers(0, 7), data=st.binary(min_size=1, max_size=WINDOW))
    def write(self, one: Modelled, unit: int, data: bytes) -> None:
        if not one.real.freed and unit < one.units:
            one.real.write(data, unit * UNIT)
            one.window(unit)[: len(data)] = data

    @rule(target=exports, one=memories)
    def export(self, one: Modelled) -> tuple[ExportedMemory | None, list[Extent]]:
        if one.real.freed or (one.imported and gpu.platform().name == "rocm"):
            return None, []
        exported = one.real.export()
        self.exported.append(exported)
        return exported, list(one.extents)

    @rule(target=memories, given=exports)
    def import_(self, given: tuple[ExportedMemory | None, list[Extent]]) -> Modelled:
        exported, extents = given
        if exported is None:
            return self.reserve(1, 0, 0)
        real = DeviceMemory.import_(exported)
        units = sum(extent.units for extent in extents)
        made = Modelled(real, units, extents, imported=True, address=real.address)
        self.live.append(made)
        return made

    @rule(target=tensors, one=memories, unit=st.integers(0, 7))
    def tensor(self, one: Modelled, unit: int) -> tuple[list[Any], bytearray]:
        if one.real.freed or unit >= one.units:
            return [], bytearray()
        made = [one.real.tensor("uint8", (WINDOW,), unit * UNIT)]
        one.tensors.append(made)
        self.held.append(made)
        return made, one.window(unit)

    @rule(given=tensors, value=st.integers(0, 255))
    def write_by_tensor(self, given: tuple[list[Any], bytearray], value: int) -> None:
        holder, window = given
        for tensor in holder:
            tensor[3] = value
            window[3] = value
            if tensor.is_cuda:
                torch.cuda.synchronize()
            assert bytes(tensor.tolist()) == window  # also of memory that was freed

    @rule(given=consumes(tensors))
    def drop_tensor(self, given: tuple[list[Any], bytearray]) -> None:
        given[0].clear()

    @rule(given=consumes(exports))
    def close(self, given: tuple[ExportedMemory | None, list[Extent]]) -> None:
        if given[0] is not None:
            given[0].close()

    @rule(one=consumes(memories))
    def free(self, one: Modelled) -> None:
        one.real.free()

    @invariant()
    def as_modelled(self) -> None:
        for one in getattr(self, "live", ()):
            if one.real.freed:
                continue
            assert one.real.address == one.address
            assert one.real.size == one.units * UNIT
            assert one.real.capacity == one.capacity * UNIT
            assert [e.size for e in one.real.extents] == [e.units * UNIT for e in one.extents]
            assert one.real.tensors == sum(len(holder) for holder in one.tensors)
            for unit in range(one.units):
                assert one.real.read(WINDOW, unit * UNIT) == one.window(unit)

    def teardown(self) -> None:
        if not hasattr(self, "before"):
            return
        for exported in self.exported:
            exported.close()
        for one in self.live:
            one.real.free()
        for holder in self.held:
            holder.clear()
        assert alive() == self.before


@leaves_nothing
def model(examples: int) -> None:
    """So many programs of up to 30 steps; raises with the shortest one that fails."""
    run_state_machine_as_test(
        MemoryMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
