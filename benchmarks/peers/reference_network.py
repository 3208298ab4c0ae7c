"""The Rossmann network in PyTorch, and its optimizer.

It is the network of examples/rossmann/train.sql: 18 categorical features through one embedding table
(each feature's codes begin where the one's before end), 18 continuous ones through batch norm, dense
layers of 1000, 1000, 1000 and 500 with ReLU, dropout, one output through a scaled sigmoid. Weights
start as Keras starts them, and Adam is in Keras' form.
"""

import math

import torch
from torch import nn

from rossmann_rows import CATEGORICAL

EMBEDDING_DIM = 10
HIDDEN = [1000, 1000, 1000, 500]
DROPOUT = 0.5
L2 = 5e-5
LEARN_RATE = 1e-4
EPSILON = 1e-3


class Network(nn.Module):
    """Predicts the logarithm of the label."""

    def __init__(self, table_rows, continuous, output_scale):
        super().__init__()
        self.embedding = nn.Embedding(table_rows, EMBEDDING_DIM)
        self.norm = nn.BatchNorm1d(continuous, eps=1e-3, momentum=0.01)
        widths = [CATEGORICAL * EMBEDDING_DIM + continuous, *HIDDEN]
        self.dense = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(HIDDEN[-1], 1)
        self.output_scale = output_scale
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        for layer in [*self.dense, self.output]:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, codes, numbers):
        x = torch.cat([self.embedding(codes).flatten(1), self.norm(numbers)], 1)
        for layer in self.dense:
            x = torch.relu(layer(x))
        # From here on in f32, also where products are in bf16.
        y = self.output(self.dropout(x)).squeeze(1).float()
        return torch.sigmoid(y) * self.output_scale


class KerasAdam:
    """PyTorch's fused Adam with ε where Keras has it: outside of the second moment's correction.

    L2 is on the kernels of the hidden layers only. The penalty λ·Σw² has the gradient 2·λ·w, which
    is what Adam's `weight_decay` adds.
    """

    def __init__(self, network):
        kernels = [layer.weight for layer in network.dense]
        penalized = {id(kernel) for kernel in kernels}
        others = [p for p in network.parameters() if id(p) not in penalized]
        groups = [{"params": kernels, "weight_decay": 2 * L2}, {"params": others}]
        self.adam = torch.optim.Adam(groups, lr=LEARN_RATE, eps=EPSILON, fused=True)
        self.steps = 0

    def zero_grad(self):
        self.adam.zero_grad(set_to_none=True)

    def step(self):
        self.steps += 1
        epsilon = EPSILON / math.sqrt(1 - 0.999**self.steps)
        for group in self.adam.param_groups:
            group["eps"] = epsilon
        self.adam.step()
