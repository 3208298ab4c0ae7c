"""Rows for the Rossmann network as tensors: codes, numbers and logarithms of labels.

They are read from a Parquet file of the Rossmann features, or made up: as many features with as many
values each, and sales that depend on some of them. volley-train makes the same rows.
"""

import torch

LABEL = "Sales"
NO_FEATURES = {"row", "split", "Date", LABEL}
CATEGORICAL = 18
CONTINUOUS = 18
# Values of each categorical feature in the real tables.
VALUES = [1115, 12, 7, 3, 12, 31, 52, 25, 26, 4, 3, 4, 23, 8, 22, 2, 2, 2]
STORE, PROMO = 0, 15


class Rows:
    """codes [rows, 18] of one table of embeddings, numbers [rows, 18], labels [rows]."""

    def __init__(self, codes, table_rows, numbers, labels):
        self.codes, self.table_rows = codes.contiguous(), table_rows
        self.numbers, self.labels = numbers.contiguous(), labels
        self.output_scale = 1.2 * labels.max().item()

    def __len__(self):
        return len(self.labels)

    def to(self, device):
        for name in ("codes", "numbers", "labels"):
            setattr(self, name, getattr(self, name).to(device))
        return self


def read(path, rows):
    """The first rows of a Parquet file."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(path, format="parquet").to_table(filter=ds.field("row") < rows)
    table = table.sort_by("row").combine_chunks()
    features = [name for name in table.column_names if name not in NO_FEATURES]
    codes, table_rows = [], 0
    for name in features[:CATEGORICAL]:
        column = pc.dictionary_encode(table[name], null_encoding="encode").combine_chunks()
        codes.append(torch.tensor(column.indices.to_numpy()).long() + table_rows)
        table_rows += len(column.dictionary)
    numbers = [
        torch.tensor(pc.fill_null(pc.cast(table[name], "float32"), 0).to_numpy())
        for name in features[CATEGORICAL:]
    ]
    labels = torch.tensor(pc.ln(pc.cast(table[LABEL], "float64")).to_numpy()).float()
    return Rows(torch.stack(codes, 1), table_rows, torch.stack(numbers, 1), labels)


def make(rows, device="cpu"):
    """Rows that are the same wherever they are made."""
    key = torch.arange(rows, device=device).unsqueeze(1) * 64
    draws = draw(1, key + torch.arange(CATEGORICAL + CONTINUOUS + 1, device=device))
    values = torch.tensor(VALUES, device=device)
    codes = (draws[:, :CATEGORICAL] >> 33 & 2**31 - 1) % values
    shares = share(draws[:, CATEGORICAL:])
    store = share(draw(2, codes[:, STORE]))
    effects = 0.8 * store + 0.3 * codes[:, PROMO] + 0.2 * shares[:, 0] + 0.1 * shares[:, -1]
    labels = torch.exp(8.1 + effects).round().log().float()
    numbers = (100 * shares[:, :CONTINUOUS]).float()
    return Rows(codes + values.cumsum(0) - values, sum(VALUES), numbers, labels)


def draw(key, counters):
    """SplitMix64 (Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195) as 64 bits of signed numbers."""
    z = (counters + 1) * signed(0x9E3779B97F4A7C15) + key
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ shifted(z, bits)) * signed(factor)
    return z ^ shifted(z, 31)


def share(draws):
    """Draws as numbers in 0..1."""
    return shifted(draws, 11).double() / 2**53


def shifted(z, bits):
    """z to the right, with zeros from the left."""
    return z >> bits & 2 ** (64 - bits) - 1


def signed(number):
    return number - 2**64 if number >= 2**63 else number
