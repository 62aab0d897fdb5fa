"""The operator ``smooth_labels``: class numbers to targets for training."""

from typing import Annotated

import numpy as np

from dali_run.ops.base import Arg, Operator, Spec
from dali_run.ops.batch import Batch
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType


class SmoothLabels(Operator, name="smooth_labels"):
    """Convert class numbers to one-hot vectors (float32), with the weight ``smoothing`` spread over all classes."""

    example = "{op: smooth_labels, in: labels, num_classes: 10, smoothing: 0.1, out: targets}"

    num_classes: Annotated[int, Arg("length of the vectors", ge=2)]
    smoothing: Annotated[float, Arg("weight that is spread evenly", ge=0, le=1)] = 0.1

    def infer(self, *specs):
        if specs[0].ndim not in (None, 0):
            raise SpecError(f"takes one class number per sample, got {specs[0]}")
        return Spec((self.num_classes,), DALIDataType.FLOAT)

    def cpu(self, ctx, labels):
        classes = labels.dense().astype(np.int64)
        for i in np.flatnonzero((classes < 0) | (classes >= self.num_classes)).tolist():
            ctx.reject(i, "bad_argument", f"class {classes[i]} is not below num_classes ({self.num_classes})")
        hot = np.arange(self.num_classes) == classes[:, None]
        targets = hot * (1 - self.smoothing) + self.smoothing / self.num_classes
        return Batch.from_dense(targets.astype(np.float32), "", labels.samples)
