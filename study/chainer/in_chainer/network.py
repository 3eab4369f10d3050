"""PredNet in Chainer, written from the equations of the `watanabe` form.

For each frame x, with P, h, c the carried prediction, hidden and cell state of layer l:
    E_l = [relu(A_l - P_l), relu(P_l - A_l)],  A_0 = x,  A_{l+1} = pool(relu(ConvA E_l))
    i, f, o = sigmoid(x0 E_l + x1 up(h_{l+1}) + conv h_l + bias + w * c_l)
    g = tanh(x0 E_l + x1 up(h_{l+1}) + conv h_l + bias)
    c_l = f * c_l + i * g,   h_l = o * tanh(c_l)
    P_l = relu(ConvP h_l),   P_0 clipped to 1: the prediction of the next frame.
Terms are added in the order written, which reproduces the bits of the recorded training
of the published network (tests/golden/chainer_tiny). Parameters are named as in the
published weight files.

Runs in Chainer's environment, without this project: Python 3.8-3.11, Chainer 2 to 7.
"""

import chainer
import numpy as np
from chainer import functions, links


class Peephole(chainer.Link):
    """Elementwise weights `W` of shape `[1, C, H, W]` on the cell state."""

    def __init__(self, channels, height, width):
        super().__init__()
        with self.init_scope():
            self.W = chainer.Parameter(np.zeros((1, channels, height, width), "f"))

    def __call__(self, cell):
        """Returns the cell state's contribution to the gate."""
        return cell * self.W


class Cell(chainer.Chain):
    """Convolutional LSTM of one layer; `inputs` lists the channels of x0 and x1."""

    def __init__(self, inputs, channels, height, width):
        super().__init__()
        self.inputs = len(inputs)
        with self.init_scope():
            for gate in "ifco":
                hidden = links.Convolution2D(channels, channels, 3, pad=1)
                setattr(self, "h_" + gate, hidden)
                for number, width_of_input in enumerate(inputs):
                    link = links.Convolution2D(
                        width_of_input, channels, 3, pad=1, nobias=True
                    )
                    setattr(self, f"x_{gate}{number}", link)
                if gate != "c":
                    setattr(self, "c_" + gate, Peephole(channels, height, width))

    def __call__(self, inputs, hidden, cell):
        """Returns the new hidden and cell state."""

        def before_activation(gate):
            total = self[f"x_{gate}0"](inputs[0])
            for number in range(1, self.inputs):
                total += self[f"x_{gate}{number}"](inputs[number])
            return total + self["h_" + gate](hidden)

        i = functions.sigmoid(before_activation("i") + self.c_i(cell))
        f = functions.sigmoid(before_activation("f") + self.c_f(cell))
        new = functions.tanh(before_activation("c")) * i + f * cell
        o = functions.sigmoid(before_activation("o") + self.c_o(cell))
        return o * functions.tanh(new), new


class PredNet(chainer.Chain):
    """The network and the state that it carries from frame to frame."""

    def __init__(self, channels, height, width):
        super().__init__()
        self.channels = tuple(channels)
        self.sizes = [(height >> i, width >> i) for i in range(len(channels))]
        top = len(channels) - 1
        with self.init_scope():
            for layer, count in enumerate(channels):
                if layer:
                    below = 2 * channels[layer - 1]
                    link = links.Convolution2D(below, count, 3, pad=1)
                    setattr(self, f"ConvA{layer}", link)
                link = links.Convolution2D(count, count, 3, pad=1)
                setattr(self, f"ConvP{layer}", link)
                above = [] if layer == top else [channels[layer + 1]]
                cell = Cell([2 * count, *above], count, *self.sizes[layer])
                setattr(self, f"ConvLSTM{layer}", cell)
        self.reset()

    def reset(self):
        """Sets prediction, hidden and cell state of every layer to zero."""

        def zeros():
            return [
                chainer.Variable(np.zeros((1, count) + self.sizes[layer], "f"))
                for layer, count in enumerate(self.channels)
            ]

        self.P, self.h, self.c = zeros(), zeros(), zeros()

    def __call__(self, x):
        """Predicts the frame after `x`, both `[1, C, H, W]`."""
        layers = len(self.channels)
        errors = []
        seen = x
        for layer in range(layers):
            if layer:
                features = functions.relu(self[f"ConvA{layer}"](errors[-1]))
                seen = functions.max_pooling_2d(features, 2, stride=2)
            P = self.P[layer]
            errors.append(
                functions.concat((functions.relu(seen - P), functions.relu(P - seen)))
            )
        for layer in reversed(range(layers)):
            inputs = [errors[layer]]
            if layer < layers - 1:
                up = functions.unpooling_2d(
                    self.h[layer + 1], 2, stride=2, cover_all=False
                )
                inputs.append(up)
            self.h[layer], self.c[layer] = self[f"ConvLSTM{layer}"](
                inputs, self.h[layer], self.c[layer]
            )
            made = self[f"ConvP{layer}"](self.h[layer])
            self.P[layer] = (
                functions.relu(made) if layer else functions.clipped_relu(made, 1.0)
            )
        return self.P[0]


def weights(network):
    """Returns `{name: array}`, named as in the published weight files."""
    return {"predictor" + name: p.data for name, p in network.namedparams()}


def set_weights(network, arrays):
    """Copies `arrays` (as `weights` returns them) into the network."""
    for name, parameter in network.namedparams():
        parameter.data[...] = arrays["predictor" + name]


def initial_weights(network, seed):
    """Samples W ~ N(0, 1/fan_in), peepholes N(0, 1/(C H W)) and zero biases.

    They come from NumPy's frozen `RandomState`, name by name, so that every release of
    Chainer and of NumPy starts from the same bits.
    """
    draw = np.random.RandomState(seed)
    arrays = {}
    for name, array in sorted(weights(network).items()):
        if name.endswith("/b"):
            arrays[name] = np.zeros(array.shape, "f")
        else:
            scale = 1 / np.sqrt(np.prod(array.shape[1:]))
            arrays[name] = (scale * draw.standard_normal(array.shape)).astype("f")
    return arrays
