"""Parses and writes the `--noise` syntax of specs.

    spec      = part { "+" part }
    part      = kind [ ":" option { "," option } ]
    option    = name "=" value | value

A kind is one of `KINDS`; its options are the attributes of its class. A bare value
stands for the next option in their order: `gaussian:1e-3` is `gaussian:scale=1e-3`.
Several primitives are joined by "|": `ulp:primitives=add|mul`.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

from prednet_jax.noise import specs
from prednet_jax.noise.errors import NoiseError, expect
from prednet_jax.noise.rules import primitives
from prednet_jax.noise.specs import NoiseSpec

KINDS: dict[str, type[NoiseSpec]] = {
    "identity": specs.Identity,
    "reduction_order": specs.ReductionOrder,
    "stochastic_rounding": specs.StochasticRounding,
    "mca": specs.MonteCarlo,
    "ulp": specs.UlpPerturbation,
    "gaussian": specs.Gaussian,
    "reduced_precision": specs.ReducedPrecision,
    "gradient_gaussian": specs.GradientGaussian,
    "bit_flip": specs.BitFlip,
}

# Other names of a kind, some with an option already chosen.
ALIASES: Mapping[str, tuple[str, dict[str, str]]] = {
    "none": ("identity", {}),
    **{name: ("reduced_precision", {"format": name}) for name in specs.FORMATS},
}


def parse(text: str) -> NoiseSpec:
    """Returns the spec that a text describes: a Composition of parts joined by "+".

    It raises a NoiseError that names the wrong part and the allowed values.

    Example:
        >>> from prednet_jax import noise
        >>> noise.parse("ulp:max_ulps=2").max_ulps
        2
    """
    expect(isinstance(text, str), "noise", text, "a text such as 'reduction_order'")
    try:
        # Splits at each "+" that is not the sign of an exponent, as in 1e+3.
        texts = re.split(r"(?<!\d[eE])\+|\+(?!\d)", text)
        return specs.compose(*(_part(part.strip()) for part in texts))
    except NoiseError as error:
        raise NoiseError(f"noise={text!r}: {error}") from None


def format(spec: NoiseSpec, *, defaults: bool = False) -> str:
    """Returns the text of a spec: the inverse of `parse`.

    `defaults` also writes options that have their default value, for records. It raises
    a ValueError if the syntax cannot express the name of a leaf or of a primitive.

    Example:
        >>> from prednet_jax import noise
        >>> noise.format(noise.ReductionOrder(granularity="element"))
        'reduction_order:granularity=element'
    """
    return "+".join(_text(part, defaults) for part in specs.parts(spec)) or "none"


def _part(text: str) -> NoiseSpec:
    name, colon, rest = text.partition(":")
    name = name.strip()
    if name not in KINDS and name not in ALIASES:
        accepted = ", ".join([*KINDS, *ALIASES])
        raise NoiseError(f"unknown kind {name!r}: expected one of {accepted}")
    kind_name, options = ALIASES.get(name, (name, {}))
    kind = KINDS[kind_name]
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in options}
    options = dict(options)
    if colon and not rest.strip():
        raise NoiseError(f"{text!r}: expected options after the colon")
    positional = _order(kind)
    for i, item in enumerate(rest.split(",") if rest else []):
        option, equals, value = (s.strip() for s in item.partition("="))
        if not equals:
            option, value = (positional[i : i + 1] or ["?"])[0], option
        if option not in fields:
            accepted = ", ".join(fields) or "no options"
            raise NoiseError(f"unknown option {item.strip()!r} of {name}: {accepted}")
        if option in options:
            raise NoiseError(
                f"option {option!r} of {name} is given twice: expected once"
            )
        options[option] = _value(f"{name}:{option}", str(fields[option].type), value)
    for f in fields.values():
        if f.default is dataclasses.MISSING and f.name not in options:
            raise NoiseError(f"{name} needs {f.name}, as in '{name}:{f.name}=...'")
    return kind(**options)


def _order(kind: type[NoiseSpec]) -> list[str]:
    """Returns the options in the order in which bare values stand for them."""
    last = ("primitives", "deterministic", "routines")
    own = [f.name for f in dataclasses.fields(kind)]
    return [*(n for n in own if n not in last), *(n for n in last if hasattr(kind, n))]


def _value(name: str, kind: str, text: str) -> Any:
    """Returns a value of the type that an attribute is annotated with."""
    if "None" in kind and text.lower() == "none":
        return None
    if kind.startswith("tuple"):
        return _primitives(name, tuple(part.strip() for part in text.split("|")))
    readers: dict[str, tuple[Callable[[str], object], str]] = {
        "bool": (lambda x: {"true": True, "false": False}[x.lower()], "true or false"),
        "int": (int, "a whole number"),
        "float": (float, "a number"),
    }
    read, expected = readers.get(kind.partition(" ")[0], (str, "a text"))
    try:
        return read(text)
    except (ValueError, KeyError):
        raise NoiseError(f"{name}={text!r}: expected {expected}") from None


def _primitives(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns names of primitives, or raises an error if one of them does not exist."""
    accepted = primitives.known()
    for primitive in names:
        if primitive not in accepted:
            close = difflib.get_close_matches(primitive, sorted(accepted), 3)
            examples = ", ".join(close or ("add", "mul", "dot_general"))
            raise NoiseError(
                f"{name}: no primitive {primitive!r}: expected names such as {examples}"
            )
    return names


def _text(spec: NoiseSpec, defaults: bool) -> str:
    name = next((name for name, kind in KINDS.items() if kind is type(spec)), "")
    expect(bool(name), "spec", spec, f"noises of {', '.join(KINDS)}")
    if isinstance(spec, specs.ReducedPrecision):
        return spec.format
    options = []
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if defaults or value != field.default:
            options.append(f"{field.name}={_value_text(value)}")
    return name + (":" + ",".join(options) if options else "")


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return "|".join(_writable(item, "+,|") for item in value)
    if isinstance(value, str):
        return _writable(value, "+,")
    return str(value).lower()


def _writable(name: str, separators: str) -> str:
    """Returns a name, or raises an error if it could not be read back."""
    if set(name) & set(separators) or name != name.strip() or name.lower() == "none":
        raise NoiseError(
            f"{name!r} cannot be written in a text: expected none of {separators}, no "
            "spaces around it, and not 'none'"
        )
    return name
