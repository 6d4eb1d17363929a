# SPDX-License-Identifier: Apache-2.0
"""tacotron2_torch: Tacotron2 (Shen et al. 2018) in PyTorch, for tacotron2_parity.py and for
bench/step_torch.py. Structure, names of parameters, initial values and defaults are those of
NVIDIA's DeepLearningExamples, so a state_dict of one fits the other.

Sequences are batch first: ids (N,S), mels (N,T,80)."""

import torch
from torch import nn
from torch.nn import functional as F

DEFAULTS = {
    "n_mel_channels": 80,
    "n_symbols": 148,
    "symbols_embedding_dim": 512,
    "encoder_kernel_size": 5,
    "encoder_n_convolutions": 3,
    "encoder_embedding_dim": 512,
    "attention_rnn_dim": 1024,
    "attention_dim": 128,
    "attention_location_n_filters": 32,
    "attention_location_kernel_size": 31,
    "n_frames_per_step": 1,
    "decoder_rnn_dim": 1024,
    "prenet_dim": 256,
    "p_attention_dropout": 0.1,
    "p_decoder_dropout": 0.1,
    "postnet_embedding_dim": 512,
    "postnet_kernel_size": 5,
    "postnet_n_convolutions": 5,
    "mask_padding": False,
    # Without flags at NVIDIA; rates of 0 make a step comparable with that of another program.
    "p_convolution_dropout": 0.5,
    "p_prenet_dropout": 0.5,
}


class Linear(nn.Module):
    def __init__(self, n_in, n_out, bias=True, gain="linear"):
        super().__init__()
        self.linear_layer = nn.Linear(n_in, n_out, bias=bias)
        nn.init.xavier_uniform_(self.linear_layer.weight, nn.init.calculate_gain(gain))

    def forward(self, x):
        return self.linear_layer(x)


class Conv(nn.Module):
    def __init__(self, n_in, n_out, kernel, bias=True, gain="linear"):
        super().__init__()
        self.conv = nn.Conv1d(n_in, n_out, kernel, padding=(kernel - 1) // 2, bias=bias)
        nn.init.xavier_uniform_(self.conv.weight, nn.init.calculate_gain(gain))

    def forward(self, x):
        return self.conv(x)


def conv_norm(n_in, n_out, kernel, gain):
    norm = nn.BatchNorm1d(n_out)
    nn.init.uniform_(norm.weight)
    return nn.Sequential(Conv(n_in, n_out, kernel, gain=gain), norm)


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["encoder_embedding_dim"]
        self.drop = c["p_convolution_dropout"]
        self.convolutions = nn.ModuleList(
            conv_norm(width, width, c["encoder_kernel_size"], "relu")
            for _ in range(c["encoder_n_convolutions"])
        )
        self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        for conv in self.convolutions:
            x = F.dropout(F.relu(conv(x)), self.drop, self.training)
        packed = nn.utils.rnn.pack_padded_sequence(
            x.transpose(1, 2), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class Prenet(nn.Module):
    def __init__(self, n_in, width, drop):
        super().__init__()
        self.drop = drop
        self.layers = nn.ModuleList(
            [Linear(n_in, width, bias=False), Linear(width, width, bias=False)]
        )

    def forward(self, x):
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.drop, training=True)
        return x


class Location(nn.Module):
    def __init__(self, c):
        super().__init__()
        filters = c["attention_location_n_filters"]
        self.location_conv = Conv(2, filters, c["attention_location_kernel_size"], bias=False)
        self.location_dense = Linear(filters, c["attention_dim"], bias=False, gain="tanh")

    def forward(self, weights):
        return self.location_dense(self.location_conv(weights).transpose(1, 2))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["attention_dim"]
        self.query_layer = Linear(c["attention_rnn_dim"], width, bias=False, gain="tanh")
        self.memory_layer = Linear(c["encoder_embedding_dim"], width, bias=False, gain="tanh")
        self.v = Linear(width, 1, bias=False)
        self.location_layer = Location(c)

    def forward(self, query, memory, keys, weights, padding):
        sums = self.query_layer(query).unsqueeze(1) + self.location_layer(weights) + keys
        energies = self.v(torch.tanh(sums)).squeeze(2).masked_fill(padding, -float("inf"))
        now = F.softmax(energies, dim=1)
        return torch.bmm(now.unsqueeze(1), memory).squeeze(1), now


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        frame = c["n_mel_channels"] * c["n_frames_per_step"]
        width, memory = c["decoder_rnn_dim"], c["encoder_embedding_dim"]
        self.prenet = Prenet(frame, c["prenet_dim"], c["p_prenet_dropout"])
        self.attention_rnn = nn.LSTMCell(c["prenet_dim"] + memory, c["attention_rnn_dim"])
        self.attention_layer = Attention(c)
        self.decoder_rnn = nn.LSTMCell(c["attention_rnn_dim"] + memory, width)
        self.linear_projection = Linear(width + memory, frame)
        self.gate_layer = Linear(width + memory, 1, gain="sigmoid")

    def first_state(self, memory):
        n, s, width = memory.shape
        zeros = memory.new_zeros
        return {
            "attention": [zeros(n, self.c["attention_rnn_dim"]) for _ in range(2)],
            "decoder": [zeros(n, self.c["decoder_rnn_dim"]) for _ in range(2)],
            "weights": zeros(n, s),
            "total": zeros(n, s),
            "context": zeros(n, width),
        }

    def step(self, x, state, memory, keys, padding):
        hidden, cell = self.attention_rnn(torch.cat([x, state["context"]], 1), state["attention"])
        hidden = F.dropout(hidden, self.c["p_attention_dropout"], self.training)
        state["attention"] = [hidden, cell]
        past = torch.stack([state["weights"], state["total"]], 1)
        state["context"], state["weights"] = self.attention_layer(
            hidden, memory, keys, past, padding
        )
        state["total"] = state["total"] + state["weights"]
        below = torch.cat([hidden, state["context"]], 1)
        hidden, cell = self.decoder_rnn(below, state["decoder"])
        hidden = F.dropout(hidden, self.c["p_decoder_dropout"], self.training)
        state["decoder"] = [hidden, cell]
        out = torch.cat([hidden, state["context"]], 1)
        return self.linear_projection(out), self.gate_layer(out)

    def forward(self, memory, mels, padding):
        n, t, bands = mels.shape
        r = self.c["n_frames_per_step"]
        groups = mels.reshape(n, t // r, bands * r)
        inputs = self.prenet(F.pad(groups, (0, 0, 1, 0))[:, :-1])
        keys, state = self.attention_layer.memory_layer(memory), self.first_state(memory)
        frames, gates, weights = [], [], []
        for i in range(t // r):
            frame, gate = self.step(inputs[:, i], state, memory, keys, padding)
            frames.append(frame)
            gates.append(gate)
            weights.append(state["weights"])
        return (
            torch.stack(frames, 1).reshape(n, t, bands),
            torch.cat(gates, 1),
            torch.stack(weights, 1),
        )


class Postnet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.drop = c["p_convolution_dropout"]
        bands, width, kernel = (
            c["n_mel_channels"],
            c["postnet_embedding_dim"],
            c["postnet_kernel_size"],
        )
        widths = [bands] + [width] * (c["postnet_n_convolutions"] - 1) + [bands]
        self.convolutions = nn.ModuleList(
            conv_norm(a, b, kernel, "tanh" if i + 2 < len(widths) else "linear")
            for i, (a, b) in enumerate(zip(widths, widths[1:]))
        )

    def forward(self, x):
        for i, conv in enumerate(self.convolutions):
            x = conv(x)
            if i + 1 < len(self.convolutions):
                x = torch.tanh(x)
            x = F.dropout(x, self.drop, self.training)
        return x


def padding_of(lengths, longest):
    return torch.arange(longest).unsqueeze(0) >= lengths.unsqueeze(1)


class Tacotron2(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.c = c = {**DEFAULTS, **options}
        self.embedding = nn.Embedding(c["n_symbols"], c["symbols_embedding_dim"])
        nn.init.xavier_uniform_(self.embedding.weight)
        self.encoder = Encoder(c)
        self.decoder = Decoder(c)
        self.postnet = Postnet(c)

    def forward(self, ids, id_lengths, mels, mel_lengths):
        memory = self.encoder(self.embedding(ids).transpose(1, 2), id_lengths)
        mel, gate, alignment = self.decoder(memory, mels, padding_of(id_lengths, ids.shape[1]))
        post = mel + self.postnet(mel.transpose(1, 2)).transpose(1, 2)
        if self.c["mask_padding"]:
            padding = padding_of(mel_lengths, mels.shape[1])
            mel = mel.masked_fill(padding.unsqueeze(2), 0.0)
            post = post.masked_fill(padding.unsqueeze(2), 0.0)
            gate = gate.masked_fill(padding[:, :: self.c["n_frames_per_step"]], 1e3)
        return mel, post, gate, alignment


def loss_of(outputs, mels, gates):
    mel, post, gate, _ = outputs
    return (
        F.mse_loss(mel, mels)
        + F.mse_loss(post, mels)
        + F.binary_cross_entropy_with_logits(gate, gates)
    )
