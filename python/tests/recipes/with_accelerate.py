# SPDX-License-Identifier: Apache-2.0
"""with_accelerate.py [gloo]: a loop of accelerate, on the launcher's ranks (docs/recipes.md)."""
import sys

import end
import torch
import torch.distributed as dist
from accelerate import Accelerator

import lockstep.torch  # noqa: F401, not needed where the package is installed

if "gloo" not in sys.argv:
    dist.init_process_group("lockstep")
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rows = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(rows, 8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
mean = accelerator.gather_for_metrics(loss.detach()).mean()
end.show(accelerator.num_processes, mean)
accelerator.end_training()
