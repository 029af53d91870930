"""Classify files with a trained network: pictures, recordings and arrays.

    from flexconv.predict import predict
    for prediction in predict("runs/mine", ["photos", "cat.png"]):
        print(prediction.file, prediction.label, prediction.probability)

The command `flexconv predict` does the same. Files are prepared as the training data were: `model.inputs` holds their
size, mean, standard deviation and class names. Reading images needs the extra `train`.
"""

from ._prediction import Prediction
from ._predictor import Predictor, predict

__all__ = ["Prediction", "Predictor", "predict"]
