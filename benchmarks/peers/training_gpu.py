"""Trains the Rossmann network with PyTorch on a GPU, as one who knows it well would write it.

    eager    each operation launched by itself
    compile  network and loss by torch.compile, which makes CUDA graphs of forward and backward; the
             gather of rows and the optimizer are eager
    graph    one CUDA graph of the whole step: rows gathered by index, forward, backward, Adam

All forms do the same work, by products in f32, in TF32 or in bf16 (autocast; weights and moments stay
f32). Rows and the order of an epoch are on the GPU, and the loss is read once an epoch.

    {"form": form, "precision": "f32", "tf32" or "bf16", "batch": n, "rows": n, "epochs": n}
        → the question, and {"system": name, "device": name, "losses": mean of each epoch,
           "rows_per_second": of each epoch but the first}

Rows are made up, or the first ones of {"parquet": path}; they are a multiple of the batch. Without a
GPU, one processor thread computes, and "graph" calls the step that it would have captured.
"""

import time

import torch

import rossmann_rows
from protocol import serve
from reference_network import LEARN_RATE, KerasAdam, Network

SYSTEMS = {
    "eager": "PyTorch, eager",
    "compile": "PyTorch, torch.compile",
    "graph": "PyTorch, the step as one CUDA graph",
}
WARM_UP = 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class CapturedAdam(KerasAdam):
    """KerasAdam that a CUDA graph can repeat: the step's number and learning rate are on the GPU.

    The learning rate holds both moments' corrections. PyTorch's own are 1 at a step number that is so
    large that adding one does not change it.
    """

    FAR = 2.0**40

    def __init__(self, network, steps):
        super().__init__(network)
        t = torch.arange(1, steps + 1, dtype=torch.float64)
        rates = LEARN_RATE * (1 - 0.999**t).sqrt() / (1 - 0.9**t)
        self.rates = rates.float().to(DEVICE)
        self.rate = torch.zeros(1, device=DEVICE)
        self.at = torch.zeros(1, dtype=torch.long, device=DEVICE)
        for group in self.adam.param_groups:
            group.update(lr=self.rate, capturable=DEVICE.type == "cuda")
            for p in group["params"]:
                moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
                self.adam.state[p] = {"step": torch.full((), self.FAR, device=DEVICE), **moments}

    def step(self):
        torch.index_select(self.rates, 0, self.at, out=self.rate)
        self.at += 1
        self.adam.step()

    def restart(self):
        self.at.zero_()
        for state in self.adam.state.values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()


class Training:
    """A network from fresh weights, and how it makes a step."""

    def __init__(self, rows, form, precision, batch, epochs):
        self.rows, self.batch = rows, batch
        self.steps, rest = divmod(len(rows), batch)
        if rest:
            raise ValueError(f"{len(rows)} rows are no whole number of batches of {batch}")
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        self.in_bf16 = precision == "bf16"
        torch.manual_seed(1)
        self.network = Network(rows.table_rows, rows.numbers.shape[1], rows.output_scale)
        self.network.to(DEVICE).train()
        self.total = torch.zeros((), device=DEVICE)
        self.loss = self.forward
        if form == "graph":
            self.optimizer = CapturedAdam(self.network, max(epochs * self.steps, WARM_UP))
            self.capture()
        else:
            self.optimizer = KerasAdam(self.network)
        if form == "compile":
            # Code of another batch or precision would count as recompilation, of which there are eight.
            torch.compiler.reset()
            mode = "reduce-overhead" if DEVICE.type == "cuda" else "default"
            self.loss = torch.compile(self.forward, fullgraph=True, dynamic=False, mode=mode)
        self.run = self.run_captured if form == "graph" else self.run_steps
        # For dropout: warming up has drawn from it.
        torch.manual_seed(2)

    def forward(self, codes, numbers, labels):
        # A weight is used once a step: there is nothing to keep its bf16 form for.
        bf16 = torch.autocast(
            DEVICE.type, torch.bfloat16, enabled=self.in_bf16, cache_enabled=False
        )
        with bf16:
            predictions = self.network(codes, numbers)
        return (predictions - labels).abs().mean()

    def step(self, places):
        rows = self.rows
        self.optimizer.zero_grad()
        loss = self.loss(rows.codes[places], rows.numbers[places], rows.labels[places])
        loss.backward()
        self.optimizer.step()
        self.total += loss.detach()

    def run_steps(self, order):
        for places in order:
            self.step(places)

    def run_captured(self, order):
        self.order.copy_(order)
        self.at.zero_()
        for _ in range(self.steps):
            self.replay()

    def step_in_order(self):
        self.step(self.order.index_select(0, self.at).view(-1))
        self.at += 1

    def capture(self):
        self.order = torch.zeros(self.steps, self.batch, dtype=torch.long, device=DEVICE)
        self.at = torch.zeros(1, dtype=torch.long, device=DEVICE)
        if DEVICE.type != "cuda":
            self.replay = self.step_in_order
            return
        start = {name: value.clone() for name, value in self.network.state_dict().items()}
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self.at.zero_()
                self.step_in_order()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            self.step_in_order()
        self.replay = graph.replay
        self.network.load_state_dict(start)
        self.optimizer.restart()

    def train(self, epochs):
        """The mean loss and the rows a second of each epoch."""
        generator = torch.Generator(DEVICE).manual_seed(1)
        losses, speeds = [], []
        for _ in range(epochs):
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            self.total.zero_()
            order = torch.randperm(len(self.rows), generator=generator, device=DEVICE)
            self.run(order.view(self.steps, self.batch))
            # Reading it waits for the last step.
            losses.append(self.total.item() / self.steps)
            speeds.append(len(self.rows) / (time.perf_counter() - start))
        return losses, speeds


def main():
    torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    all_rows = {}

    def answer(question):
        if question.get("versions"):
            return {"PyTorch": torch.__version__}
        form, rows, parquet = question["form"], question["rows"], question.get("parquet")
        if (parquet, rows) not in all_rows:
            # One at a time: the largest takes most of what there is.
            all_rows.clear()
            of_file = lambda: rossmann_rows.read(parquet, rows).to(DEVICE)
            made_up = lambda: rossmann_rows.make(rows, DEVICE)
            all_rows[parquet, rows] = of_file() if parquet else made_up()
        epochs = question["epochs"]
        training = Training(
            all_rows[parquet, rows], form, question["precision"], question["batch"], epochs
        )
        losses, speeds = training.train(epochs)
        said = {"system": SYSTEMS[form], "device": device, "losses": losses}
        return {**question, **said, "rows_per_second": speeds[1:]}

    serve(answer)


if __name__ == "__main__":
    main()
