# SPDX-License-Identifier: Apache-2.0
"""elastic_lightning.py FOLDER ...: the training of elastic_train.py, whose flags it has, as a
LightningModule, with a validation and a checkpoint after each epoch."""
import hashlib
import json
import os

import torch
from elastic_train import MEMBER, Samples, die, network, parse, wait_as_asked
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lockstep.torch.lightning import ElasticStrategy

ARGS = parse()


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.file = open(os.path.join(ARGS.folder, f"samples.{MEMBER}"), "a")

    def training_step(self, batch, _index):
        index, x, y = batch
        run = self.trainer.strategy._run
        die(ARGS, run, "begin")
        counted = index.tolist() if run._rows else []
        self.file.write(json.dumps([self.trainer.current_epoch, run.step, 0, counted]) + "\n")
        self.file.flush()
        wait_as_asked(ARGS, run)
        loss = (self.net(x) - y).square().mean()
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        die(ARGS, run, "forward")
        return loss

    def on_after_backward(self):
        die(ARGS, self.trainer.strategy._run, "backward")

    def validation_step(self, batch, _index):
        _, x, y = batch
        self.log("validation", (self.net(x) - y).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main():
    torch.set_num_threads(1)
    with open(os.path.join(ARGS.folder, f"pid.{MEMBER}"), "w") as file:
        file.write(str(os.getpid()))
    saver = ModelCheckpoint(dirpath=ARGS.folder, monitor="validation", save_top_k=-1)
    trainer = Trainer(
        strategy=ElasticStrategy(), accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]),
        max_epochs=ARGS.epochs, accumulate_grad_batches=ARGS.accumulate, callbacks=[saver],
        logger=False, enable_progress_bar=False,
    )
    net = Net()
    loaders = [DataLoader(Samples(ARGS.samples), 4, shuffle=s, num_workers=ARGS.workers)
               for s in (True, False)]
    trainer.fit(net, *loaders)
    digest = hashlib.sha256()
    for p in net.parameters():
        digest.update(p.detach().numpy().tobytes())
    steps = trainer.global_step, trainer.lr_scheduler_configs[0].scheduler.last_epoch
    assert steps[0] == steps[1], steps
    assert trainer.current_epoch == ARGS.epochs
    saved = [name for name in os.listdir(ARGS.folder) if name.endswith(".ckpt")]
    assert len(saved) == ARGS.epochs, saved
    digest.update(json.dumps([*steps, saver.best_model_path]).encode())
    print(f"end {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
