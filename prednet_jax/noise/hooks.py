"""What searches ask of an evaluation: to switch noise off and on, and to look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.plan import Step
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.run import Drawn, Evaluation, plain, typed


class Hooks(Evaluation):
    """An evaluation that is switched and watched."""

    def __init__(
        self,
        switches: Mapping[str, Array] | None = None,
        observe: Callable[[Step, Words, Sequence, Sequence], None] | None = None,
        finished: Callable[[Step, Sequence[Any]], None] | None = None,
    ) -> None:
        """The hooks.

        Args:
            switches: booleans by path, known at run time: where False, the noise of the
                equation is computed and discarded (`localize`); None: all True.
            observe: is shown words, operands and results of each first-order equation
                while the program is traced; of loops and branches the number of steps
                or of the branch as only result.
            finished: is shown the results of each equation that runs other programs.
        """
        self.switches, self.observe, self.finished = switches or {}, observe, finished

    def first_order(
        self, step: Step, words: Words, operands: list[Any], drawn: Drawn
    ) -> list[Any]:
        """As asked for."""
        results = self._switched(step, words, operands, drawn)
        if self.observe is not None:
            self.observe(step, words, operands, results)
        return results

    def higher_order(
        self, step: Step, words: Words, operands: list[Any], drawn: Drawn
    ) -> list[Any]:
        """As asked for."""
        results = super().higher_order(step, words, operands, drawn)
        if self.finished is not None:
            self.finished(step, results)
        return results

    def decided(self, step: Step, words: Words, number: Any) -> None:
        """As asked for."""
        if self.observe is not None:
            self.observe(step, words, (), (number,))

    def _switched(
        self, step: Step, words: Words, operands: list[Any], drawn: Drawn
    ) -> list[Any]:
        switch, equation = self.switches.get(step.path), step.equation
        if switch is None or not step.action.any:
            return super().first_order(step, words, operands, drawn)
        if step.name == "addupdate":
            ref, _, *indices = operands
            before = compat.array_in(equation, ref, indices)
            compat.bind(equation, *operands)
            clean = compat.array_in(equation, ref, indices)
            compat.put_array(equation, ref, before, indices)
            super().first_order(step, words, operands, drawn)
            noisy = compat.array_in(equation, ref, indices)
            chosen = jnp.where(switch, noisy, clean)
            compat.put_array(equation, ref, chosen, indices)
            return []
        clean = plain(step, typed(step, operands))
        noisy = super().first_order(step, words, operands, drawn)
        return [jnp.where(switch, n, c) for n, c in zip(noisy, clean, strict=True)]
