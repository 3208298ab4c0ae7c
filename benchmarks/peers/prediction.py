"""Predicts with PyTorch on the CPU: from feature columns in Parquet to a count and a mean.

The weights and the vocabularies are those of a model that Volley has published, so both predict the
same. The process is warm, its file in the page cache; reading, encoding, and the network are timed.
The table is encoded once, column by column, before the network sees the first batch. Text is read as
the dictionaries that Parquet holds, so that each distinct value is looked up once, not each row's.

    {"model": folder of the version, "parquet": path, "threads": n, "batch": rows, "first": rows or null}
        → {"seconds": s, "rows": n, "mean": of the predictions}
"""

import json
import os
import struct
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import torch

from protocol import serve
from reference_network import Network


def tensors(path):
    """What a safetensors file holds: a header's length, the header as JSON, the numbers."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    kinds = {"F32": np.float32, "F64": np.float64}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            first, end = (8 + length + at for at in entry["data_offsets"])
            numbers = np.frombuffer(data[first:end], kinds[entry["dtype"]]).reshape(entry["shape"])
            yield name, torch.tensor(numbers).float()


def codes_of(column, values, null):
    """A column's codes: 0 for unseen values, 1 for null where training saw one, then the values."""

    def look_up(array):
        code = pc.add(pc.index_in(pc.cast(array, values.type), values), 1 + null)
        return pc.if_else(pc.is_null(array), null, pc.fill_null(code, 0))

    if not pa.types.is_dictionary(column.type):
        return look_up(column)
    return pc.fill_null(pc.take(look_up(column.dictionary), column.indices), null)


def read(path, text, others):
    """The columns of Parquet files, those of text as one dictionary each."""
    files = ds.ParquetFileFormat(dictionary_columns=text)
    table = ds.dataset(path, format=files).to_table(columns=text + others)
    return table.unify_dictionaries()


class Model:
    """A published model."""

    def __init__(self, folder):
        manifest = json.load(open(os.path.join(folder, "manifest.json")))
        kind = lambda kind: [f["column"] for f in manifest["spec"]["features"] if f["kind"] == kind]
        self.continuous = kind("continuous")
        self.vocabularies = []
        for entry in json.load(open(os.path.join(folder, "vocabularies.json"))):
            vocabulary = entry["vocabulary"]
            if "text" in vocabulary["values"]:
                values = pa.array(vocabulary["values"]["text"], pa.string())
            else:
                values = pa.array(vocabulary["values"]["whole"], pa.int64())
            self.vocabularies.append((entry["column"], values, int(vocabulary["null"])))
        weights = dict(tensors(os.path.join(folder, "weights.safetensors")))
        table_rows = weights["embedding"].shape[0]
        self.network = Network(table_rows, len(self.continuous), manifest["output_scale"]).eval()
        state = {
            "embedding.weight": weights["embedding"],
            "norm.weight": weights["bn.gamma"],
            "norm.bias": weights["bn.beta"],
            "norm.running_mean": weights["bn.mean"],
            "norm.running_var": weights["bn.variance"],
        }
        # Volley keeps a kernel as [inputs, outputs].
        for at in range(len(self.network.dense)):
            state[f"dense.{at}.weight"] = weights[f"dense.{at}.kernel"].T.contiguous()
            state[f"dense.{at}.bias"] = weights[f"dense.{at}.bias"]
        state["output.weight"] = weights["output.kernel"].T.contiguous()
        state["output.bias"] = weights["output.bias"]
        missing, unknown = self.network.load_state_dict(state, strict=False)
        if unknown or set(missing) > {"norm.num_batches_tracked"}:
            raise ValueError(f"the model lacks {missing}, and has {unknown} besides")

    def predict(self, path, batch, first_rows):
        is_text = lambda values: pa.types.is_string(values.type)
        text = [name for name, values, _ in self.vocabularies if is_text(values)]
        whole = [name for name, values, _ in self.vocabularies if not is_text(values)]
        table = read(path, text, whole + self.continuous)
        table = table.slice(0, first_rows).combine_chunks()
        codes = np.empty((len(table), len(self.vocabularies)), np.int64)
        first = 0
        for at, (name, values, null) in enumerate(self.vocabularies):
            codes[:, at] = codes_of(table[name].chunk(0), values, null).to_numpy() + first
            first += 1 + null + len(values)
        numbers = np.empty((len(table), len(self.continuous)), np.float32)
        for at, name in enumerate(self.continuous):
            numbers[:, at] = pc.fill_null(pc.cast(table[name], "float32"), 0).to_numpy()
        codes, numbers = torch.from_numpy(codes), torch.from_numpy(numbers)
        total, seen = 0.0, 0
        with torch.inference_mode():
            for codes, numbers in zip(codes.split(batch), numbers.split(batch)):
                sales = self.network(codes, numbers).exp()
                total += sales.double().sum().item()
                seen += len(sales)
        return seen, total / seen


def main():
    models = {}

    def answer(question):
        if question.get("versions"):
            return {"PyTorch": torch.__version__, "PyArrow": pa.__version__}
        torch.set_num_threads(question["threads"])
        pa.set_cpu_count(question["threads"])
        folder = question["model"]
        if folder not in models:
            models[folder] = Model(folder)
        start = time.perf_counter()
        rows, mean = models[folder].predict(
            question["parquet"], question["batch"], question["first"]
        )
        return {"seconds": time.perf_counter() - start, "rows": rows, "mean": mean}

    serve(answer)


if __name__ == "__main__":
    main()
