# SPDX-License-Identifier: Apache-2.0
"""Lockstep for Python: lockstep.torch is a backend of torch.distributed."""
