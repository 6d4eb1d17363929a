# SPDX-License-Identifier: Apache-2.0
"""with_trainer.py FOLDER [gloo]: Trainer, on the ranks of the launcher (docs/recipes.md)."""
import sys

import end
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import lockstep.torch  # noqa: F401, not needed where the package is installed


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.arange(16) % 7 + i % 3
        return {"input_ids": ids, "labels": ids}


if "gloo" not in sys.argv:
    dist.init_process_group("lockstep")
torch.manual_seed(0)
sizes = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=16, n_positions=16)
model = GPT2LMHeadModel(sizes)
arguments = TrainingArguments(
    sys.argv[1], use_cpu=True, num_train_epochs=1, save_steps=2, eval_strategy="epoch", report_to=[]
)
trainer = Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows())
trainer.train()
end.show(arguments.world_size, trainer.evaluate()["eval_loss"])
