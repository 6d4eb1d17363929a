# SPDX-License-Identifier: Apache-2.0
"""with_lightning.py [gloo]: Lightning's DDP on two ranks, which it starts itself without a launcher
(docs/recipes.md)."""
import sys

import end
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import lockstep.torch  # noqa: F401, not needed where the package is installed


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def training_step(self, batch, _index):
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch, _index):
        self.log("validation", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


lightning.seed_everything(0)
rows = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
backend = "gloo" if "gloo" in sys.argv else "lockstep"
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend=backend),
    max_epochs=1,
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
loader = torch.utils.data.DataLoader(rows, 8)
trainer.fit(Model(), loader, loader)
end.show(trainer.world_size, trainer.callback_metrics["validation"])
