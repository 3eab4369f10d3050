"""PredNet as a task, in either published form."""

import dataclasses

from prednet_jax import objectives, optimizers
from prednet_jax.config import PredNetConfig
from prednet_jax.models import prednet
from prednet_jax.models.parameters import init_params
from prednet_jax.tasks.base import Adam, Configured


class PredNetTask(Configured):
    """The PredNet of `models.prednet`."""

    config: PredNetConfig
    name = "prednet"

    def __init__(self, config: PredNetConfig):
        super().__init__(config)
        self.frame = config.height, config.width, config.channels[0]
        # `lotter` was published with sequences of one window each.
        self.fresh_windows = config.order == "lotter"
        self.multiplications = self.weights = 0
        for name, conv in prednet.convolutions(config).items():
            kind, layer = name.rsplit("_", 1)
            pixels = conv.height * conv.width
            kernel = conv.filter_size**2 * conv.in_channels * conv.out_channels
            self.multiplications += pixels * kernel
            self.weights += kernel
            if kind not in ("top_down", "cell"):  # those have no bias
                self.weights += conv.out_channels
            if kind == "gates" and config.peepholes:
                self.weights += 3 * pixels * config.recurrent[int(layer)]

    def init_params(self, key):
        """The published initialisers."""
        return init_params(self.config, key)

    def initial_carry(self, batch, dtype):
        """The zero state."""
        return prednet.initial_state(self.config, batch, dtype)

    def loss(self, params, carry, frames, first, method):
        """`objectives.window_loss`, by default with the variant's published loss."""
        published = "errors" if self.config.order == "lotter" else "squares"
        method = dataclasses.replace(method, objective=method.objective or published)
        return objectives.window_loss(params, self.config, carry, frames, first, method)

    def check(self, method):
        """Accepts every method; `objectives.window_loss` checks it."""

    def adam(self, updates):
        """Chainer's Adam; for `lotter` Keras's, with its schedule."""
        if self.config.order == "lotter":
            return Adam(optimizers.lotter_schedule(updates), 1e-7)
        return Adam()

    def predict(self, params, frames):
        """`models.prednet.predict` of one sequence."""
        return prednet.predict(params, self.config, frames[:, None])[0][:, 0]

    def with_convolution(self, name, *, where=None):
        """See `Task`."""
        if where not in (None, self.config.convolution):
            return self
        return PredNetTask(dataclasses.replace(self.config, convolution=name))

    def algorithms(self, dtype):
        """The algorithm of each convolution; `auto` is resolved."""
        return prednet.algorithms(self.config, dtype)

    def flags(self):
        """Sizes always, other settings where they differ from the default."""
        sizes = ("channels", "height", "width")
        return (f"--model={self.name}", *self.changed(always=sizes))
