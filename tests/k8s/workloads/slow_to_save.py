"""A model whose save takes longer than two thirds of a grace period of two seconds."""

import time
from typing import Any

from dist_train.models.convnet import ConvNet


class SlowToSave(ConvNet):
    """ConvNet with a slow state_dict."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(1.5)
        return super().state_dict(*args, **kwargs)
