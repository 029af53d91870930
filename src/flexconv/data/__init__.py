"""Data sets: those of the paper, a small one that needs no files, and your own.

    from flexconv import data
    digits = data.load("digits", validation=0.1)
    for inputs, labels, lengths in data.DeviceBatches(digits.train, 64, shuffle=True):
        ...

`fetch` downloads and verifies a published data set, `status` reports whether it is present, and `load` reads it.
"""

from ..audio import N_MFCC, channelwise_mfcc, mfcc
from ._batches import Batch, DeviceBatches
from ._dataset import Dataset, Download
from ._describe import class_counts, describe
from ._files import DamagedDataError, DataError, DataFile, MissingDataError, data_root, describe_root
from ._image_files import image_suffixes, import_pillow, read_image
from ._load import check_options, load
from ._recordings import FULL_SCALE
from ._registry import dataset, list_datasets, options
from ._resize import resize_images
from ._splits import DataSplits, MappedRows, Samples, Split
from ._status import Status, fetch, status
from ._table_file import is_table
from ._table_read import read_table
from ._table_samples import Table
from ._unlabelled import Unlabelled, read_unlabelled
from ._user_data import dataset_for
from ._wav import read_wav

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
    "Table",
    "Unlabelled",
    "channelwise_mfcc",
    "check_options",
    "class_counts",
    "data_root",
    "dataset",
    "dataset_for",
    "describe",
    "describe_root",
    "fetch",
    "image_suffixes",
    "import_pillow",
    "is_table",
    "list_datasets",
    "load",
    "mfcc",
    "options",
    "read_image",
    "read_table",
    "read_unlabelled",
    "read_wav",
    "resize_images",
    "status",
]
