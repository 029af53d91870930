"""Data sets: the paper's, a small one that needs no files, and your own.

    from flexconv import data
    digits = data.load("digits", validation=0.1)
    for inputs, labels, lengths in data.DeviceBatches(digits.train, 64, shuffle=True):
        ...

`fetch` gets a published set and checks it, `status` says how it stands, `load` reads it.
"""

from ..audio import N_MFCC, channelwise_mfcc, mfcc
from ._batches import Batch, DeviceBatches
from ._dataset import Dataset, Download
from ._files import DamagedDataError, DataError, DataFile, MissingDataError, data_root, described_root
from ._load import check_options, load
from ._pictures import import_pillow, read_picture
from ._recordings import FULL_SCALE
from ._registry import dataset, list_datasets, options
from ._resize import resize_images
from ._splits import DataSplits, MappedRows, Samples, Split
from ._status import Status, fetch, status

__all__ = [
    "FULL_SCALE",
    "N_MFCC",
    "Batch",
    "DamagedDataError",
    "DataError",
    "DataFile",
    "DataSplits",
    "Dataset",
    "DeviceBatches",
    "Download",
    "MappedRows",
    "MissingDataError",
    "Samples",
    "Split",
    "Status",
    "channelwise_mfcc",
    "check_options",
    "data_root",
    "dataset",
    "described_root",
    "fetch",
    "import_pillow",
    "list_datasets",
    "load",
    "mfcc",
    "options",
    "read_picture",
    "resize_images",
    "status",
]
