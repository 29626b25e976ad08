"""The trainer on megatron-core: model, packed micro-batches, update, export, checkpoint."""

import warnings

# megatron-core says so at import, for each package that only accelerators can use.
warnings.filterwarnings("ignore", message=r"(Transformer Engine and )?Apex (is|are) not installed")
warnings.filterwarnings("ignore", message="full scope is deprecated")
