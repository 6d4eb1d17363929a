# SPDX-License-Identifier: Apache-2.0
"""Lockstep for Python: lockstep.torch is a backend of torch.distributed."""
import os
import warnings


def load_with_torch() -> None:
    """Called by torch 2.5 and later at the end of `import torch`, where an error would break that
    import. Loads the backend only where the program cannot: LOCKSTEP_TORCH_REPLACE is set, or torch
    looks for no backends of other packages itself (before 2.14)."""
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return
        if os.environ.get("LOCKSTEP_TORCH_REPLACE") or not hasattr(
            dist.Backend, "_ensure_backend_registered"
        ):
            import lockstep.torch  # noqa: F401
    except Exception as error:
        warnings.warn(f"lockstep: the backend of torch.distributed is not available: {error}")
