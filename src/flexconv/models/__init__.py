"""The networks of the paper and `SepFlexNet`, by class and by name, and how to save and load them."""

from ._base import Model as Model
from ._base import input_size as input_size
from ._base import trained_size as trained_size
from ._card import ModelCard as ModelCard
from ._hub import push_to_hub as push_to_hub
from ._inputs import ImageSeries as ImageSeries
from ._inputs import Inputs as Inputs
from ._locate import list_pretrained as list_pretrained
from ._locate import other_pretrained as other_pretrained
from ._locate import pretrained_folder as pretrained_folder
from ._norm import normalise as normalise
from ._pretrained import CONFIG as CONFIG
from ._pretrained import from_pretrained as from_pretrained
from ._pretrained import save_pretrained as save_pretrained
from ._registry import ARCHITECTURES as ARCHITECTURES
from ._registry import MODELS as MODELS
from ._registry import create_model as create_model
from ._registry import list_models as list_models
from ._untrusted import check_sizes as check_sizes
from ._untrusted import check_values as check_values
from .flexnet import FlexNet as FlexNet
from .flextcn import FlexTCN as FlexTCN
from .resnet import CIFARResNet as CIFARResNet
from .sepflexnet import SepFlexNet as SepFlexNet

__all__ = [
    "CIFARResNet",
    "FlexNet",
    "FlexTCN",
    "ImageSeries",
    "Inputs",
    "Model",
    "ModelCard",
    "SepFlexNet",
    "create_model",
    "from_pretrained",
    "input_size",
    "list_models",
    "list_pretrained",
    "pretrained_folder",
    "push_to_hub",
    "save_pretrained",
    "trained_size",
]
